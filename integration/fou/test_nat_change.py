"""What changes does not disturb what stays: no packet of another flow is lost, and a flow whose tunnel changes in place
goes on. A conversation by UDP goes on throughout; nothing in it is ever repeated.
"""

import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address, ip_network

import pytest

from coil.egress.gateway import Replies, SourcePort
from coil.kernel.family import Family
from integration.fou.nat_world import Conversation, NatWorld, ask, bound, lines, unbound
from integration.go_coild import GoClient
from integration.kernel_state import KernelState
from integration.nat_stage import OUTSIDE, NatStage
from integration.patience import wait_until
from integration.route_monitor import watch_routes

pytestmark = pytest.mark.kernel

families = pytest.mark.parametrize("family", [pytest.param(Family.IPV4, marks=pytest.mark.slow), Family.IPV6])


@pytest.fixture
async def world() -> AsyncIterator[NatWorld]:
    with NatStage() as stage:
        async with NatWorld(stage) as world:
            yield world


def go_on(conversation: Conversation) -> None:
    """Until some more was said."""
    count = conversation.count
    wait_until(lambda: conversation.count > count + 2 or conversation.failed.is_set(), what="more of the conversation")


@families
async def test_other_gateways_come_change_and_go(world: NatWorld, family: Family) -> None:
    await world.connect()
    steady = world.gateway()
    other = world.gateway("z/other", addresses=(ip_address("10.96.0.7"), ip_address("fd96::7")))
    with Conversation(world.stage.client, world.stage.outside, family) as conversation:
        for destinations in (
            "198.51.100.0/24 2001:db8:9::/48",
            "198.51.100.0/25 10.0.0.0/8 fd00::/8",
            "0.0.0.0/0 ::/0",
        ):
            for source_port in SourcePort:
                networks = tuple(map(ip_network, destinations.split()))
                gateway = world.gateway(
                    "z/other", addresses=other.addresses, destinations=networks, source_port=source_port
                )
                assert await world.sync(steady, gateway)
                go_on(conversation)
        for replies in (Replies.WHERE_THEY_CAME_FROM, Replies.BY_ROUTE):
            assert await world.sync(steady, replies=replies)
            go_on(conversation)
    assert conversation.seen == {str(world.stage.router.addresses[family])}


@families
async def test_a_flow_whose_source_port_changes_at_both_ends(world: NatWorld, family: Family) -> None:
    """The kernel does not lock such a change against sending (DESIGN.md): each of the six may cost a packet."""
    await world.connect()
    clients = tuple(world.stage.client.addresses.values())
    with Conversation(world.stage.client, world.stage.outside, family, may_lose=6) as conversation:
        for source_port in (SourcePort.AUTO, SourcePort.FIXED, SourcePort.AUTO):
            await world.router.add_peers(clients, source_port)
            go_on(conversation)
            await world.sync(world.gateway(source_port=source_port))
            go_on(conversation)
    assert conversation.seen == {str(world.stage.router.addresses[family])}


@families
async def test_destinations_that_are_narrowed_and_widened_around_a_flow(world: NatWorld, family: Family) -> None:
    await world.connect()
    stage = world.stage
    networks = {
        "wide": (ip_network("0.0.0.0/0"), ip_network("::/0")),
        "narrow": tuple(OUTSIDE.values()),
        "host": tuple(ip_network(address) for address in stage.outside.addresses.values()),
    }
    with (
        watch_routes(str(stage.client.netns.path)) as monitor,
        Conversation(stage.client, stage.outside, family) as conversation,
    ):
        for step in ("wide", "narrow", "host", "wide", "host", "narrow"):
            await world.sync(world.gateway(destinations=networks[step]))
            go_on(conversation)
        events = [event for event in monitor.events() if event.table == "118"]
    # Of each family, what comes is there before what goes.
    for version in (4, 6):
        there = {str(network) for network in networks["narrow"] if network.version == version}
        for event in events:
            destination = event.destination
            if destination == "default" or ip_network(destination).version == version:
                (there.discard if event.withdrawn else there.add)(destination)
                assert there
    assert conversation.seen == {str(stage.router.addresses[family])}


@families
async def test_a_destination_goes_over_to_another_gateway(world: NatWorld, family: Family) -> None:
    await world.connect()
    stage = world.stage
    second = stage.add_pod(4)
    version, gateway = ("-4", "169.254.1.1") if family is Family.IPV4 else ("-6", "fe80::1")
    stage.outside.netns.ip(version, "route", "add", str(second.addresses[family]), "via", gateway, "dev", "eth0")
    router = await world.open_router(second)
    await router.add_peers(tuple(stage.client.addresses.values()), SourcePort.FIXED)
    with Conversation(stage.client, stage.outside, family) as conversation:
        await world.sync(world.gateway("b/second", router=second))
        wait_until(lambda: len(conversation.seen) == 2, what="the other router's address")
        await world.sync(world.gateway())
        go_on(conversation)
    assert conversation.seen == {str(host.addresses[family]) for host in (stage.router, second)}


@families
async def test_narrowed_destinations_are_no_longer_served(world: NatWorld, family: Family) -> None:
    await world.connect()
    assert ask(world.stage.client, world.stage.outside, family) == world.stage.router.addresses[family]
    await world.sync(world.gateway(destinations=(ip_network("198.51.100.0/24"), ip_network("2001:db8:9::/48"))))
    # The node still leads there, without a tunnel: the outside host sees the pod, which it has no way back to.
    with (
        unbound(world.stage.client, family, socket.SOCK_DGRAM) as one,
        bound(world.stage.outside, family, socket.SOCK_DGRAM) as other,
    ):
        one.sendto(b"question", other.getsockname())
        _, peer = other.recvfrom(64)
        assert peer[0] == str(world.stage.client.addresses[family])


@families
async def test_other_clients_come_and_go(world: NatWorld, family: Family) -> None:
    await world.connect()
    others = [ip_address("10.64.1.0") + number for number in range(20)]
    others += [ip_address("fd64:1::") + number for number in range(20)]
    with Conversation(world.stage.client, world.stage.outside, family) as conversation:
        for _ in range(3):
            await world.router.add_peers(others, SourcePort.FIXED)
            go_on(conversation)
            await world.open_router(world.stage.router)
            await world.router.remove_peers(others)
            go_on(conversation)
    assert await world.router.peers() == {*world.stage.client.addresses.values()}


@families
async def test_a_flow_survives_both_ends_programs(world: NatWorld, family: Family) -> None:
    """Nothing in the kernel depends on a process: networks are opened anew, as after a restart."""
    await world.connect()
    with Conversation(world.stage.client, world.stage.outside, family) as conversation:
        for _ in range(3):
            async with NatWorld(world.stage) as again:
                await again.connect()
                go_on(conversation)


@families
async def test_what_the_go_programs_made_is_taken_over_around_a_flow(world: NatWorld, family: Family) -> None:
    """A cluster comes from Coil v2: its clients keep their tunnels, and the way through them."""
    stage = world.stage
    await world.router.add_peers(tuple(stage.client.addresses.values()), SourcePort.FIXED)
    make_client_of_v2(stage)
    before = tunnels_of(stage)
    gateway = world.gateway()
    with Conversation(stage.client, stage.outside, family) as conversation:
        go_on(conversation)
        changes = await world.sync(gateway)
        go_on(conversation)
    assert conversation.seen == {str(stage.router.addresses[family])}
    assert tunnels_of(stage) == before
    # Tunnels believe no router advertisement from now on. Rules that do what ours do are left alone, and so is the
    # encapsulation limit: to change it would lose what arrives meanwhile.
    assert changes.made, "something is to be done"
    assert [made for made in changes.made if not (made.startswith("set ") and made.endswith("accept_ra to 0"))] == []
    assert not await world.sync(gateway)
    assert await world.sync()
    assert tunnels_of(stage) == {}
    assert lines(stage.client.netns, "ip", "fou", "show") == []


def make_client_of_v2(stage: NatStage) -> None:
    """As Coil v2 leaves a pod: rules without a protocol, an IPv6 tunnel with an encapsulation limit."""
    by_version: list[dict[int, str]] = [
        {each.version: str(each) for each in found.values()}
        for found in (stage.client.addresses, stage.router.addresses, OUTSIDE)
    ]
    GoClient(*by_version).enroll(KernelState(str(stage.client.netns.path)))


def tunnels_of(stage: NatStage) -> dict[str, int]:
    """The links of the tunnels, and the one that tells Coil v2 of the ports, with their indexes."""
    links = stage.client.netns.read("link")
    return {link["ifname"]: link["ifindex"] for link in links if link["ifname"].startswith(("fou", "coil_"))}
