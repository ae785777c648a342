"""Pods are packed on the fewest interfaces, so that others become empty and go; and a subnet that has free addresses
but no 16 consecutive ones still gives them.
"""

from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import Final

import pytest

from integration.aws import administrator
from integration.aws.node import EniNode, EniPod
from integration.aws.talk import ask
from integration.aws.world import FLAGS, PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

SMALL: Final = IPv4Network("10.1.9.0/26")
"""Four blocks of 16, of which AWS keeps some addresses in the first and in the last one."""
WHOLE_BLOCKS: Final = 2
NO_BLOCK: Final = "InsufficientCidrBlocks"


def wait_usable(pod: EniPod) -> None:
    """Return when the address of a pod that is gone may be given again."""
    wait_until(lambda: not pod.cools_down, what=f"{pod.address} has cooled down")


def count_interfaces(node: EniNode) -> int:
    return len(node.instance.interfaces)


def test_pods_fill_the_interface_that_serves_most_and_empty_ones_go(plane: ControlPlane) -> None:
    flags = ("--warm-ip-target=1", "--eni-unneeded-time=1s", "--eni-resync-interval=1s")
    with EniWorld.up(plane, nodes=1) as world:
        node = world.nodes[0]
        with node.running_coild(*FLAGS, *flags):
            pods = [node.add_pod() for _ in range(PODS_OF_INTERFACE + 1)]
            assert [pod.interface.device for pod in pods] == [0] * PODS_OF_INTERFACE + [1]
            first, last = pods[0], pods[-1]
            first.delete()
            wait_usable(first)
            # Both interfaces have an address to give. The second one has a single pod: it is to become empty.
            again = node.add_pod()
            assert again.interface.device == 0
            last.delete()
            again.delete()
            wait_until(lambda: count_interfaces(node) == 1, what="the interface that serves nobody is gone")
            for pod in pods[1:-1]:
                assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
        assert world.spoofed() == []


@pytest.fixture
def fragmented(plane: ControlPlane) -> Iterator[EniWorld]:
    """Its only subnet has most addresses free, and an address of somebody else in each whole block."""
    with EniWorld.up(plane, nodes=1, subnets=(str(SMALL),)) as world:
        subnet = world.endpoint.primary_interface.subnet.id
        blocks = list(SMALL.subnets(new_prefix=28))[1 : 1 + WHOLE_BLOCKS]
        spoilers = tuple(str(block[7]) for block in blocks)
        administrator.attach(world.ec2, world.endpoint.id, subnet, device=1, addresses=spoilers)
        yield world


def test_a_subnet_without_16_consecutive_addresses_gives_single_ones(fragmented: EniWorld) -> None:
    world = fragmented
    node = world.nodes[0]
    before = len(world.ec2.calls)
    with node.running_coild(*FLAGS, "--enable-prefix-delegation=true", "--warm-prefix-target=1"):
        pods = [node.add_pod() for _ in range(PODS_OF_INTERFACE + 1)]
        for pod in pods:
            assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
        assert NO_BLOCK in {call.error for call in world.ec2.calls[before:]}, "EC2 had a block: this is no example"
        assert [each.prefixes for each in node.instance.interfaces] == [()] * len(node.instance.interfaces)
    assert world.spoofed() == []
