"""`helm test`: ends with 1, and a sentence for each condition of a Node that tells of a fault of its pod network."""

import asyncio
import os
import sys
from pathlib import Path

from coil.crd.builtin import NODES
from coil.crd.node_condition import FAULTS
from coil.kube.client import KubeClient


async def find_faults() -> tuple[int, list[str]]:
    """How many Nodes there are, and what is wrong."""
    kubeconfig = os.environ.get("KUBECONFIG")
    found = []
    async with KubeClient.connect(Path(kubeconfig) if kubeconfig else None) as kube:
        nodes = await kube.list(NODES)
        for node in nodes:
            wrong = {each.type for each in node.status.conditions if FAULTS.get(each.type) == each.status}
            if wrong:
                document = await kube.get_document(NODES, node.metadata.name)
                found += [
                    f"{node.metadata.name}: {condition['type']}: {condition.get('message', '')}"
                    for condition in document["status"]["conditions"]
                    if condition["type"] in wrong
                ]
    return len(nodes), found


number, faults = asyncio.run(find_faults())
sys.stdout.write("".join(f"{fault}\n" for fault in faults) or f"no fault in the conditions of {number} Nodes\n")
sys.exit(bool(faults))
