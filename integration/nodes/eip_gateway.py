"""An EgressGateway on the two nodes, with an address of each of the cluster's families, and a policy that gives a pod
these addresses.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from integration.cluster.node import Node
from integration.demo.reach import FETCH
from integration.egress.capture import Capture
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.nodes.talk import ASKING, Talk
from integration.patience import wait_until

AGENT = "egress-agent-node"
LABEL = "coil.test/gateway"
GATEWAY = "office"
CHOSEN = "chosen"
"""The pod that the policy is for."""
_HOST = 200
"""The host part of the addresses in the nodes' networks."""


def gateway_document(coil: CoilCluster) -> dict[str, Any]:
    """The gateway; nodes with the label may carry its addresses."""
    spec = {
        "ranges": {f"ipv{family}": [eip_of(coil, family)] for family in coil.cluster.network.families.value},
        "nodeSelector": {"selector": {"matchLabels": {LABEL: "true"}}},
    }
    return _document("EgressGateway", {"name": GATEWAY}, spec)


def policy_document(room: Room, pod: str = CHOSEN) -> dict[str, Any]:
    """The policy for that pod of the room, on its way to the host outside."""
    network = room.coil.cluster.network
    hosts = network.families.pick(network.host4, network.host6)
    spec = {
        "egressGatewayName": GATEWAY,
        "appliedTo": {"podSelector": {"matchLabels": {"app": pod}}},
        "destSubnet": [f"{host}/{host.max_prefixlen}" for host in hosts],
    }
    return _document("EgressGatewayPolicy", {"name": pod, "namespace": room.namespace}, spec)


@contextmanager
def gateway_nodes(coil: CoilCluster, node: Node) -> Iterator[None]:
    """Have the node be one of those that may carry addresses."""
    coil.plane.kubectl("label", "node", node.name, f"{LABEL}=true", "--overwrite")
    try:
        yield
    finally:
        coil.plane.kubectl("label", "node", node.name, f"{LABEL}-")


@contextmanager
def unbroken_traffic(room: Room, node: Node, outside: Mapping[int, str]) -> Iterator[None]:
    """For the time of the block, a pod on the node asks the host at all its URLs without a pause: no request may fail,
    and the host's link may have no packet of them that does not come from the EIP.
    """
    coil = room.coil
    coil.release.apply(policy_document(room, ASKING))
    talk = Talk.ask(room, node, *outside.values())
    try:
        for family, place in outside.items():
            await_pod_seen(room, ASKING, place, as_=eip_of(coil, family))
        asked = {(place.hostname, place.port) for place in map(urlsplit, outside.values())}
        with (
            Capture(
                coil.cluster.network.fabric.net,
                "host",
                keep=lambda packet: (packet.destination, packet.port) in asked,
            ) as captured,
            talk.unbroken(),
        ):
            yield
        eips = {eip_of(coil, family) for family in outside}
        others = captured.select(lambda packet: packet.source not in eips)
        assert not others, others
        assert {packet.source for packet in captured.packets()} == eips
    finally:
        # With a grace period of 0, the pod would go on to ask for a moment after its object, and the policy, have gone.
        left = (f"pod/{ASKING}", f"egressgatewaypolicy/{ASKING}")
        room.kubectl("delete", *left, "--grace-period=1", "--timeout=180s")


def eip_of(coil: CoilCluster, family: int) -> str:
    network = coil.cluster.network
    return str((network.ipv4 if family == 4 else network.ipv6)[_HOST])


def carrier(coil: CoilCluster) -> str:
    """The node that carries the policy's addresses, as the gateway's status says; empty when none does."""
    for entry in coil.read("egressgateway", GATEWAY).get("status", {}).get("nodeList", ()):
        if any(eip.get("policies") for eip in entry.get("eips", ())) and entry["status"] == "Ready":
            return str(entry["name"])
    return ""


def await_seen(room: Room, url: str, *, as_: str) -> None:
    """Until the server sees the chosen pod so. Nobody else is ever seen so."""
    await_pod_seen(room, CHOSEN, url, as_=as_)
    assert whom_it_sees(room, "plain", url) != as_


def await_pod_seen(room: Room, pod: str, url: str, *, as_: str) -> None:
    """Until the server sees the pod so, whomever else."""
    wait_until(lambda: whom_it_sees(room, pod, url) == as_, what=f"the pod {pod} is seen as {as_}")


def whom_it_sees(room: Room, pod: str, url: str) -> str:
    """Where a question of the pod's came from, as the server says; empty if there was no answer."""
    return room.kubectl("exec", pod, "--", "busybox", "sh", "-c", f"{' '.join((*FETCH, url))} || true")


def _document(kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "egressgateway.spidernet.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}
