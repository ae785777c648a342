"""Our side with ports of Neutron: pods that have been told of their ports.

The ports are of the type `bridge`, on one network, IPv4 as the pools' pods, and ACTIVE: an ADD waits for coild alone.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from coil.neutron.handoff import ANNOTATION_PORT, BRIDGE, render_handoff
from integration.apiserver.bare_node import BareNode
from integration.apiserver.sandbox import PodName
from integration.bench.node_side import NodeSide
from tests.coild.neutron.port_node import handoff

_SEGMENTATION = 17
_MTU = 1300
"""Of the network: what fits into the node's uplink."""


def port_side() -> NodeSide:
    """To be entered."""
    return NodeSide("coil, ports of Neutron", _annotate)


def _annotate(node: BareNode, pods: Sequence[PodName], undo: ExitStack) -> Sequence[str]:
    for number, pod in enumerate(pods, start=1):
        port = handoff(number, pod.uid, type=BRIDGE, segmentation=_SEGMENTATION, mtu=_MTU)
        text = render_handoff(replace(port, addresses=port.addresses[:1]))
        patch: dict[str, Any] = {"metadata": {"annotations": {ANNOTATION_PORT: text}}}
        node.plane.kubectl(
            "patch", "pod", pod.name, f"--namespace={pod.namespace}", "--type=merge", f"--patch={json.dumps(patch)}"
        )
    return "--address-source=neutron", "--enable-egress=false"
