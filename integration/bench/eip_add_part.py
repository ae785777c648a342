"""What an ADD costs more where it waits until the pod's EIP policies hold, beside the same without floating addresses.

Real plugin, coild, EIP agent, kernel and API server. A policy selects every pod; no node carries it.
"""

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack

from integration.apiserver.bare_node import BareNode
from integration.apiserver.sandbox import PodName
from integration.bench.add_rounds import read_adds, take_runs
from integration.bench.cni_side import POD_NAMESPACE
from integration.bench.figure import Figure, Reading
from integration.bench.node_side import NodeSide
from integration.bench.part import Part
from integration.bench.pod_namespace import pod_namespaces
from integration.bench.room import require_room
from integration.deployment import apply

ADD = Figure("eip.add_ms", "ms", peer="ADD without floating addresses")

_PODS = 110
_RESTING = 30
_GROUP = "egressgateway.spidernet.io/v1beta1"
_OFFICE = {
    "apiVersion": _GROUP,
    "kind": "EgressGateway",
    "metadata": {"name": "office"},
    "spec": {
        "ranges": {"ipv4": ["203.0.113.10"]},
        "nodeSelector": {"selector": {"matchLabels": {"egress": "true"}}},
    },
}
_EVERYBODY = {
    "apiVersion": _GROUP,
    "kind": "EgressGatewayPolicy",
    "metadata": {"name": "everybody", "namespace": POD_NAMESPACE},
    "spec": {"egressGatewayName": "office", "appliedTo": {"podSelector": {}}},
}


def measure(wanted: Collection[Figure]) -> Iterator[Reading]:
    """Two nodes in one kernel, each with its own API server."""
    require_room()
    with (
        pod_namespaces(_PODS) as namespaces,
        NodeSide("coil, with EIP policies", _prepare_policies) as ours,
        NodeSide("coil", _prepare) as peer,
    ):
        runs = take_runs(ours, peer, namespaces.paths, resting=_RESTING, check=lambda run: None)
        yield read_adds(ADD, *runs, about=f"pods that a policy selects, with {_RESTING} pods at rest")


def _prepare(node: BareNode, pods: Sequence[PodName], undo: ExitStack) -> Sequence[str]:
    controller = node.start_controller()
    undo.callback(lambda: controller.process.stop(timeout=60.0))
    node.make_pool("default", {"ipv4": "10.98.0.0/16"}, bits=12)
    return ("--enable-egress=false",)


def _prepare_policies(node: BareNode, pods: Sequence[PodName], undo: ExitStack) -> Sequence[str]:
    apply(node.plane, _OFFICE, _EVERYBODY)
    socket = node.socket.with_name("agent.sock")
    command = [
        *(sys.executable, "-m", "coil_egress_agent.eip"),
        f"--kubeconfig={node.plane.kubeconfig_for('coil-egress-node')}",
        f"--node-name={node.name}",
        f"--pod-start-socket={socket}",
    ]
    agent = node.spawn("coil-egress-agent-node", command)
    undo.callback(lambda: agent.stop(timeout=60.0))
    return *_prepare(node, pods, undo), f"--eip-agent-socket={socket}"


PART = Part("eip.add", (ADD,), measure)
