"""What must not leave by the uplink does not, whatever becomes of the tunnels: captured at the host outside."""

import errno
import socket
from collections.abc import AsyncIterator

import pytest

from coil.kernel.family import Family
from coil.kernel.tunnel import tunnel_name
from coil.netlink.error import NetlinkError
from integration.egress.capture import Capture
from integration.fou.nat_world import NatWorld, ask, kernel_state, lines, unbound
from integration.nat_stage import OUTSIDE, NatStage
from integration.patience import wait_until
from integration.side_thread import SideThread

pytestmark = pytest.mark.kernel

families = pytest.mark.parametrize("family", list(Family))
PORT = 9


@pytest.fixture
async def world() -> AsyncIterator[NatWorld]:
    with NatStage() as stage:
        async with NatWorld(stage) as world:
            yield world


class Datagrams(SideThread):
    """From the client to the host outside, without a pause. Those that are not sent are refused by a route."""

    def __init__(self, world: NatWorld, family: Family) -> None:
        super().__init__("datagrams")
        self._socket = unbound(world.stage.client, family, socket.SOCK_DGRAM)
        self._target = str(world.stage.outside.addresses[family]), PORT
        self.sent = 0
        self.refused = 0

    def work(self) -> None:
        with self._socket as sending:
            while not self.stopped.wait(0.001):
                try:
                    sending.sendto(b"whose address is this?", self._target)
                    self.sent += 1
                except OSError as error:
                    if error.errno != errno.EHOSTUNREACH:
                        raise
                    self.refused += 1

    def wait_sent(self) -> None:
        before = self.sent
        wait_until(lambda: self.sent > before + 10, what="datagrams are sent")

    def wait_refused(self) -> None:
        before = self.refused
        wait_until(lambda: self.refused > before + 10, what="datagrams are refused")
        sent = self.sent
        again = self.refused
        wait_until(lambda: self.refused > again + 10, what="more of them are refused")
        assert self.sent == sent


def is_ours(packet_port: int) -> bool:
    return packet_port == PORT


def table(world: NatWorld, family: Family) -> list[str]:
    """The public destinations' table of the client."""
    version = "-4" if family is Family.IPV4 else "-6"
    return lines(world.stage.client.netns, "ip", version, "route", "show", "table", "118")


@families
async def test_no_packet_leaves_by_the_uplink_while_tunnels_go_and_come_back(world: NatWorld, family: Family) -> None:
    await world.connect()
    with Capture(world.stage.outside.netns.path) as outside, Datagrams(world, family) as datagrams:
        datagrams.wait_sent()
        for _ in range(5):
            assert await world.sync(blocked=tuple(OUTSIDE.values()))
            datagrams.wait_refused()
            assert not await world.sync(blocked=tuple(OUTSIDE.values()))
            assert await world.sync(world.gateway())
            datagrams.wait_sent()
    sources = {packet.source for packet in outside.packets() if is_ours(packet.port)}
    assert sources == {str(world.stage.router.addresses[family])}


@families
async def test_what_the_tables_led_into_tunnels_stays_blocked_if_nobody_knows_what_it_was(
    world: NatWorld, family: Family
) -> None:
    fresh = kernel_state(world.stage.client.netns)
    await world.connect()
    with Datagrams(world, family) as datagrams:
        assert await world.sync(block_unclaimed=True)
        datagrams.wait_refused()
        assert [line.split()[0] for line in table(world, family)] == ["unreachable"]
        assert not await world.sync(block_unclaimed=True)
        datagrams.wait_refused()
    await world.sync(world.gateway())
    assert ask(world.stage.client, world.stage.outside, family) == world.stage.router.addresses[family]
    await world.sync(block_unclaimed=True)
    await world.sync()
    assert kernel_state(world.stage.client.netns) == fresh


@families
async def test_a_destination_whose_tunnel_the_kernel_refuses_is_unreachable(world: NatWorld, family: Family) -> None:
    pod, router = world.stage.client.netns, world.stage.router
    await world.router.add_peers(tuple(world.stage.client.addresses.values()), world.gateway().source_port)
    name = tunnel_name(router.addresses[family])
    pod.ip("link", "add", name, "type", "dummy")
    with Capture(world.stage.outside.netns.path) as outside, Datagrams(world, family) as datagrams:
        datagrams.wait_sent()
        with pytest.raises(NetlinkError):
            await world.sync(world.gateway())
        datagrams.wait_refused()
        before = len(outside.packets())
        pod.ip("link", "delete", name)
        await world.sync(world.gateway())
        datagrams.wait_sent()
        wait_until(
            lambda: any(is_ours(packet.port) for packet in outside.packets()[before:]), what="datagrams arrive again"
        )
    sources = {packet.source for packet in outside.packets()[before:] if is_ours(packet.port)}
    assert sources == {str(router.addresses[family])}


async def test_where_it_fails_open_such_a_destination_has_no_route(world: NatWorld) -> None:
    pod = world.stage.client.netns
    for address in world.stage.router.addresses.values():
        pod.ip("link", "add", tunnel_name(address), "type", "dummy")
    with pytest.raises(NetlinkError):
        await world.sync(world.gateway(), fail_open=True)
    assert not [line for family in Family for line in table(world, family) if line.startswith("unreachable")]
