"""Floating egress addresses on real nodes: the agents are pods of the release, a pod is seen outside as its EIP."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from integration.cluster.node import Node
from integration.demo.outside_server import serve_outside
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.nodes.test_pods import FETCH
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

AGENT = "egress-agent-node"
NET_ADMIN, NET_RAW = 1 << 12, 1 << 13  # linux/capability.h
LABEL = "coil.test/gateway"
GATEWAY = "office"
EIPS = {4: 200, 6: 200}
"""By family, the host part of the address in the nodes' network."""


@pytest.fixture(scope="module")
def eip(coil: CoilCluster) -> Iterator[CoilCluster]:
    """The cluster with a gateway; the first node may carry its addresses."""
    network = coil.cluster.network
    addresses = {4: network.ipv4[EIPS[4]], 6: network.ipv6[EIPS[6]]}
    spec = {
        "ranges": {f"ipv{family}": [str(address)] for family, address in addresses.items()},
        "nodeSelector": {"selector": {"matchLabels": {LABEL: "true"}}},
    }
    with gateway_nodes(coil, coil.nodes[0]):
        coil.release.apply(document("EgressGateway", {"name": GATEWAY}, spec))
        yield coil
        coil.plane.kubectl("delete", "egressgateway", GATEWAY, "--timeout=60s")


@pytest.fixture(scope="module")
def outside(eip: CoilCluster) -> Iterator[dict[int, str]]:
    """URLs of the host, by family."""
    with serve_outside(eip.cluster.network) as urls:
        yield urls


@pytest.fixture(scope="module")
def room(eip: CoilCluster, outside: dict[int, str]) -> Iterator[Room]:
    """Pods `chosen` and `plain` on the node that is no gateway, and a policy for the first."""
    network = eip.cluster.network
    with eip.room() as room:
        room.run(*(room.pod(name, eip.nodes[1]) for name in ("chosen", "plain")))
        spec = {
            "egressGatewayName": GATEWAY,
            "appliedTo": {"podSelector": {"matchLabels": {"app": "chosen"}}},
            "destSubnet": [f"{network.gateway4}/32", f"{network.gateway6}/128"],
        }
        metadata = {"name": "chosen", "namespace": room.namespace}
        eip.release.apply(document("EgressGatewayPolicy", metadata, spec))
        yield room
        room.kubectl("delete", "egressgatewaypolicies", "--all", "--timeout=60s")


def test_the_agents_are_pods_with_two_capabilities(eip: CoilCluster) -> None:
    pods = eip.programs.of(AGENT)
    assert [pod["spec"]["nodeName"] for pod in pods] == [node.name for node in eip.nodes]
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"coil-egress-node"}
    assert {eip.programs.kernel_says(pod, "CapEff") for pod in pods} == {f"{NET_ADMIN | NET_RAW:016x}"}


@pytest.mark.parametrize("family", EIPS)
def test_a_chosen_pod_is_seen_outside_as_its_eip(
    eip: CoilCluster, room: Room, outside: dict[int, str], family: int
) -> None:
    await_seen(room, outside[family], as_=eip_of(eip, family))


def test_the_eip_moves_to_the_node_that_is_chosen_next(eip: CoilCluster, room: Room, outside: dict[int, str]) -> None:
    here, there = eip.nodes
    assert carrier(eip) == here.name
    with gateway_nodes(eip, there):
        eip.plane.kubectl("label", "node", here.name, f"{LABEL}-")
        wait_until(lambda: carrier(eip) == there.name, what="the EIP is on the other node")
        for family, url in outside.items():
            await_seen(room, url, as_=eip_of(eip, family))
        eip.plane.kubectl("label", "node", here.name, f"{LABEL}=true")
    wait_until(lambda: carrier(eip) == here.name, what="the EIP is back")


def test_an_agent_that_dies_is_started_by_the_kubelet_and_carries_on(
    eip: CoilCluster, room: Room, outside: dict[int, str]
) -> None:
    restarts = eip.programs.restarts(AGENT)
    eip.programs.kill(AGENT)
    wait_until(lambda: eip.programs.restarts(AGENT) == restarts + 2, what="both are started again")
    eip.release.wait_rolled_out(f"daemonset/coil-{AGENT}")
    for family, url in outside.items():
        await_seen(room, url, as_=eip_of(eip, family))
    assert eip.programs.complaints(AGENT, "egress-controller") == []


@contextmanager
def gateway_nodes(coil: CoilCluster, node: Node) -> Iterator[None]:
    """Have the node be one of those that may carry addresses."""
    coil.plane.kubectl("label", "node", node.name, f"{LABEL}=true", "--overwrite")
    try:
        yield
    finally:
        coil.plane.kubectl("label", "node", node.name, f"{LABEL}-")


def document(kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "egressgateway.spidernet.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}


def eip_of(coil: CoilCluster, family: int) -> str:
    network = coil.cluster.network
    return str(network.ipv4[EIPS[4]] if family == 4 else network.ipv6[EIPS[6]])


def carrier(coil: CoilCluster) -> str:
    """The node that carries the policy's addresses, as the gateway's status says; empty when none does."""
    for entry in coil.read("egressgateway", GATEWAY).get("status", {}).get("nodeList", ()):
        if any(eip.get("policies") for eip in entry.get("eips", ())) and entry["status"] == "Ready":
            return str(entry["name"])
    return ""


def await_seen(room: Room, url: str, *, as_: str) -> None:
    """Until the server sees the chosen pod so. Nobody else is ever seen so."""
    ask = " ".join((*FETCH, url))

    def seen(pod: str) -> str:
        return room.kubectl("exec", pod, "--", "busybox", "sh", "-c", f"{ask} || true")

    wait_until(lambda: seen("chosen") == as_, what=f"the chosen pod is seen as {as_}")
    assert seen("plain") != as_
