"""What messages tell, as the kernel sends them."""

import asyncio
import errno
import socket
import struct
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from coil.kernel.family import Family
from coil.kernel.link import Address, LinkName, MacAddress, Neighbour
from coil.kernel.route import Route, RouteScope
from coil.kernel.rule import Rule
from coil.netlink.address import new_address
from coil.netlink.link import new_virtual_link
from coil.netlink.neighbour import new_neighbour
from coil.netlink.node_watch import (
    ALL_LINKS,
    BATCH_SECONDS,
    AddressEvent,
    EventsLost,
    LinkEvent,
    NeighbourEvent,
    NodeEvent,
    NodeWatch,
    OtherRuleEvent,
    PathFilterEvent,
    RouteEvent,
    RuleEvent,
    parse_event,
)
from coil.netlink.route import new_route
from coil.netlink.rule import new_rule
from coil.netlink.wire import HEADER, attribute_s32
from tests.coild.virtual_loop import pass_turns

RULE = Rule(family=Family.IPV4, priority=1536, table=10_001, protocol=30, source=ip_network("10.1.1.33/32"))
ROUTE = Route(
    destination=ip_network("10.1.1.33/32"),
    device=LinkName("veth1"),
    table=70_000,
    protocol=30,
    scope=RouteScope.LINK,
)
NEIGHBOUR = Neighbour(LinkName("eth0"), ip_address("169.254.1.1"), MacAddress("02:00:00:00:00:01"))
PERMANENT, FAILED = 0x80, 0x20  # linux/neighbour.h
FIB_RULE_INVERT = 2  # linux/fib_rules.h


def replace_flags(rule: bytes, flags: int) -> bytes:
    """The last field of struct fib_rule_hdr."""
    return rule[:8] + struct.pack("=I", flags) + rule[12:]


def neighbour(state: int, *, family: int = 2) -> bytes:
    body = bytearray(new_neighbour(NEIGHBOUR, 2).body)
    body[0], body[8:10] = family, struct.pack("=H", state)
    return bytes(body)


@pytest.mark.parametrize("gone", [False, True])
def test_events_of_the_node(gone: bool) -> None:
    link = new_virtual_link(LinkName("eth1"), "dummy", b"", mtu=1400).body
    event = parse_event(16 + gone, link, None)
    assert isinstance(event, LinkEvent)
    assert (event.link.name, event.link.mtu, event.gone) == ("eth1", 1400, gone)
    address = new_address(Address(LinkName("eth1"), ip_interface("10.1.1.10/32")), 7).body
    assert parse_event(20 + gone, address, None) == AddressEvent(7, ip_address("10.1.1.10"), gone)
    default = Route(destination=ip_network("::/0"), device=LinkName("eth1"), table=116, protocol=30)
    for route in (ROUTE, default):
        wanted = RouteEvent(route.table, 30, route.destination, gone)
        assert parse_event(24 + gone, new_route(route, 7).body, None) == wanted
    assert parse_event(32 + gone, new_rule(RULE).body, None) == RuleEvent(RULE, gone)
    inverted = replace_flags(new_rule(RULE).body, FIB_RULE_INVERT)
    assert parse_event(32 + gone, inverted, None) == OtherRuleEvent()


def test_the_reverse_path_filter() -> None:
    """As Linux 6.1 sends it: family, then attributes of the link's index, and of one setting or all of them."""
    index, all_links, strict = (attribute_s32(kind, value) for kind, value in ((1, 7), (1, ALL_LINKS), (3, 1)))
    forwarding = attribute_s32(2, 1)
    assert parse_event(80, bytes((2, 0, 0, 0)) + index + strict, None) == PathFilterEvent(7, 1)
    assert parse_event(80, bytes((2, 0, 0, 0)) + all_links + forwarding + strict, None) == PathFilterEvent(ALL_LINKS, 1)
    assert parse_event(80, bytes((2, 0, 0, 0)) + index + forwarding, None) is None


@pytest.mark.parametrize("gone", [False, True])
def test_routes_of_the_local_table_are_nobodys(gone: bool) -> None:
    body = bytearray(new_route(replace(ROUTE, table=255), 7).body)
    body[4] = 255  # as the kernel has it, beside the attribute
    assert parse_event(24 + gone, bytes(body), None) is None


def test_of_a_pods_namespace_only_neighbours_that_were_deleted_are_told() -> None:
    assert parse_event(29, neighbour(FAILED), 3) == NeighbourEvent(3, NEIGHBOUR.address)
    assert parse_event(29, neighbour(PERMANENT), 3) is None  # with its link
    assert parse_event(29, neighbour(FAILED, family=7), 3) is None  # of a bridge's forwarding database
    assert parse_event(28, neighbour(FAILED), 3) is None
    assert parse_event(33, new_rule(RULE).body, 3) is None
    assert parse_event(29, neighbour(FAILED), None) is None  # the node's own


def test_rules_of_multicast_routing_are_nobodys() -> None:
    """They are told of in the group of IPv4's rules, with a family of their own (RTNL_FAMILY_IPMR)."""
    body = bytes([128]) + new_rule(replace(RULE, source=None)).body[1:]
    assert parse_event(32, body, None) is None


class Events:
    """A netlink socket that tells what it is given, of a namespace of that number."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int]] = []
        self.numbers: list[int | None] = []
        self.overflows = 0
        self.fails = 0
        """The number of the error that the next read ends with."""
        self.refused: int | None = None
        """The option that the process may not set."""
        self._kernel, self._ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.setblocking(False)

    def setsockopt(self, _level: int, option: int, value: int) -> None:
        if option == self.refused:
            raise PermissionError(errno.EPERM, "operation not permitted")
        self.options.append((option, value))

    def fileno(self) -> int:
        return self._ours.fileno()

    def recvmsg(self, size: int, _ancillary: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        if self.overflows:
            self.overflows -= 1
            raise OSError(errno.ENOBUFS, "no buffer space")
        if self.fails:
            code, self.fails = self.fails, 0
            raise OSError(code, "the kernel failed")
        data = self._ours.recv(size)
        number = self.numbers.pop(0)
        return data, [] if number is None else [(270, 8, struct.pack("=i", number))], 0, None

    def close(self) -> None:
        self._ours.close()
        self._kernel.close()

    def tell(self, kind: int, body: bytes, number: int | None = None) -> None:
        self.numbers.append(number)
        self._kernel.send(HEADER.pack(HEADER.size + len(body), kind, 0, 0, 0) + body)


class Heard(list[NodeEvent]):
    """What the listener was told."""

    def __init__(self) -> None:
        super().__init__()
        self._told = asyncio.Event()

    def note(self, event: NodeEvent) -> None:
        self.append(event)
        self._told.set()

    async def wait_for(self, count: int) -> None:
        """Return when it is so much in all."""
        async with asyncio.timeout(60):
            while len(self) < count:
                self._told.clear()
                await self._told.wait()


async def test_both_sockets_are_heard() -> None:
    node, pods = Events(), Events()
    heard = Heard()
    watch = NodeWatch(node, pods, heard.note)  # type: ignore[arg-type]  # all that it needs of a socket
    try:
        assert watch.hears_pods
        assert (8, 1) in pods.options  # NETLINK_LISTEN_ALL_NSID
        assert (1, 3) in pods.options
        assert (1, 3) not in node.options
        node.tell(33, new_rule(RULE).body)
        pods.tell(29, neighbour(FAILED), 5)
        await heard.wait_for(2)
        assert set(heard) == {RuleEvent(RULE, gone=True), NeighbourEvent(5, NEIGHBOUR.address)}
        node.overflows = 1
        node.tell(99, b"")
        await heard.wait_for(3)
        assert heard[2:] == [EventsLost()]
    finally:
        watch.close()


async def test_a_storm_is_heard_to_its_end_and_so_is_what_comes_after_it() -> None:
    node, pods = Events(), Events()
    heard = Heard()
    watch = NodeWatch(node, pods, heard.note)  # type: ignore[arg-type]  # as above
    try:
        for batch in (150, 1):
            before = len(heard)
            for _ in range(batch):
                node.tell(33, new_rule(RULE).body)
                await pass_turns()  # the pair of sockets holds a few
            await heard.wait_for(before + batch)
    finally:
        watch.close()


async def test_after_an_error_the_next_event_is_heard() -> None:
    node, pods = Events(), Events()
    heard = Heard()
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    watch = NodeWatch(node, pods, heard.note)  # type: ignore[arg-type]  # as above
    try:
        node.fails = errno.ENOMEM
        node.tell(33, new_rule(RULE).body)
        await heard.wait_for(1)
        assert [getattr(each, "errno", None) for each in failures] == [errno.ENOMEM]
    finally:
        watch.close()


async def test_nothing_is_heard_after_the_end() -> None:
    node, pods = Events(), Events()
    heard = Heard()
    watch = NodeWatch(node, pods, heard.note)  # type: ignore[arg-type]  # as above
    node.tell(33, new_rule(RULE).body)
    await pass_turns()
    watch.close()
    await asyncio.sleep(2 * BATCH_SECONDS)
    assert heard == []


async def test_without_the_capability_only_the_node_is_heard() -> None:
    node, pods = Events(), Events()
    pods.refused = 8
    heard = Heard()
    watch = NodeWatch(node, pods, heard.note)  # type: ignore[arg-type]  # as above
    try:
        assert not watch.hears_pods
        assert pods.options == []
        node.tell(33, new_rule(RULE).body)
        await heard.wait_for(1)
        assert heard == [RuleEvent(RULE, gone=True)]
    finally:
        watch.close()
