"""Pods with IPv6 addresses, of a prefix of the primary interface: nothing is translated, wherever their packets go."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Network

import pytest

from integration.aws import administrator
from integration.aws.node import EniPod
from integration.aws.talk import ask, shout
from integration.aws.vpc_plan import INTERNET6
from integration.aws.world import FLAGS, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.egress.capture import Capture, Packet

pytestmark = pytest.mark.apiserver

METADATA6 = "fd00:ec2::254"


@dataclass(frozen=True, slots=True)
class Populated:
    """The world, with two pods on node-0 and one on node-1."""

    world: EniWorld
    pods: list[EniPod]


@pytest.fixture(scope="module")
def populated(plane: ControlPlane) -> Iterator[Populated]:
    with EniWorld.up(plane, ipv6=True) as world:
        first, second = world.nodes
        for node in world.nodes:
            node.start_coild(*FLAGS, "--enable-ipv6=true")
        yield Populated(world, [first.add_pod(), first.add_pod(), second.add_pod()])
        assert world.spoofed() == []


def test_an_address_is_of_a_prefix_of_the_primary_interface(populated: Populated) -> None:
    for pod in populated.pods:
        interface = pod.interface
        assert interface.device == 0
        [prefix] = [each for each in interface.prefixes if isinstance(each, IPv6Network)]
        assert prefix.prefixlen == 80
        assert pod.address in prefix
        assert pod.sandbox.kernel.global_addresses() == {str(pod.address)}


def test_pods_nodes_and_a_machine_of_the_vpc_reach_each_other(populated: Populated) -> None:
    world = populated.world
    for pod in populated.pods:
        for other in populated.pods:
            if other is not pod:
                assert ask(pod.host, other.host, other.address) == str(pod.address)
        for instance in (world.endpoint, *(node.instance for node in world.nodes)):
            assert ask(pod.host, instance.host, instance.ipv6) == str(pod.address)
            assert ask(instance.host, pod.host, pod.address)


def test_the_internet_sees_a_pods_own_address(populated: Populated) -> None:
    world = populated.world
    administrator.allow(world.ec2, administrator.default_group(world.ec2), network6=f"{INTERNET6}/128")
    for pod in populated.pods:
        with Capture(pod.node.namespaces.net) as seen:
            assert ask(pod.host, world.vpc.internet, INTERNET6) == str(pod.address)
            assert ask(world.vpc.internet, pod.host, pod.address) == str(INTERNET6)
            ends = (str(INTERNET6), str(pod.address))
            seen.wait_for(partial(_is_from_to, ends), what="what the internet has sent")


def test_metadata_is_not_for_pods(populated: Populated) -> None:
    pod = populated.pods[0]
    with Capture(pod.node.namespaces.net) as seen:
        shout(pod.host, METADATA6, port=80)
        ask(pod.host, populated.world.endpoint.host, populated.world.endpoint.ipv6)
        seen.wait_for(lambda packet: packet.source == str(pod.address), what="what was sent after it")
    assert not seen.select(lambda packet: packet.destination == METADATA6)


def _is_from_to(ends: tuple[str, str], packet: Packet) -> bool:
    return (packet.source, packet.destination) == ends
