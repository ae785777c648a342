"""Interfaces on the instance that are not coild's to use: whatever happens to the node, nothing happens to them."""

from collections.abc import Iterator
from typing import Final

import pytest

from coil.eni.tag import NO_MANAGE_TAG
from integration.aws import administrator
from integration.aws.node import EniNode
from integration.aws.talk import ask
from integration.aws.world import FLAGS, PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

INTERFACES: Final = 3


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane) as world:
        yield world
        assert world.spoofed() == []


def test_an_interface_of_somebody_else_stays_as_it_is(world: EniWorld) -> None:
    """With groups of its own, and addresses: a node that fills up, changes of groups, and one that empties again."""
    node = world.nodes[0]
    group = administrator.make_group(world.ec2, "theirs")
    subnet = node.instance.primary_interface.subnet.id
    theirs = administrator.attach(
        world.ec2, node.instance.id, subnet, device=1, addresses=("10.1.0.201", "10.1.0.202"), group=group
    )
    [before] = [each for each in node.instance.interfaces if each.id == theirs]
    with node.running_coild(*FLAGS, "--warm-ip-target=0", "--eni-unneeded-time=1s", "--eni-resync-interval=1s"):
        pods = [node.add_pod() for _ in range((INTERFACES - 1) * PODS_OF_INTERFACE)]
        assert theirs not in {pod.interface.id for pod in pods}
        assert ip_max(node) == (INTERFACES - 1) * PODS_OF_INTERFACE
        primary = node.instance.primary_interface
        closed = administrator.make_group(world.ec2, "closed")
        administrator.set_groups(world.ec2, primary.id, closed)
        wait_until(
            lambda: [each.groups for each in node.instance.interfaces] == [(closed,), (group,), (closed,)],
            what="Coil's interface is in the new group, and the other one is not",
        )
        administrator.set_groups(world.ec2, primary.id, *primary.groups)
        for pod in pods:
            pod.delete()
        wait_until(
            lambda: [each.id for each in node.instance.interfaces] == [primary.id, theirs],
            what="Coil's interface is given back",
        )
    [after] = [each for each in node.instance.interfaces if each.id == theirs]
    assert after == before


def test_an_interface_that_is_to_be_left_alone_keeps_its_pods_and_gets_no_others(world: EniWorld) -> None:
    node = world.nodes[1]
    with node.running_coild(*FLAGS, "--warm-ip-target=0", "--acquire-timeout=1s", "--eni-unneeded-time=1s"):
        first, second, *more = node.pods_on(0, 1)
        left_alone = second.interface
        administrator.tag(world.ec2, left_alone.id, NO_MANAGE_TAG, "true")
        node.coild.crash()
        node.coild.wait_ready()
        wait_until(lambda: ip_max(node) == (INTERFACES - 1) * PODS_OF_INTERFACE, what="it does not count any more")
        second.check()
        for pod in (first, second):
            assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
        free = (INTERFACES - 1) * PODS_OF_INTERFACE - sum(pod.interface.id != left_alone.id for pod in (first, *more))
        later = [node.add_pod() for _ in range(free)]
        assert left_alone.id not in {pod.interface.id for pod in later}
        [after] = [each for each in node.instance.interfaces if each.id == left_alone.id]
        assert after == left_alone
        administrator.tag(world.ec2, left_alone.id, NO_MANAGE_TAG, "false")


def test_interfaces_for_efa_take_no_place_and_break_nothing(world: EniWorld) -> None:
    """Two of another network card, with numbers that the first one uses, too. They have no address and no link."""
    node = world.nodes[1]
    subnet = node.instance.primary_interface.subnet.id
    efa = {administrator.attach_for_efa(world.ec2, node.instance.id, subnet, card=1, device=each) for each in (0, 1)}
    before = [each for each in node.instance.interfaces if each.id in efa]
    with node.running_coild(*FLAGS, "--warm-ip-target=1", "--eni-resync-interval=1s"):
        pods = [node.add_pod() for _ in range(INTERFACES * PODS_OF_INTERFACE)]
        assert ip_max(node) == INTERFACES * PODS_OF_INTERFACE
        assert sorted((each.card, each.device) for each in node.instance.interfaces) == [
            *((0, device) for device in range(INTERFACES)),
            *((1, device) for device in (0, 1)),
        ]
        for pod in pods[::PODS_OF_INTERFACE]:
            assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
        node.coild.crash()
        node.coild.wait_ready()
        for pod in pods:
            pod.check()
    assert [each for each in node.instance.interfaces if each.id in efa] == before


def ip_max(node: EniNode) -> int:
    """By the node's metrics; 0 while EC2 has not told."""
    return node.metrics().get("coil_node_eni_ip_max", 0)
