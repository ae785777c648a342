"""Pods with IPv6 addresses, of a prefix of the primary interface: nothing is translated, wherever their packets go."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Network

import pytest

from coild.eni.node_network import REAPPLY_SECONDS
from integration.aws import administrator
from integration.aws.node import EniPod
from integration.aws.router_advertisement import LONG, advertise, advertised_route, forget_configured_route
from integration.aws.talk import ask, shout
from integration.aws.vpc_plan import INTERNET6
from integration.aws.world import FLAGS, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.egress.capture import Capture, Packet
from integration.kernel_state import KernelState
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

METADATA6 = "fd00:ec2::254"
SHORT = 4
"""Seconds; AWS's routers say half an hour."""


@dataclass(frozen=True, slots=True)
class Populated:
    """The world, with two pods on node-0 and one on node-1."""

    world: EniWorld
    pods: list[EniPod]


@pytest.fixture(scope="module")
def populated(plane: ControlPlane) -> Iterator[Populated]:
    with EniWorld.up(plane, ipv6=True) as world:
        administrator.allow(world.ec2, administrator.default_group(world.ec2), network6=f"{INTERNET6}/128")
        first, second = world.nodes
        for node in world.nodes:
            forget_configured_route(node.instance)
            advertise(world.vpc, node.instance, lifetime=LONG)
            wait_until(partial(advertised_route, node.instance), what="the advertised route")
            node.start_coild(*FLAGS, "--enable-ipv6=true")
        yield Populated(world, [first.add_pod(), first.add_pod(), second.add_pod()])
        assert world.spoofed() == []


def test_a_node_that_begins_to_forward_keeps_the_default_route_that_was_advertised(populated: Populated) -> None:
    """There was one advertisement, before coild was started."""
    for node in populated.world.nodes:
        kernel = KernelState(str(node.namespaces.net))
        assert kernel.sysctl("net/ipv6/conf/all/forwarding") == "1"
        assert kernel.sysctl("net/ipv6/conf/eth0/accept_ra") == "2"
        assert advertised_route(node.instance) is not None


def test_the_default_route_outlives_its_lifetime_as_long_as_a_router_renews_it(populated: Populated) -> None:
    pod, vpc = populated.pods[0], populated.world.vpc
    instance = pod.node.instance
    began = time.monotonic()

    def renew() -> bool:
        advertise(vpc, instance, lifetime=SHORT)
        route = advertised_route(instance)
        # A route of the long lifetime is from before: this router was not listened to.
        return route is not None and route["expires"] <= SHORT and time.monotonic() > began + 2 * SHORT

    wait_until(renew, what="the renewed route", pause=SHORT / 8)
    assert_reaches_internet(populated, pod)
    wait_until(lambda: advertised_route(instance) is None, what="the end of a route that nobody renews")
    advertise(vpc, instance, lifetime=LONG)
    wait_until(lambda: advertised_route(instance), what="the route of a router that is back")
    assert_reaches_internet(populated, pod)


def test_that_somebody_has_the_node_not_listen_to_routers_is_mended(populated: Populated) -> None:
    node = populated.world.nodes[1]
    kernel = KernelState(str(node.namespaces.net))
    for _ in range(2):  # the first may be found by a comparison that something else has caused
        node.namespaces.set_sysctls(["net.ipv6.conf.eth0.accept_ra=1"])
        mended = partial(wait_until, lambda: kernel.sysctl("net/ipv6/conf/eth0/accept_ra") == "2", what="accept_ra")
        mended(timeout=REAPPLY_SECONDS / 2)


def assert_reaches_internet(populated: Populated, pod: EniPod) -> None:
    assert ask(pod.host, populated.world.vpc.internet, INTERNET6) == str(pod.address)


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
