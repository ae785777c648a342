"""A node whose subnet has no addresses left, and those that it turns to."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from coil.eni.tag import CLUSTER_TAG, INSTANCE_TAG, SUBNET_TAG, SUBNET_VALUE
from integration.aws import administrator
from integration.aws.ec2_state import Interface, read_state
from integration.aws.node import CLUSTER, EniNode
from integration.aws.strict_ec2 import REGION
from integration.aws.talk import ask
from integration.aws.world import FLAGS, PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

TAGS: Final = {SUBNET_TAG: SUBNET_VALUE}
LEFT: Final = 1
"""Addresses of the dry subnet that pods can have, which is less than the primary interface has room for."""
DRY: Final = "InsufficientFreeAddressesInSubnet"
REFUSED: Final = "InvalidParameterCombination"
"""EC2's word for an interface in another zone than the instance."""
TARGETS: Final = ("--warm-ip-target=0", "--eni-unneeded-time=1h")


@dataclass(frozen=True, slots=True)
class DryWorld:
    """A node whose subnet is nearly dry, a subnet with room that is tagged, and a larger one in another zone."""

    world: EniWorld
    roomy: str
    elsewhere: str

    @property
    def node(self) -> EniNode:
        return self.world.nodes[0]

    def interfaces_in(self, subnet: str) -> list[Interface]:
        return [each for each in read_state(self.world.ec2).interfaces.values() if each.subnet.id == subnet]


@pytest.fixture(scope="module")
def dry(plane: ControlPlane) -> Iterator[DryWorld]:
    with EniWorld.up(plane, nodes=1, subnets=("10.1.0.0/28", "10.1.1.0/24")) as world:
        roomy = world.ec2.subnet("10.1.2.0/24", tags=TAGS)
        elsewhere = world.ec2.subnet("10.1.4.0/22", tags=TAGS, zone=f"{REGION}b")
        world.ec2.subnet("10.2.0.0/22", tags=TAGS, vpc=world.ec2.vpc("10.2.0.0/16"))
        administrator.fill(world.ec2, world.nodes[0].instance.primary_interface.subnet.id, leave=LEFT)
        yield DryWorld(world, roomy, elsewhere)
        assert world.spoofed() == []


def test_a_half_filled_interface_in_a_dry_subnet_is_left_for_one_in_another_subnet(dry: DryWorld) -> None:
    world, node = dry.world, dry.node
    with node.running_coild(*FLAGS, *TARGETS):
        pods = [node.add_pod() for _ in range(LEFT + PODS_OF_INTERFACE)]
        primary, second = node.instance.interfaces
        assert (len(primary.addresses) - 1, second.subnet.id) == (LEFT, dry.roomy)
        for pod in pods:
            assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
            assert ask(world.endpoint.host, pod.host, pod.address) == str(world.endpoint.primary)
    assert 1 <= [call.error for call in world.ec2.calls].count(DRY) <= 2
    assert dry.interfaces_in(dry.elsewhere) == []


def test_an_interface_that_could_not_be_attached_is_deleted(dry: DryWorld) -> None:
    """One of this node's in another zone is not even tried; one that EC2 refuses goes, and another one is made."""
    world, node = dry.world, dry.node
    before = len(world.ec2.calls)
    tags = {CLUSTER_TAG: CLUSTER, INSTANCE_TAG: node.instance.id}
    administrator.create(world.ec2, dry.elsewhere, tags=tags)
    world.ec2.faults.refusals["AttachNetworkInterface"] = [REFUSED]
    with node.running_coild(*FLAGS, *TARGETS):
        pods = [node.add_pod() for _ in range(LEFT + PODS_OF_INTERFACE + 1)]
        assert ask(pods[-1].host, world.endpoint.host, world.endpoint.primary) == str(pods[-1].address)
        wait_until(lambda: dry.interfaces_in(dry.elsewhere) == [], what="the one in another zone is deleted")
        wait_until(
            lambda: {each.instance for each in dry.interfaces_in(dry.roomy)} == {node.instance.id},
            what="the one that was refused is deleted",
        )
    attachments = [call.error for call in world.ec2.calls[before:] if call.action == "AttachNetworkInterface"]
    assert attachments == [REFUSED, ""]
