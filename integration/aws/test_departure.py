"""A node whose pods have gone gives its interfaces back, unless it is about to leave: then they go with its instance.

What is detached and not deleted when an instance ends stays behind, and keeps its security groups and the VPC.
"""

import signal
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from coil.aws.metadata import END_NOTICES
from coil.eni.tag import CLUSTER_TAG, INSTANCE_TAG
from integration.aws.ec2_state import Interface, read_state
from integration.aws.node import CLUSTER, EniNode
from integration.aws.world import FLAGS, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

DETACH: Final = "DetachNetworkInterface"
GIVING_BACK: Final = (*FLAGS, "--warm-ip-target=1", "--eni-unneeded-time=1s")
KEPT: Final = "no interface is detached: the node may be leaving"


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane) as world:
        yield world
        assert world.spoofed() == []


def run_empty(node: EniNode) -> None:
    """Pods on two interfaces, which go again."""
    for pod in node.pods_on(0, 1):
        pod.delete()


def kept_because(node: EniNode) -> list[str]:
    """Why coild has kept interfaces, in the order of its log."""
    return [entry["reason"] for entry in node.coild.process.entries() if entry["event"] == KEPT]


def unattached(world: EniWorld) -> list[Interface]:
    return [each for each in read_state(world.ec2).interfaces.values() if not each.instance]


@pytest.mark.parametrize("sign", ["cordon", "spot"])
def test_a_node_that_leaves_detaches_nothing_and_one_that_stays_does(world: EniWorld, sign: str) -> None:
    node = world.nodes[0]
    before = world.ec2.count(DETACH)
    with node.running_coild(*GIVING_BACK):
        told = len(kept_because(node))
        if sign == "cordon":
            world.plane.kubectl("cordon", node.name)
        else:
            world.metadata.notices[END_NOTICES[0]] = '{"action": "terminate", "time": "2030-01-01T12:00:00Z"}'
        try:
            run_empty(node)
            wait_until(lambda: len(kept_because(node)) > told, what="coild has kept the interface")
            assert {"cordon": "cordoned", "spot": "spot/instance-action"}[sign] in kept_because(node)[-1]
            assert world.ec2.count(DETACH) == before
            assert len(node.instance.interfaces) == 2
        finally:
            world.plane.kubectl("uncordon", node.name)
            world.metadata.notices.clear()
        node.coild.crash()  # the next process asks at once
        node.coild.wait_ready()
        wait_until(lambda: len(node.instance.interfaces) == 1, what="the node has given its interface back")
        wait_until(lambda: not unattached(world), what="and has deleted it")


def test_killed_between_detach_and_delete(world: EniWorld) -> None:
    """The next process deletes it; of an instance that ends then, the leader does."""
    node = world.nodes[1]
    killed = threading.Event()

    def kill() -> None:
        if not killed.is_set() and unattached(world):
            node.coild.process.send_signal(signal.SIGKILL)
            killed.set()

    with node.running_coild(*GIVING_BACK):
        run_empty(node)
        world.ec2.watchers.append(kill)
        try:
            assert killed.wait(180.0)
        finally:
            world.ec2.watchers.remove(kill)
        node.coild.process.wait(60.0)
        [left] = unattached(world)
        with world.ec2.still() as backend:
            tags = {tag["key"]: tag["value"] for tag in backend.enis[left.id].get_tags()}
        assert (tags[CLUSTER_TAG], tags[INSTANCE_TAG]) == (CLUSTER, node.instance.id), "so the leader would find it"
        node.coild.start()
        node.coild.wait_ready()
        wait_until(lambda: not unattached(world), what="nothing is left over")
        with node.pod() as pod:
            pod.check()
