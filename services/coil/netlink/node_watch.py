"""What happens to a node's links, addresses, rules, routes and its pods' neighbours, as the kernel tells it.

Whoever listens decides what concerns it: an event costs some microseconds, and there is a dozen for each pod that comes
or goes. None of them is urgent, so they are read in batches: an ADD is not interrupted by each of its own events.
Events may be lost (ENOBUFS); then it is worth looking at everything.

Of sysctls only those are told that netconf knows (linux/netconf.h): the reverse path filter, and forwarding.

Neighbours are told of in the pods' namespaces: there is the permanent entry that leads to the node. One socket hears
all of them, as the kernel has a number for each namespace at the other end of a veth (NETLINK_LISTEN_ALL_NSID,
netlink(7)). That takes the capability NET_BROADCAST; without it nothing is heard of them (`NodeWatch.hears_pods`).
Entries that go with their link are not told.
"""

import asyncio
import ctypes
import errno
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import Link
from coil.kernel.rule import Rule
from coil.netlink.address import RTM_DELADDR, RTM_NEWADDR, parse_address_place
from coil.netlink.link import RTM_DELLINK, RTM_NEWLINK, RTNLGRP_LINK, parse_link
from coil.netlink.neighbour import RTM_DELNEIGH, parse_deleted_neighbour
from coil.netlink.route import RTM_DELROUTE, RTM_NEWROUTE, parse_route_place
from coil.netlink.rule import RTM_DELRULE, RTM_NEWRULE, parse_foreign_rule, parse_rule
from coil.netlink.wire import parse_attributes, parse_s32, split_messages

_SOL_NETLINK: Final = 270
_NETLINK_ADD_MEMBERSHIP: Final = 1
_NETLINK_LISTEN_ALL_NSID: Final = 8
_RTNLGRP_NEIGH: Final = 3
_RTNLGRP_IPV4_IFADDR: Final = 5
_RTNLGRP_IPV4_ROUTE: Final = 7
_RTNLGRP_IPV4_RULE: Final = 8
_RTNLGRP_IPV6_ROUTE: Final = 11
_RTNLGRP_IPV6_RULE: Final = 19
_RTNLGRP_IPV4_NETCONF: Final = 24
_RTNLGRP_IPV6_NETCONF: Final = 25
_REMOVAL_GROUPS: Final = (
    _RTNLGRP_IPV4_ROUTE,
    _RTNLGRP_IPV4_RULE,
    _RTNLGRP_IPV6_ROUTE,
    _RTNLGRP_IPV6_RULE,
    _RTNLGRP_IPV4_NETCONF,
    _RTNLGRP_IPV6_NETCONF,
)
BATCH_SECONDS: Final = 0.02
"""What the sockets can hold (`open_event_socket`) is the events of some hundred pods."""
_READS: Final = 64  # datagrams in one turn of the event loop
_DATAGRAM: Final = 1 << 16
_ANCILLARY: Final = socket.CMSG_SPACE(4)
_NUMBER: Final = struct.Struct("=i")
_TABLE: Final = 4  # offset in struct rtmsg, linux/rtnetlink.h
_RT_TABLE_LOCAL: Final = 255

RTM_NEWNETCONF: Final = 80
_NETCONF_ATTRIBUTES: Final = 4  # behind struct netconfmsg
_NETCONFA_IFINDEX: Final = 1
_NETCONFA_FORWARDING: Final = 2
_NETCONFA_RP_FILTER: Final = 3
ALL_LINKS: Final = -1
"""NETCONFA_IFINDEX_ALL: in the place of a link's index, what is set for all of them."""

_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h
_LOAD_BYTE: Final = 0x30  # BPF_LD | BPF_B | BPF_ABS, linux/bpf_common.h
_LOAD_HALF: Final = 0x28
_LOAD_WORD: Final = 0x20
_JUMP_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALL_BYTES: Final = 0xFFFFFFFF
_KIND: Final = 4  # offset of nlmsg_type in struct nlmsghdr
_BODY: Final = 16  # its size
_FIRST_VALUE: Final = _BODY + _NETCONF_ATTRIBUTES + 4  # of a netconf message; that is NETCONFA_IFINDEX


def _instruction(code: int, value: int, *, equal: int = 0, other: int = 0) -> bytes:
    """One of classic BPF; `equal` and `other` are how many are skipped after a comparison."""
    return struct.pack("=HBBI", code, equal, other, value)


def _as_loaded(number: int) -> int:
    """A message's 16 bits as BPF loads them: it takes all fields for big-endian."""
    return int.from_bytes(struct.pack("=H", number), "big")


_REMOVALS: Final = (
    _instruction(_LOAD_HALF, _KIND),
    _instruction(_JUMP_EQUAL, _as_loaded(RTM_DELRULE), equal=7),
    _instruction(_JUMP_EQUAL, _as_loaded(RTM_DELROUTE), equal=3),
    _instruction(_JUMP_EQUAL, _as_loaded(RTM_NEWNETCONF), equal=0, other=4),
    _instruction(_LOAD_WORD, _FIRST_VALUE),
    _instruction(_JUMP_EQUAL, ALL_LINKS & _ALL_BYTES, equal=3, other=2),
    # Of routes not those that the kernel itself has in the local table: they go with their link.
    _instruction(_LOAD_BYTE, _BODY + _TABLE),
    _instruction(_JUMP_EQUAL, _RT_TABLE_LOCAL, equal=0, other=1),
    _instruction(_RETURN, 0),
    _instruction(_RETURN, _ALL_BYTES),
)
"""The socket filter for `Interest.REMOVALS`. Each event is a message of its own; the last two lines drop and pass."""


class Interest(Enum):
    """Which events of the node's namespace are wanted."""

    ALL = "all"
    REMOVALS = "removals"
    """Rules and routes that have gone, and forwarding of the whole namespace. The kernel passes on no others, so that a
    pod that comes costs nothing.
    """


_GROUPS: Final = {
    Interest.ALL: (RTNLGRP_LINK, _RTNLGRP_IPV4_IFADDR, *_REMOVAL_GROUPS),
    Interest.REMOVALS: _REMOVAL_GROUPS,
}


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """`gone`, or as it is now."""

    link: Link
    gone: bool


@dataclass(frozen=True, slots=True)
class AddressEvent:
    """Of the link with that index."""

    index: int
    address: IPAddress
    gone: bool


@dataclass(frozen=True, slots=True)
class RuleEvent:
    """Of a rule that a `Rule` can be."""

    rule: Rule
    gone: bool


@dataclass(frozen=True, slots=True)
class OtherRuleEvent:
    """Of a rule that no `Rule` can be: it has come or gone."""


@dataclass(frozen=True, slots=True)
class RouteEvent:
    """Of any table but the local one. Not `gone`: it has come, perhaps in the place of another."""

    table: int
    protocol: int
    destination: IPNetwork
    gone: bool


@dataclass(frozen=True, slots=True)
class NeighbourEvent:
    """Somebody has deleted the entry for the address in the namespace of that number."""

    namespace: int
    address: IPAddress


@dataclass(frozen=True, slots=True)
class PathFilterEvent:
    """`rp_filter` of the link with that index, or of ALL_LINKS, is `value` now."""

    index: int
    value: int


@dataclass(frozen=True, slots=True)
class ForwardingEvent:
    """Whether the namespace forwards packets of the family, links to come included."""

    family: Family
    on: bool


@dataclass(frozen=True, slots=True)
class EventsLost:
    """Any of the others may have been."""


NodeEvent: TypeAlias = (
    LinkEvent
    | AddressEvent
    | RuleEvent
    | OtherRuleEvent
    | RouteEvent
    | NeighbourEvent
    | PathFilterEvent
    | ForwardingEvent
    | EventsLost
)
Listener: TypeAlias = Callable[[NodeEvent], None]
"""Called in the event loop; must be quick, and must not raise."""


class NodeWatch:
    """Owns both sockets (`coil.netlink.monitor.open_event_socket`), belongs to the running event loop.

    Without a socket for `pods` their namespaces are not listened to. `hears_pods`: they are, and the process has the
    capability that it takes.
    """

    def __init__(
        self,
        node: socket.socket,
        pods: socket.socket | None,
        listener: Listener,
        *,
        interest: Interest = Interest.ALL,
    ) -> None:
        self._sockets = (node,) if pods is None else (node, pods)
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._next: dict[socket.socket, asyncio.Handle] = {}
        if interest is Interest.REMOVALS:
            _pass_removals(node)
        for group in _GROUPS[interest]:
            node.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
        self.hears_pods = pods is not None and _listen_everywhere(pods)
        if pods is not None and self.hears_pods:
            pods.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, _RTNLGRP_NEIGH)
        for events in self._sockets:
            self._loop.add_reader(events, self._gather, events)

    def close(self) -> None:
        """Stop watching."""
        for handle in self._next.values():
            handle.cancel()
        for events in self._sockets:
            self._loop.remove_reader(events)
            events.close()

    def _gather(self, events: socket.socket) -> None:
        self._loop.remove_reader(events)
        self._next[events] = self._loop.call_later(BATCH_SECONDS, self._read, events)

    def _read(self, events: socket.socket) -> None:
        # At first, so that the next event is heard whatever is wrong with this one.
        self._loop.add_reader(events, self._gather, events)
        # Not to the end in one go: a storm of events must not hold up the loop.
        for _ in range(_READS):
            try:
                datagram, ancillary, _, _ = events.recvmsg(_DATAGRAM, _ANCILLARY)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._listener(EventsLost())
                continue
            # The number comes only with events of other namespaces.
            numbers = [_NUMBER.unpack_from(data)[0] for level, _, data in ancillary if level == _SOL_NETLINK]
            for kind, _flags, _sequence, body in split_messages(datagram):
                if (event := parse_event(kind, body, numbers[0] if numbers else None)) is not None:
                    self._listener(event)
        self._loop.remove_reader(events)
        self._next[events] = self._loop.call_soon(self._read, events)


def _pass_removals(events: socket.socket) -> None:
    """Have the kernel drop what `Interest.REMOVALS` is not about (linux/filter.h). Before the socket is subscribed."""
    code = ctypes.create_string_buffer(b"".join(_REMOVALS))
    # The kernel copies the program.
    events.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(_REMOVALS), ctypes.addressof(code)))


def _listen_everywhere(events: socket.socket) -> bool:
    try:
        events.setsockopt(_SOL_NETLINK, _NETLINK_LISTEN_ALL_NSID, 1)
    except PermissionError:
        return False
    return True


def parse_event(kind: int, body: bytes, namespace: int | None) -> NodeEvent | None:
    """The event of a message; None for one that tells of nothing else. Pure."""
    if namespace is not None:
        address = parse_deleted_neighbour(body) if kind == RTM_DELNEIGH else None
        return None if address is None else NeighbourEvent(namespace, address)
    if kind in (RTM_NEWLINK, RTM_DELLINK):
        return LinkEvent(parse_link(body), gone=kind == RTM_DELLINK)
    if kind in (RTM_NEWADDR, RTM_DELADDR):
        return AddressEvent(*parse_address_place(body), gone=kind == RTM_DELADDR)
    if kind in (RTM_NEWROUTE, RTM_DELROUTE):
        if body[_TABLE] == _RT_TABLE_LOCAL:
            return None  # the kernel's own, of which there are several for each link
        return RouteEvent(*parse_route_place(body), gone=kind == RTM_DELROUTE)
    return _parse_netconf(body) if kind == RTM_NEWNETCONF else _parse_rule(kind, body)


def _parse_rule(kind: int, body: bytes) -> RuleEvent | OtherRuleEvent | None:
    if kind not in (RTM_NEWRULE, RTM_DELRULE):
        return None
    if (rule := parse_rule(body)) is not None:
        return RuleEvent(rule, gone=kind == RTM_DELRULE)
    return OtherRuleEvent() if parse_foreign_rule(body) is not None else None


def _parse_netconf(body: bytes) -> PathFilterEvent | ForwardingEvent | None:
    attributes = parse_attributes(body, _NETCONF_ATTRIBUTES)
    index = parse_s32(attributes[_NETCONFA_IFINDEX])
    if _NETCONFA_RP_FILTER in attributes:
        return PathFilterEvent(index, parse_s32(attributes[_NETCONFA_RP_FILTER]))
    if index == ALL_LINKS and _NETCONFA_FORWARDING in attributes:
        return ForwardingEvent(Family(body[0]), on=parse_s32(attributes[_NETCONFA_FORWARDING]) != 0)
    return None
