"""Coil's programs killed under real pods: traffic does not notice, and afterwards nothing is lost or left over."""

from typing import Any

import pytest

from integration.deployment import apply
from integration.helm.release import COILD, IPAM_CONTROLLER
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.nodes.conftest import OpenRoom
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

GHOST = "ghost"
TIDY_SECONDS = 300
WAITING = ("FailedCreatePodSandBox", "NetworkNotReady")
"""An ADD has failed, or the kubelet has learnt by STATUS that none would succeed."""


@pytest.mark.slow
def test_pods_do_not_notice_that_coild_is_killed(open_room: OpenRoom, coil: CoilCluster) -> None:
    room = open_room(bits=1)
    node, other = coil.nodes
    room.run(*(room.pod(name, node) for name in ("doomed", "left", "stays")), room.pod("right", other))
    pods, blocks = room.pods(), block_uids(room)
    doomed = next(pod for pod in pods if pod.name == "doomed")
    survivors = [pod for pod in pods if pod != doomed]
    kernel = coil.kernel(node)
    link = kernel.destinations("116")[f"{doomed.ipv4}/32"]

    def waits(reason: str) -> bool:
        return bool(room.events("newcomer", reason=reason))

    with coil.programs.away("coild", COILD):
        assert room.find_gaps(survivors) == []
        room.kubectl("delete", "pod", doomed.name)
        room.create(room.pod("newcomer", node))
        wait_until(lambda: any(map(waits, WAITING)), what="the newcomer has to wait")
        assert "newcomer" not in {pod.name for pod in room.pods()}

    room.wait_ready("newcomer")
    # A kubelet that could not end a sandbox of a pod that is gone tries again when it next tidies up, once a minute.
    wait_until(lambda: kernel.link(link) is None, what="the deleted pod is detached", timeout=TIDY_SECONDS)
    after = room.pods()
    assert [pod for pod in after if pod.name != "newcomer"] == survivors
    assert len({pod.ipv4 for pod in after}) == len({pod.ipv6 for pod in after}) == 4
    kept = block_uids(room)
    assert {pod.block for pod in survivors} <= blocks.keys()
    assert all(kept[pod.block] == blocks[pod.block] for pod in survivors)
    assert room.find_gaps() == []
    # One for each pod, and none for those that are gone or were not made.
    assert len(kernel.pod_links()) == len([pod for pod in after if pod.node == node.name])


def test_a_node_whose_coild_is_away_is_not_ready(coil: CoilCluster) -> None:
    """The runtime asks by STATUS, CNI 1.1, so that the scheduler learns of it before any pod has to wait."""

    def network_is_down(node: dict[str, Any]) -> bool:
        [ready] = [each for each in node["status"]["conditions"] if each["type"] == "Ready"]
        return ready["status"] == "False" and "coild" in ready["message"]

    with coil.programs.away("coild", COILD):
        wait_until(lambda: all(map(network_is_down, coil.read("nodes")["items"])), what="no node is ready")
    coil.cluster.wait_ready()


@pytest.mark.slow
def test_a_pod_gets_its_block_after_the_controllers_were_killed(open_room: OpenRoom, coil: CoilCluster) -> None:
    room = open_room(bits=0)
    node, other = coil.nodes
    room.run(room.pod("first", node))
    before = room.pods()

    with coil.programs.away("ipam-controller", IPAM_CONTROLLER):
        room.create(room.pod("second", node), room.pod("third", other))
        wait_until(lambda: len(requests_of(coil, room)) == 2, what="a request from each node")
        assert room.pods() == before
        assert room.find_gaps(before) == []

    room.wait_ready("--all")
    pods = room.pods()
    assert [pod for pod in pods if pod.name == "first"] == before
    assert sorted(pod.block for pod in pods) == [block.name for block in room.blocks()]
    assert len(room.blocks()) == 3
    assert room.find_gaps() == []
    wait_until(lambda: requests_of(coil, room) == [], what="the answered requests are deleted")


def test_the_blocks_of_a_node_that_is_gone_are_collected(open_room: OpenRoom, coil: CoilCluster) -> None:
    room = open_room(bits=0)
    apply(coil.plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": GHOST}})
    try:
        node = coil.read("node", GHOST)["metadata"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": GHOST, "uid": node["uid"], "controller": False}
        for number in (1, 2):
            request = {
                "apiVersion": "coil.cybozu.com/v2",
                "kind": "BlockRequest",
                "metadata": {"name": f"{GHOST}-{number}", "ownerReferences": [owner]},
                "spec": {"nodeName": GHOST, "poolName": room.pool},
            }
            apply(coil.plane, request)
        names = [f"blockrequest/{GHOST}-{number}" for number in (1, 2)]
        coil.plane.kubectl("wait", "--for=condition=Complete", *names, "--timeout=180s")
        assert [block.node for block in room.blocks()] == [GHOST, GHOST]
    finally:
        coil.plane.kubectl("delete", "node", GHOST, "--timeout=180s")
    wait_until(lambda: room.blocks() == [], what="the blocks are collected")
    wait_until(lambda: requests_of(coil, room) == [], what="the requests go with their owner")


def block_uids(room: Room) -> dict[str, str]:
    items = room.coil.read("addressblocks", f"--selector=coil.cybozu.com/pool={room.pool}")["items"]
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


def requests_of(coil: CoilCluster, room: Room) -> list[dict[str, Any]]:
    """The requests for blocks of the room's pool."""
    return [item for item in coil.read("blockrequests")["items"] if item["spec"]["poolName"] == room.pool]
