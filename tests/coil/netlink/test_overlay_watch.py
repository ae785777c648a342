"""Which events are worth a look."""

import asyncio
import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_interface, ip_network

import pytest

from coil.kernel.family import Family
from coil.kernel.link import Address, LinkName
from coil.kernel.route import Route
from coil.kernel.rule import Rule
from coil.netlink.address import delete_address, new_address
from coil.netlink.link import new_virtual_link
from coil.netlink.monitor import OverlayWatch
from coil.netlink.route import delete_route
from coil.netlink.rule import delete_rule
from coil.netlink.wire import HEADER, Request
from tests.coild.virtual_loop import pass_turns

OURS, PARENT, OTHER = LinkName("egress.eip"), LinkName("eth0"), LinkName("veth1")
NEWLINK, DELLINK = 16, 17  # linux/rtnetlink.h


class Events:
    """A netlink socket that tells what it is given, and then, if it is to, that it had to drop something."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self._kernel, self._ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.setblocking(False)
        self.overflows = 0

    def setsockopt(self, _level: int, _option: int, group: int) -> None:
        self.groups.append(group)

    def fileno(self) -> int:
        return self._ours.fileno()

    def recv(self, size: int) -> bytes:
        if self.overflows:
            self.overflows -= 1
            raise OSError(errno.ENOBUFS, "no buffer space")
        return self._ours.recv(size)

    def close(self) -> None:
        self._ours.close()
        self._kernel.close()

    def tell(self, *requests: Request) -> None:
        """Send all in one datagram."""
        bodies = [(request.type, request.body) for request in requests]
        self._kernel.send(b"".join(HEADER.pack(HEADER.size + len(body), kind, 0, 0, 0) + body for kind, body in bodies))


@contextmanager
def watching() -> Iterator[tuple[Events, OverlayWatch]]:
    events = Events()
    watch = OverlayWatch(events, (OURS,))  # type: ignore[arg-type]  # all that it needs of a socket
    try:
        yield events, watch
    finally:
        watch.close()


def link(name: LinkName, kind: int = NEWLINK, *, index: int = 7) -> Request:
    body = bytearray(new_virtual_link(name, "bridge", b"", mtu=0).body)
    body[4:8] = index.to_bytes(4, sys.byteorder)
    return Request(kind, 0, bytes(body), ())


def address(index: int) -> Request:
    return new_address(Address(OURS, ip_interface("10.0.0.9/32")), index)


def rule(priority: int, *, protocol: int = 30) -> Request:
    return delete_rule(Rule(family=Family.IPV4, priority=priority, table=5, protocol=protocol, mark=0x26000100))


def route(table: int, *, protocol: int = 30) -> Request:
    return delete_route(Route(destination=ip_network("0.0.0.0/0"), device=OURS, table=table, protocol=protocol), 7)


async def told(watch: OverlayWatch) -> bool:
    """Whether something was worth a look since the last question."""
    waiting = asyncio.ensure_future(watch.changed())
    await pass_turns()
    if waiting.done():
        return True
    waiting.cancel()
    await asyncio.wait({waiting})
    return False


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (link(OURS), True),
        (link(OURS, DELLINK), True),
        (link(OTHER), False),
        (link(OTHER, DELLINK), False),
        (link(PARENT), True),
        (address(2), True),
        (delete_address(Address(PARENT, ip_interface("10.0.0.1/16")), 2), True),
        (address(9), False),
        (rule(1700), True),
        (rule(1700, protocol=31), False),
        (rule(1800), False),
        (route(0x26000100), True),
        (route(0x26000100, protocol=31), False),
        (route(116), False),
    ],
)
async def test_what_concerns_the_overlay(event: Request, expected: bool) -> None:
    with watching() as (events, watch):
        watch.follow(PARENT, 2)
        events.tell(link(OTHER), event, link(OTHER))
        assert await told(watch) is expected
        assert await told(watch) is False, "once"


async def test_many_events_count_as_one_and_none_is_lost_by_a_cancellation() -> None:
    with watching() as (events, watch):
        assert await told(watch) is False
        for _ in range(200):
            events.tell(link(OURS))
            await pass_turns(1)
        assert await told(watch) is True
        assert await told(watch) is False


async def test_addresses_are_those_of_the_links_as_they_are_now() -> None:
    with watching() as (events, watch):
        events.tell(address(7))
        assert await told(watch) is False
        events.tell(link(OURS, index=7))
        assert await told(watch) is True
        events.tell(address(7))
        assert await told(watch) is True
        events.tell(link(OURS, DELLINK, index=7))
        assert await told(watch) is True
        events.tell(address(7))
        assert await told(watch) is False


async def test_what_the_kernel_had_to_drop_may_have_concerned_it() -> None:
    with watching() as (events, watch):
        events.overflows = 1
        events.tell(link(OTHER))
        assert await told(watch) is True


async def test_it_hears_of_links_addresses_routes_and_rules_and_of_nothing_else() -> None:
    with watching() as (events, _watch):
        assert events.groups == [1, 5, 7, 8, 9, 11, 19]  # RTNLGRP_* of linux/rtnetlink.h
