"""Floating egress addresses on real nodes: the agents are pods of the release, a pod is seen outside as its EIP."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from integration.demo.outside_server import serve_outside
from integration.demo.reach import url
from integration.egress.capture import Capture
from integration.helm.release import COILD
from integration.kubectl_plugin import ask_coil
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.nodes.eip_gateway import (
    AGENT,
    CHOSEN,
    GATEWAY,
    LABEL,
    await_pod_seen,
    await_seen,
    carrier,
    eip_of,
    gateway_document,
    gateway_nodes,
    policy_document,
    unbroken_traffic,
    whom_it_sees,
)
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

NET_ADMIN, NET_RAW = 1 << 12, 1 << 13  # linux/capability.h
_PORT = 80
"""Of a Service."""


@pytest.fixture(scope="module")
def eip(coil: CoilCluster) -> Iterator[CoilCluster]:
    """The cluster with a gateway; the first node may carry its addresses."""
    with gateway_nodes(coil, coil.nodes[0]):
        coil.release.apply(gateway_document(coil))
        yield coil
        coil.plane.kubectl("delete", "egressgateway", GATEWAY, "--timeout=180s")


@pytest.fixture(scope="module")
def outside(eip: CoilCluster) -> Iterator[dict[int, str]]:
    """URLs of the host, by family."""
    with serve_outside(eip.cluster.network) as urls:
        yield urls


@pytest.fixture(scope="module")
def room(eip: CoilCluster, outside: dict[int, str]) -> Iterator[Room]:
    """Pods `chosen` and `plain` on the node that is no gateway, and a policy for the first."""
    with eip.room() as room:
        room.run(*(room.pod(name, eip.nodes[1]) for name in (CHOSEN, "plain")))
        eip.release.apply(policy_document(room))
        yield room
        room.kubectl("delete", "egressgatewaypolicies", "--all", "--timeout=180s")


def test_the_agents_are_pods_with_two_capabilities(eip: CoilCluster) -> None:
    pods = eip.programs.of(AGENT)
    assert [pod["spec"]["nodeName"] for pod in pods] == [node.name for node in eip.nodes]
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"coil-egress-node"}
    assert {eip.programs.kernel_says(pod, "CapEff") for pod in pods} == {f"{NET_ADMIN | NET_RAW:016x}"}


@pytest.mark.parametrize("family", [4, 6])
def test_a_chosen_pod_is_seen_outside_as_its_eip(
    eip: CoilCluster, room: Room, outside: dict[int, str], family: int
) -> None:
    await_seen(room, outside[family], as_=eip_of(eip, family))


def trace(eip: CoilCluster, room: Room, pod: str, where: str) -> dict[str, Any]:
    """What `kubectl coil trace` tells of the way to the URL's host."""
    place = urlsplit(where)
    assert place.hostname is not None
    destination = f"{f'[{place.hostname}]' if ':' in place.hostname else place.hostname}:{place.port}"
    code, document = ask_coil(eip.plane.admin_kubeconfig, "trace", pod, destination, f"--namespace={room.namespace}")
    assert (code == 0) == (document["verdict"] == "delivered")
    return document


def check_arrival(eip: CoilCluster, room: Room, pod: str, where: str, *, source: str, host: str = "") -> None:
    """The pod's packets have that source on the link of the host, whose URL is `host` unless it is asked for directly.

    The host knows no way to pods, and answers none of their own addresses.
    """
    place = urlsplit(host or where)
    wanted = source, place.hostname, place.port
    with Capture(eip.cluster.network.fabric.net, "host") as captured:
        whom_it_sees(room, pod, where)
        captured.wait_for(
            lambda packet: (packet.source, packet.destination, packet.port) == wanted, what=f"from {pod} as {source}"
        )


@pytest.mark.parametrize("family", [4, 6])
def test_trace_says_whom_the_host_sees(eip: CoilCluster, room: Room, outside: dict[int, str], family: int) -> None:
    for pod in (CHOSEN, "plain"):
        document = trace(eip, room, pod, outside[family])
        assert (document["verdict"], document["reason"], document["doubts"]) == ("delivered", "", [])
        check_arrival(eip, room, pod, outside[family], source=document["sourceSeen"])
        gateways = [hop["at"] for hop in document["hops"] if "as " in hop["action"]]
        assert gateways == ([f"node {eip.nodes[0].name}"] if pod == CHOSEN else [])
    with eip.room() as other:
        other.run(other.pod("answering", eip.nodes[0]))
        [answering] = other.pods()
        document = trace(eip, room, "plain", url(answering.ipv4 if family == 4 else answering.ipv6))
        assert document["hops"][-1]["at"] == f"node {eip.nodes[0].name}"
        assert f"the pod {other.namespace}/answering" in document["hops"][-1]["action"]


@pytest.mark.parametrize("family", [4, 6])
def test_the_host_behind_a_service_sees_the_eip_whatever_kube_proxy_masquerades(
    eip: CoilCluster, room: Room, outside: dict[int, str], family: int
) -> None:
    """By a node's port kube-proxy has what it sends on come from the node. What has an EIP keeps it."""
    found = serve_by_service(room, f"outside-v{family}", outside[family])
    node = eip.nodes[1]
    address = str(node.ipv4 if family == 4 else node.ipv6)
    by_node = _url(address, found["ports"][0]["nodePort"])
    wait_until(lambda: whom_it_sees(room, "plain", by_node) == address, what="kube-proxy masquerades another pod")
    for place in (_url(found["clusterIP"], _PORT), by_node):
        await_seen(room, place, as_=eip_of(eip, family))
        for pod in (CHOSEN, "plain"):
            told = trace(eip, room, pod, place)["sourceSeen"]
            check_arrival(eip, room, pod, place, source=told, host=outside[family])


def serve_by_service(room: Room, name: str, where: str) -> dict[str, Any]:
    """The spec of a new Service with a node's port, behind which is the URL's host."""
    host = urlsplit(where)
    family = "IPv6" if ":" in str(host.hostname) else "IPv4"
    spec = {"type": "NodePort", "ipFamilies": [family], "ports": [{"name": "http", "port": _PORT}]}
    room.create(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": room.namespace}, "spec": spec}
    )
    room.create(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": room.namespace,
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": family,
            "ports": [{"name": "http", "port": host.port}],
            "endpoints": [{"addresses": [host.hostname]}],
        }
    )
    found: dict[str, Any] = room.coil.read("service", name, f"--namespace={room.namespace}")["spec"]
    return found


def _url(address: str, port: int) -> str:
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/"


def test_traffic_goes_on_while_kube_proxy_is_started_again(
    eip: CoilCluster, room: Room, outside: dict[int, str]
) -> None:
    with unbroken_traffic(room, eip.nodes[1], outside):
        for node in eip.nodes:
            node.restart_proxy()
        # Which only a kube-proxy that works knows of.
        services = [serve_by_service(room, f"new-v{family}", place) for family, place in outside.items()]
        for family, service in zip(outside, services, strict=True):
            await_pod_seen(room, CHOSEN, _url(service["clusterIP"], _PORT), as_=eip_of(eip, family))


@pytest.mark.slow
def test_traffic_goes_on_while_coild_is_started_again(eip: CoilCluster, room: Room, outside: dict[int, str]) -> None:
    restarts = eip.programs.restarts("coild")
    with unbroken_traffic(room, eip.nodes[1], outside):
        eip.programs.kill("coild")
        wait_until(lambda: eip.programs.restarts("coild") == restarts + 2, what="both are started again")
        eip.release.wait_rolled_out(COILD)
        # Every pod of the node is looked at by then.
        room.run(room.pod("after", eip.nodes[1]))


def test_the_eip_moves_to_the_node_that_is_chosen_next(eip: CoilCluster, room: Room, outside: dict[int, str]) -> None:
    here, there = eip.nodes
    assert carrier(eip) == here.name
    with gateway_nodes(eip, there):
        eip.plane.kubectl("label", "node", here.name, f"{LABEL}-")
        wait_until(lambda: carrier(eip) == there.name, what="the EIP is on the other node")
        for family, place in outside.items():
            await_seen(room, place, as_=eip_of(eip, family))
        eip.plane.kubectl("label", "node", here.name, f"{LABEL}=true")
    wait_until(lambda: carrier(eip) == here.name, what="the EIP is back")


def test_an_agent_that_dies_is_started_by_the_kubelet_and_carries_on(
    eip: CoilCluster, room: Room, outside: dict[int, str]
) -> None:
    restarts = eip.programs.restarts(AGENT)
    eip.programs.kill(AGENT)
    wait_until(lambda: eip.programs.restarts(AGENT) == restarts + 2, what="both are started again")
    eip.release.wait_rolled_out(f"daemonset/coil-{AGENT}")
    for family, place in outside.items():
        await_seen(room, place, as_=eip_of(eip, family))
    assert eip.programs.complaints(AGENT, "egress-controller") == []
