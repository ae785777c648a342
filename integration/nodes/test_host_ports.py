"""Host ports as the default installation has them, with a real kubelet and containerd, which tells the plugin of them.

With portmap in place of coild they are in test_plugin_chain.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from coil.podnet.host_port import TABLE
from integration.cluster.node import Node, NodeCommandError
from integration.demo.reach import FETCH, TRY_FETCH
from integration.demo.workload import PORT, server_container
from integration.helm.release import COILD
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

HOST_PORT = 18081
FAMILIES = (4, 6)


@pytest.fixture(scope="module")
def room(coil: CoilCluster) -> Iterator[Room]:
    """The pod in question, another one on its node, and one on the other node."""
    here, there = coil.nodes
    with coil.room() as opened:
        opened.run(published(opened, "published", here), opened.pod("near", here), opened.pod("far", there))
        yield opened


def published(room: Room, name: str, node: Node, **port: object) -> dict[str, Any]:
    """A server with a host port."""
    ports = [{"containerPort": PORT, "hostPort": HOST_PORT, **port}]
    return room.pod(name, node, containers=[{**server_container(), "ports": ports}])


def node_url(node: Node, version: int) -> str:
    return f"http://{node.ipv4 if version == 4 else f'[{node.ipv6}]'}:{HOST_PORT}/name"


def table(coil: CoilCluster, node: Node) -> str:
    return coil.kernel(node).run("nft", "list", "table", "inet", TABLE)


@pytest.mark.parametrize("version", FAMILIES)
def test_from_both_nodes(coil: CoilCluster, room: Room, version: int) -> None:
    here, there = coil.nodes
    for asking in (there, here):
        assert asking.run([*FETCH, node_url(here, version)]) == "published\n"
    with pytest.raises(NodeCommandError):
        here.run([*TRY_FETCH, node_url(there, version)])


def test_from_the_nodes_loopback(coil: CoilCluster, room: Room) -> None:
    assert coil.nodes[0].run([*FETCH, f"http://127.0.0.1:{HOST_PORT}/name"]) == "published\n"


@pytest.mark.parametrize("version", FAMILIES)
@pytest.mark.parametrize("pod", ["near", "far", "published"])
def test_from_pods_itself_included(coil: CoilCluster, room: Room, pod: str, version: int) -> None:
    assert room.kubectl("exec", pod, "--", *FETCH, node_url(coil.nodes[0], version)) == "published\n"


def test_one_address_of_the_node(coil: CoilCluster) -> None:
    node = coil.nodes[1]
    with coil.room() as room:
        room.run(published(room, "bound", node, hostIP=str(node.ipv4)))
        assert coil.nodes[0].run([*FETCH, node_url(node, 4)]) == "bound\n"
        with pytest.raises(NodeCommandError):
            coil.nodes[0].run([*TRY_FETCH, node_url(node, 6)])


@pytest.mark.slow
def test_it_outlives_coild(coil: CoilCluster, room: Room) -> None:
    here, there = coil.nodes
    before = table(coil, here)
    coil.plane.kubectl("--namespace=kube-system", "rollout", "restart", COILD)
    coil.release.wait_rolled_out(COILD)
    assert table(coil, here) == before
    for version in FAMILIES:
        assert there.run([*FETCH, node_url(here, version)]) == "published\n"


def test_it_is_back_after_somebody_has_flushed_the_ruleset(coil: CoilCluster, room: Room) -> None:
    here, there = coil.nodes
    coil.kernel(here).run("nft", "delete", "table", "inet", TABLE)

    def answered() -> bool:
        try:
            return there.run([*TRY_FETCH, node_url(here, 4)]) == "published\n"
        except NodeCommandError:
            return False

    wait_until(answered, what="the host port is back")


def test_it_moves_with_the_pod_and_goes_with_it(coil: CoilCluster) -> None:
    node = coil.nodes[1]
    with coil.room() as room:
        for name in ("first", "second"):
            room.run(published(room, name, node))
            assert coil.nodes[0].run([*FETCH, node_url(node, 4)]) == f"{name}\n"
            room.kubectl("delete", "pod", name, "--timeout=180s")
            wait_until(lambda: str(HOST_PORT) not in table(coil, node), what="nothing leads to the pod")
