"""`helm test`: ends with 1, and a sentence for each condition of a Node that tells of a fault of its pod network.

Limits, such as that all addresses of a node are taken, are told and are no fault.
"""

import asyncio
import os
import sys
from pathlib import Path

from coil.crd.builtin import NODES
from coil.crd.node_condition import FAULTS, LIMITS
from coil.kube.client import KubeClient


async def find_faults() -> tuple[int, list[str], list[str]]:
    """How many Nodes there are, what is wrong, and what cannot be had more of."""
    kubeconfig = os.environ.get("KUBECONFIG")
    wrong: list[str] = []
    limits: list[str] = []
    async with KubeClient.connect(Path(kubeconfig) if kubeconfig else None) as kube:
        nodes = await kube.list(NODES)
        for node in nodes:
            told = {each.type for each in node.status.conditions if FAULTS.get(each.type) == each.status}
            if told:
                document = await kube.get_document(NODES, node.metadata.name)
                for condition in document["status"]["conditions"]:
                    if (type_ := condition["type"]) in told:
                        sentence = f"{node.metadata.name}: {type_}: {condition.get('message', '')}"
                        (limits if type_ in LIMITS else wrong).append(sentence)
    return len(nodes), wrong, limits


number, faults, limits = asyncio.run(find_faults())
sys.stdout.write("".join(f"{each}\n" for each in faults) or f"no fault in the conditions of {number} Nodes\n")
sys.stdout.write("".join(f"a limit, and no fault: {each}\n" for each in limits))
sys.exit(bool(faults))
