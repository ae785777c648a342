"""Floating egress addresses beside other pod networks, without coild and without Coil's plugin: the profile eip-only.

One network is a bridge that masquerades what leaves the node. The other one is of routed veths, with what Calico sets
on a node: strict reverse path filters, and a FORWARD chain that drops all that is not to or from a pod's veth.
"""

from collections.abc import Iterator

import pytest

from integration.cluster.cluster import Cluster
from integration.cluster.node import Node
from integration.demo.outside_server import serve_outside
from integration.helm.release import Release, import_image
from integration.image.build import build_image
from integration.nodes.coil_cluster import CoilCluster, Families, Room
from integration.nodes.eip_gateway import (
    AGENT,
    CHOSEN,
    GATEWAY,
    await_seen,
    eip_of,
    gateway_document,
    gateway_nodes,
    unbroken_traffic,
)
from integration.nodes.other_plugin import install_plugin, route_pods, subnets
from integration.patience import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

BRIDGE, VETHS = "bridge", "ptp"
GROUP = "egressgateway.spidernet.io/v1beta1"


@pytest.fixture(scope="module", params=[BRIDGE, VETHS])
def network(request: pytest.FixtureRequest) -> Iterator[tuple[str, Cluster]]:
    """Two nodes with that plugin, whose pods reach each other."""
    plugin: str = request.param
    with Cluster.up(nodes=2) as cluster:
        for number, node in enumerate(cluster.nodes, start=1):
            start_plugin(node, number, plugin)
        route_pods(cluster)
        cluster.wait_ready()
        yield plugin, cluster


def start_plugin(node: Node, number: int, plugin: str) -> None:
    """Do what the plugin's pod does to a node when it starts, for the first time or again."""
    options = {"bridge": "pods", "isGateway": True, "ipMasq": True} if plugin == BRIDGE else {}
    install_plugin(node, number, plugin, **options)
    if plugin == VETHS:
        node.run(["sysctl", "--quiet", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.default.rp_filter=1"])
        for iptables in ("iptables", "ip6tables"):
            node.run([iptables, "-P", "FORWARD", "DROP"])
            for direction in ("-i", "-o"):
                node.run([iptables, "-I", "FORWARD", direction, "veth+", "-j", "ACCEPT"])


@pytest.fixture(scope="module")
def coil(network: tuple[str, Cluster]) -> CoilCluster:
    plugin, cluster = network
    import_image(cluster, build_image())
    values = {"eip.egressPolicies": True, "eip.forwardShim": plugin == VETHS, "eip.lease": "20s"}
    coil = CoilCluster(cluster, Release(cluster.plane, values, profiles=["eip-only"]))
    coil.release.install()
    coil.release.wait_rolled_out()
    return coil


@pytest.fixture(scope="module")
def room(coil: CoilCluster) -> Iterator[Room]:
    """Pods `chosen` and `plain` on the node that is no gateway, `other` on the gateway. The policy has no destinations,
    so it is about all that is not the cluster's, and the pods' networks are written down.
    """
    extra = [subnet for number in (1, 2) for subnet in subnets(number)]
    info = {
        "apiVersion": GROUP,
        "kind": "EgressClusterInfo",
        "metadata": {"name": "default"},
        "spec": {"extraCidr": extra},
    }
    coil.release.apply(info, gateway_document(coil))
    with gateway_nodes(coil, coil.nodes[0]), coil.room(Families.DUAL) as room:
        policy = {
            "apiVersion": GROUP,
            "kind": "EgressPolicy",
            "metadata": {"name": CHOSEN, "namespace": room.namespace},
            "spec": {"egressGatewayName": GATEWAY, "appliedTo": {"podSelector": {"matchLabels": {"app": CHOSEN}}}},
        }
        coil.release.apply(policy)
        room.run(*(room.pod(name, coil.nodes[1]) for name in (CHOSEN, "plain")), room.pod("other", coil.nodes[0]))
        yield room
        room.kubectl("delete", "egresspolicies", "--all", "--timeout=180s")


@pytest.fixture(scope="module")
def outside(coil: CoilCluster) -> Iterator[dict[int, str]]:
    with serve_outside(coil.cluster.network) as urls:
        yield urls


def test_nothing_else_of_coil_is_there(coil: CoilCluster) -> None:
    programs = {item["metadata"]["name"] for item in coil.read("pods", "--namespace=kube-system")["items"]}
    assert {name.rsplit("-", 1)[0] for name in programs if name.startswith("coil-egress-agent")} == {f"coil-{AGENT}"}
    assert not any(name.startswith(("coild", "coil-ipam")) for name in programs)
    for node in coil.nodes:
        assert not (node.cni_bin_dir / "coil").exists()
        assert len(list(node.cni_conf_dir.glob("*.conflist"))) == 1


def test_the_controller_has_the_rights_that_it_needs(coil: CoilCluster, room: Room, outside: dict[int, str]) -> None:
    """Fewer than where it serves Egresses."""
    await_seen(room, outside[4], as_=eip_of(coil, 4))
    logs = coil.plane.kubectl("logs", "deployment/coil-egress-controller", "--namespace=kube-system")
    assert [line for line in logs.splitlines() if "forbidden" in line.lower()] == []


@pytest.mark.parametrize("family", [4, 6])
def test_a_chosen_pod_is_seen_outside_as_its_eip(
    coil: CoilCluster, room: Room, outside: dict[int, str], family: int
) -> None:
    await_seen(room, outside[family], as_=eip_of(coil, family))


def test_traffic_goes_on_while_kube_proxy_and_the_plugin_are_started_again(
    network: tuple[str, Cluster], coil: CoilCluster, room: Room, outside: dict[int, str]
) -> None:
    """The plugin writes its binaries, its configuration and its rules anew, before all others'."""
    plugin, cluster = network
    with unbroken_traffic(room, coil.nodes[1], outside):
        for number, node in enumerate(cluster.nodes, start=1):
            node.restart_proxy()
            start_plugin(node, number, plugin)
        room.run(room.pod("after", coil.nodes[1]))
        room.kubectl("delete", "pod", "after")


def test_within_the_cluster_it_speaks_for_itself(coil: CoilCluster, room: Room, outside: dict[int, str]) -> None:
    """With all pods and nodes, in both families, while the policy is in force."""
    await_seen(room, outside[4], as_=eip_of(coil, 4))
    assert len(room.pods()) == 3
    wait_until(lambda: room.find_gaps() == [], what="all reach each other", timeout=120)
