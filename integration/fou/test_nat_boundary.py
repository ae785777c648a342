"""What a router does not forward, whoever sends it: packets made by hand, captures outside, the router's counters."""

import socket
import struct
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path
from typing import Final

import pytest

from coil.egress.gateway import SourcePort
from coil.egress.router_plan import ROUTER_TABLE, NatCounterKind, counter_name
from coil.kernel.family import Family, IPAddress
from coil.kernel.route import DEFAULT_NETWORKS
from coil.nft.table_sync import read_counters
from integration.fou.nat_world import NatWorld, ask, bound, kernel_state, lines
from integration.nat_stage import OUTSIDE, Host, NatStage
from integration.netns.forged_packet import ALL_NODES, icmpv6, udp
from integration.netns.netns import Netns
from integration.packet_capture import TUNNEL_PORT, Capture
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

ROUTER_ADVERTISEMENT = 134
families = pytest.mark.parametrize("family", list(Family))
ELSEWHERE: Final[dict[Family, IPAddress]] = {
    Family.IPV4: IPv4Address("192.0.2.9"),
    Family.IPV6: IPv6Address("2001:db8:9::9"),
}
"""Addresses that the outside host has, too."""
PRIVATE: Final[dict[Family, IPAddress]] = {Family.IPV4: IPv4Address("10.99.0.9"), Family.IPV6: IPv6Address("fd99::9")}
METADATA: Final[dict[Family, IPAddress]] = {
    Family.IPV4: IPv4Address("169.254.169.254"),
    Family.IPV6: IPv6Address("fd00:ec2::254"),
}


@pytest.fixture
async def world() -> AsyncIterator[NatWorld]:
    """Client and router are connected; the outside host has all the addresses above."""
    with NatStage() as stage:
        for address in (*ELSEWHERE.values(), *PRIVATE.values(), *METADATA.values()):
            nodad = ["nodad"] if address.version == 6 else []
            stage.outside.netns.ip("address", "add", f"{address}/{address.max_prefixlen}", "dev", "eth0", *nodad)
            stage.node.ip("route", "add", f"{address}/{address.max_prefixlen}", "dev", "outside")
        async with NatWorld(stage) as world:
            await world.connect()
            yield world


def wrap(sender: Host, router: Host, packet: bytes) -> None:
    """Send the packet to the router's port, as a plain UDP socket of any pod can."""
    family = Family.IPV4 if packet[0] >> 4 == 4 else Family.IPV6
    with bound(sender, family, socket.SOCK_DGRAM) as plain:
        plain.sendto(packet, (str(router.addresses[family]), TUNNEL_PORT))


def counted(world: NatWorld, family: Family, kind: NatCounterKind) -> int:
    values = world.stage.router.netns.call(lambda: read_counters(ROUTER_TABLE))
    return values[counter_name(family, kind)].packets


async def is_dropped(world: NatWorld, sender: Host, packet: bytes, kind: NatCounterKind) -> None:
    """The packet is counted as such, and neither it nor one that was made of it leaves the router by its link."""
    stage = world.stage
    family = Family.IPV4 if packet[0] >> 4 == 4 else Family.IPV6
    before = counted(world, family, kind)
    with Capture(stage.router.netns) as wire, Capture(stage.outside.netns) as outside:
        wrap(sender, stage.router, packet)
        wait_until(lambda: counted(world, family, kind) == before + 1, what=f"the packet is counted as {kind.value}")
        # What the router forwards takes the same way, and would be there before this.
        assert ask(stage.client, stage.outside, family) == stage.router.addresses[family]
    forged = [each for each in (*wire.packets(), *outside.packets()) if each.inner is None and each.port == 4711]
    assert forged == []


@families
async def test_a_client_is_served(world: NatWorld, family: Family) -> None:
    """The way of the attacks below, as it is meant to be used."""
    stage = world.stage
    packet = udp(stage.client.addresses[family], stage.outside.addresses[family], dport=4711)
    with Capture(stage.outside.netns) as outside:
        wrap(stage.client, stage.router, packet)
        wait_until(lambda: [each for each in outside.packets() if each.port == 4711], what="the packet arrives")
    [arrived] = [each for each in outside.packets() if each.port == 4711]
    assert arrived.source == stage.router.addresses[family]


@families
async def test_a_pod_that_is_no_client_is_not_served(world: NatWorld, family: Family) -> None:
    stage = world.stage
    stranger = stage.add_pod(5)
    for source in (stranger.addresses[family], stage.client.addresses[family], OUTSIDE[family][7]):
        packet = udp(source, stage.outside.addresses[family], dport=4711)
        await is_dropped(world, stranger, packet, NatCounterKind.UNKNOWN_CLIENT)


@families
async def test_a_client_speaks_in_nobody_elses_name(world: NatWorld, family: Family) -> None:
    stage = world.stage
    other = stage.add_pod(5)
    await world.router.add_peers(tuple(other.addresses.values()), SourcePort.FIXED)
    for source in (stage.client.addresses[family], stage.router.addresses[family], OUTSIDE[family][7]):
        packet = udp(source, stage.outside.addresses[family], dport=4711)
        await is_dropped(world, other, packet, NatCounterKind.UNKNOWN_CLIENT)


@families
async def test_a_client_is_served_for_what_the_egress_is_for(world: NatWorld, family: Family) -> None:
    stage = world.stage
    await world.router.set_destinations((OUTSIDE[family],))
    beyond: list[IPAddress] = [
        ELSEWHERE[family],
        PRIVATE[family],
        METADATA[family],
        stage.add_pod(5).addresses[family],
        stage.router.addresses[family],
    ]
    for destination in beyond:
        packet = udp(stage.client.addresses[family], destination, dport=4711)
        await is_dropped(world, stage.client, packet, NatCounterKind.OTHER_DESTINATION)


@families
async def test_where_it_is_for_everything_the_cluster_is_no_part_of_that(world: NatWorld, family: Family) -> None:
    """Nor are the services that tell machines what they may do, even by name."""
    stage = world.stage
    await world.router.set_destinations(
        (*DEFAULT_NETWORKS.values(), *(ip_network(address) for address in METADATA.values()))
    )
    for destination in (PRIVATE[family], METADATA[family], stage.add_pod(5).addresses[family]):
        packet = udp(stage.client.addresses[family], destination, dport=4711)
        await is_dropped(world, stage.client, packet, NatCounterKind.OTHER_DESTINATION)


@families
async def test_networks_of_the_cluster_that_are_not_private_are_no_part_of_everything_either(
    world: NatWorld, family: Family
) -> None:
    stage = world.stage
    await world.router.set_destinations(tuple(DEFAULT_NETWORKS.values()), cluster=(ip_network(ELSEWHERE[family]),))
    packet = udp(stage.client.addresses[family], ELSEWHERE[family], dport=4711)
    await is_dropped(world, stage.client, packet, NatCounterKind.OTHER_DESTINATION)


@families
async def test_a_private_network_that_is_named_is_served(world: NatWorld, family: Family) -> None:
    stage = world.stage
    named = ip_network(PRIVATE[family])
    await world.router.set_destinations((OUTSIDE[family], named))
    packet = udp(stage.client.addresses[family], PRIVATE[family], dport=4711)
    with Capture(stage.outside.netns) as outside:
        wrap(stage.client, stage.router, packet)
        wait_until(lambda: [each for each in outside.packets() if each.port == 4711], what="the packet arrives")


@families
async def test_a_client_that_has_gone_is_served_no_more(world: NatWorld, family: Family) -> None:
    stage = world.stage
    other = stage.add_pod(5)
    before = kernel_state(stage.router.netns)
    await world.router.add_peers(tuple(other.addresses.values()), SourcePort.FIXED)
    assert await world.router.peers() == {*stage.client.addresses.values(), *other.addresses.values()}
    await world.router.remove_peers(tuple(other.addresses.values()))
    await world.router.remove_peers(tuple(other.addresses.values()))
    assert kernel_state(stage.router.netns) == before
    packet = udp(other.addresses[family], stage.outside.addresses[family], dport=4711)
    await is_dropped(world, other, packet, NatCounterKind.UNKNOWN_CLIENT)


async def test_a_table_that_was_flushed_is_mended(world: NatWorld) -> None:
    """Until then nothing is forwarded, and no tunnel goes for it."""
    stage = world.stage
    links = {link["ifname"]: link["ifindex"] for link in stage.router.netns.read("link")}
    lines(stage.router.netns, "nft", "flush", "ruleset")
    await world.open_router(stage.router)
    assert await world.router.peers() == frozenset()
    await world.connect()
    assert {link["ifname"]: link["ifindex"] for link in stage.router.netns.read("link")} == links
    for family in Family:
        assert ask(stage.client, stage.outside, family) == stage.router.addresses[family]


def router_advertisement() -> bytes:
    """Of a default route (RFC 4861, section 4.2), by a router that is nobody."""
    body = struct.pack("!BBHII", 64, 0, 1800, 0, 0)
    return icmpv6(IPv6Address("fe80::bad"), ALL_NODES, ROUTER_ADVERTISEMENT, body)


async def test_nobody_advertises_itself_as_a_clients_router(world: NatWorld) -> None:
    """By a packet for the client's tunnels: such a router would get all that the client sends."""
    stage = world.stage
    stranger = stage.add_pod(5)
    pod = stage.client.netns
    before = lines(pod, "ip", "-6", "route", "show", "table", "all")
    received = icmp_messages(pod)
    wrap(stranger, stage.client, router_advertisement())
    wait_until(lambda: icmp_messages(pod) > received, what="the client's kernel has received it")
    assert lines(pod, "ip", "-6", "route", "show", "table", "all") == before
    # Nor by links that an earlier program has made before the default was set.
    pod.set_sysctl("net/ipv6/conf/coil_ipip6/accept_ra", "1")
    changes = await world.sync(world.gateway())
    assert changes.made == ("set net/ipv6/conf/coil_ipip6/accept_ra to 0",)


def icmp_messages(netns: Netns) -> int:
    """Router advertisements that came in, whether or not they count."""
    text = netns.call(Path("/proc/thread-self/net/snmp6").read_text)
    [count] = [line.split()[1] for line in text.splitlines() if line.startswith("Icmp6InRouterAdvertisements")]
    return int(count)
