"""Blocks on real nodes: they come when pods need them, are announced while they are used, and go when they are not."""

from collections.abc import Sequence
from ipaddress import ip_network

import pytest

from integration.cluster.node import Node
from integration.demo.inventory import BlockRow
from integration.nodes.coil_cluster import CoilCluster, Families
from integration.nodes.conftest import OpenRoom
from integration.patience import wait_until

pytestmark = pytest.mark.cluster


def test_kubectl_prints_a_blocks_node_pool_and_networks(open_room: OpenRoom, coil: CoilCluster) -> None:
    dual, ipv4 = open_room(), open_room(Families.IPV4)
    node = coil.nodes[1]
    for room in (dual, ipv4):
        room.create(room.pod("only", node))
    for room in (dual, ipv4):
        room.wait_ready("--all")
    header, *rows = [line.split() for line in coil.plane.kubectl("get", "addressblocks").splitlines()]
    assert header[:5] == ["NAME", "NODE", "POOL", "IPV4", "IPV6"]
    for room in (dual, ipv4):
        [block] = room.blocks()
        [row] = [row for row in rows if row[0] == block.name]
        assert row[: 3 + len(block.networks)] == [block.name, "node-2", room.pool, *block.networks]


def test_blocks_come_with_pods_are_announced_and_go_with_them(open_room: OpenRoom, coil: CoilCluster) -> None:
    room = open_room(bits=1)
    here, there = coil.nodes
    room.run(*(room.pod(f"pod-{number}", here) for number in range(5)))

    blocks = room.blocks()
    users = {block.name: [pod.name for pod in room.pods() if pod.block == block.name] for block in blocks}
    assert sorted(len(names) for names in users.values()) == [1, 2, 2], "no more blocks than five pods need"
    assert {block.node for block in blocks} == {here.name}
    wait_until(lambda: is_announced(coil, blocks, by=here, to=there), what="all blocks are announced")
    assert room.find_gaps() == []

    # Only the block that is empty now goes.
    [(vacated, [lodger])] = [(name, names) for name, names in users.items() if len(names) == 1]
    kept = [block for block in blocks if block.name != vacated]
    room.kubectl("delete", "pod", lodger)
    wait_until(lambda: room.blocks() == kept, what=f"{vacated} is given back")
    gone = [block for block in blocks if block.name == vacated]
    wait_until(lambda: is_unknown(coil, gone, at=there), what=f"{vacated} is withdrawn")
    assert is_announced(coil, kept, by=here, to=there)

    room.clear()
    wait_until(lambda: room.blocks() == [], what="the other blocks are given back")
    wait_until(lambda: is_unknown(coil, blocks, at=there), what="the other blocks are withdrawn")
    assert is_unknown(coil, blocks, at=here)


def test_a_pool_that_is_deleted_stays_while_its_pods_do_and_gives_nothing_more(
    open_room: OpenRoom, coil: CoilCluster
) -> None:
    room = open_room(bits=0)
    node = coil.nodes[0]
    room.run(room.pod("tenant", node))
    room.kubectl("delete", "addresspool", room.pool, "--wait=false")

    room.create(room.pod("latecomer", node))
    wait_until(lambda: room.events("latecomer", reason="FailedCreatePodSandBox"), what="the latecomer is refused")
    assert "out of blocks" in room.events("latecomer", reason="FailedCreatePodSandBox")[0]
    assert coil.read("addresspool", room.pool)["metadata"]["deletionTimestamp"]
    [tenant] = room.pods()
    assert tenant.name == "tenant"
    assert [block.name for block in room.blocks()] == [tenant.block]
    assert room.find_gaps() == []

    room.clear()
    coil.plane.kubectl("wait", "--for=delete", f"addresspool/{room.pool}", "--timeout=180s")
    assert room.blocks() == []


def is_announced(coil: CoilCluster, blocks: Sequence[BlockRow], *, by: Node, to: Node) -> bool:
    """Whether BIRD has put a route to each network of the blocks into the node's main table."""
    gateways = {4: str(by.ipv4), 6: str(by.ipv6)}
    learned = routes(coil, to)
    return all(learned.get(network) == gateways[ip_network(network).version] for network in networks(blocks))


def is_unknown(coil: CoilCluster, blocks: Sequence[BlockRow], *, at: Node) -> bool:
    """Whether neither the node's main table nor what it exports has any of the blocks' networks."""
    known = routes(coil, at).keys() | coil.kernel(at).destinations("119").keys()
    return known.isdisjoint(networks(blocks))


def networks(blocks: Sequence[BlockRow]) -> list[str]:
    return [network for block in blocks for network in block.networks]


def routes(coil: CoilCluster, node: Node) -> dict[str, str]:
    """The destinations in a node's main table that lead to another node, and to which."""
    found = coil.kernel(node).routes("main")
    return {
        str(ip_network(route["dst"])): route["gateway"]
        for route in found
        if "gateway" in route and route["dst"] != "default"
    }
