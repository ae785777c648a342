"""Monitors: what the kernel tells of changes, to whoever waits in the event loop.

    LinkWatch       a link is gone
    OverlayWatch    links, addresses or rules of the overlay have changed, or routes of its marks have gone
    TableWatch      somebody else has changed certain nftables tables

All of them give hints only: it is worth looking, and all that happens before somebody looks counts as one. Events may
be lost (ENOBUFS); that counts as a change, and whoever waits for the end of a link waits for the answer to the request
as well.

**Links.** A veth is out of the kernel's tables, with its addresses and routes, after 0.4 ms. The request to delete it
returns 15 ms later: the kernel waits for every other processor to let go of the link's memory (rcu_barrier in
netdev_run_todo). In between it sends RTM_DELLINK, at a moment when no request can see the link any more.

**The overlay.** Events of other links are dropped, so nothing grows, however busy the node is. One's own changes are
reported as well: after them one look finds nothing to do. Of routes only those of marks are told, as they go: a daemon
that knows no routes but its own takes them away. Neighbours have too many events on a node full of pods; those of ours
that others delete one by one are found by the next full comparison. Whatever takes many of them away (a link that goes
down or away) is reported here.

**Tables.** What concerns other tables costs a search of the datagram for a name; of a large change to ours no more is
read than it takes to see that it is one. Every transaction ends with the name of the thread that made it
(NFTA_GEN_PROC_NAME): that tells ours from others'. Neither of the other two marks would do: the port is that of a
socket within libnftables, and the number of the thread is that in the first PID namespace, which a container cannot
know. A listener is not free: the kernel keeps a message of 6 kB for each object that a transaction changes until its
end. So while a large transaction of ours is carried out, nobody listens (`unheard`).
"""

import asyncio
import errno
import secrets
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from coil.kernel.link import LinkName
from coil.kernel.mark import MARK_CLAIM, MARK_PROTOCOL, NODE_MARK, NODE_MARK_MASK
from coil.kernel.nft_table import TableFamily
from coil.netlink.address import RTM_DELADDR, RTM_NEWADDR, parse_address_index
from coil.netlink.link import RTM_DELLINK, RTM_NEWLINK, RTNLGRP_LINK, parse_link
from coil.netlink.route import RTM_DELROUTE, parse_route_place
from coil.netlink.rule import RTM_DELRULE, RTM_NEWRULE, parse_rule
from coil.netlink.wire import parse_attributes, parse_text, split_messages

_SOL_NETLINK: Final = 270
_NETLINK_ADD_MEMBERSHIP: Final = 1
_NETLINK_DROP_MEMBERSHIP: Final = 2
_SO_RCVBUFFORCE: Final = 33  # asm-generic/socket.h
_RECEIVE_BUFFER: Final = 4 << 20
_DATAGRAM: Final = 1 << 16


def open_event_socket(protocol: int = socket.NETLINK_ROUTE) -> socket.socket:
    """A socket for events of the calling thread's namespace, subscribed to nothing yet."""
    events = socket.socket(
        socket.AF_NETLINK,
        socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
        protocol,
    )
    try:
        # A batch of deletions sends hundreds of events of 2 KB at once. Forced: beyond net.core.rmem_max.
        events.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        events.bind((0, 0))
    except BaseException:
        events.close()
        raise
    return events


class LinkWatch:
    """Link deletions of one namespace. Owns the socket, belongs to the running event loop."""

    def __init__(self, events: socket.socket) -> None:
        self._events = events
        self._waiting: dict[LinkName, set[asyncio.Future[None]]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(events, self._drain)

    def close(self) -> None:
        """Stop watching. Futures that are still waited for stay pending."""
        self._loop.remove_reader(self._events)
        self._events.close()

    @contextmanager
    def expect(self, name: LinkName) -> Iterator[asyncio.Future[None]]:
        """A future that is done once the link `name` is deleted after this call.

        The kernel is asked for events only while somebody waits: a node has many, and most are no deletions.
        """
        if not self._waiting:
            self._events.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
        gone: asyncio.Future[None] = self._loop.create_future()
        futures = self._waiting.setdefault(name, set())
        futures.add(gone)
        try:
            yield gone
        finally:
            gone.cancel()
            futures.discard(gone)
            if not futures:
                self._waiting.pop(name, None)
            if not self._waiting:
                self._events.setsockopt(_SOL_NETLINK, _NETLINK_DROP_MEMBERSHIP, RTNLGRP_LINK)
                self._drain()

    def _drain(self) -> None:
        """Empty the socket, so that nothing in it is taken for a later deletion of a link of the same name.

        The same argument needs every turn of the loop to empty it. It cannot take long: an event costs the kernel
        more time than us, and the buffer holds some two thousand.
        """
        while True:
            try:
                datagram = self._events.recv(_DATAGRAM)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    continue  # events were lost; the answers to the requests come in any case
                raise
            for kind, _flags, _sequence, body in split_messages(datagram):
                if kind == RTM_DELLINK:
                    self._tell(parse_link(body).name)

    def _tell(self, name: LinkName) -> None:
        for future in self._waiting.get(name, ()):
            if not future.done():
                future.set_result(None)


_READS: Final = 64  # datagrams in one turn of the event loop
_RTNLGRP_IPV4_IFADDR: Final = 5
_RTNLGRP_IPV4_RULE: Final = 8
_RTNLGRP_IPV6_IFADDR: Final = 9
_RTNLGRP_IPV6_RULE: Final = 19
_RTNLGRP_IPV4_ROUTE: Final = 7
_RTNLGRP_IPV6_ROUTE: Final = 11
_GROUPS: Final = (
    RTNLGRP_LINK,
    _RTNLGRP_IPV4_IFADDR,
    _RTNLGRP_IPV4_ROUTE,
    _RTNLGRP_IPV4_RULE,
    _RTNLGRP_IPV6_IFADDR,
    _RTNLGRP_IPV6_ROUTE,
    _RTNLGRP_IPV6_RULE,
)


class OverlayWatch:
    """Owns the socket (`open_event_socket`), belongs to the running event loop."""

    def __init__(self, events: socket.socket, links: Collection[LinkName]) -> None:
        self._events = events
        self._links = set(links)
        self._indices: set[int] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for group in _GROUPS:
            events.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
        self._loop.add_reader(events, self._read)

    def close(self) -> None:
        """Stop watching. Whoever waits goes on waiting."""
        self._loop.remove_reader(self._events)
        self._events.close()

    def follow(self, name: LinkName, index: int) -> None:
        """Watch a link besides those that it began with, or learn the index of one of them."""
        self._links.add(name)
        self._indices.add(index)

    async def changed(self) -> None:
        """Wait for the first event since this returned last. For one task; a cancellation loses nothing."""
        await self._changed.wait()
        self._changed.clear()

    def _read(self) -> None:
        # Not to the end in one go: a storm of events of other links must not hold up the loop.
        for _ in range(_READS):
            try:
                datagram = self._events.recv(_DATAGRAM)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._changed.set()
                continue
            if any(self._concerns(kind, body) for kind, _flags, _sequence, body in split_messages(datagram)):
                self._changed.set()

    def _concerns(self, kind: int, body: bytes) -> bool:
        if kind in (RTM_NEWLINK, RTM_DELLINK):
            link = parse_link(body)
            if link.name not in self._links:
                return False
            (self._indices.add if kind == RTM_NEWLINK else self._indices.discard)(link.index)
            return True
        if kind in (RTM_NEWADDR, RTM_DELADDR):
            return parse_address_index(body) in self._indices
        if kind in (RTM_NEWRULE, RTM_DELRULE):
            rule = parse_rule(body)
            return rule is not None and MARK_CLAIM.covers(rule)
        if kind == RTM_DELROUTE:
            table, protocol, _ = parse_route_place(body)
            return protocol == MARK_PROTOCOL and table & NODE_MARK_MASK == NODE_MARK
        return False


NETLINK_NETFILTER: Final = 12  # linux/netlink.h; the socket module has it from Python 3.12 on

LARGE: Final = 4096
"""Changes in one transaction: 25 MB of the kernel's memory, were somebody to listen."""
LATER: Final = 10.0
"""Seconds after which it is worth looking when events were lost, or not listened to."""

_NFNLGRP_NFTABLES: Final = 7  # linux/netfilter/nfnetlink.h
_SUBSYSTEM: Final = 10  # NFNL_SUBSYS_NFTABLES
_NEW_GENERATION: Final = _SUBSYSTEM << 8 | 15  # NFT_MSG_NEWGEN
_GENERATION_OWNER: Final = 3  # NFTA_GEN_PROC_NAME
_GENERIC: Final = 4  # bytes of struct nfgenmsg; the first is the family
_TEXT: Final = struct.Struct("=HH")  # an attribute's head
_TABLE: Final = 1  # NFTA_*_TABLE, and NFTA_TABLE_NAME: the first attribute of all messages about a table
_FAMILIES: Final = {TableFamily.INET: 1, TableFamily.ARP: 3, TableFamily.BRIDGE: 7}  # NFPROTO_*, linux/netfilter.h


def unique_thread_name() -> str:
    """A name for the threads whose transactions are this process's own; the kernel has room for 15 characters."""
    return f"nft-{secrets.token_hex(4)}"


class TableWatch:
    """Owns the socket (`open_event_socket`, of NETLINK_NETFILTER), belongs to the running event loop.

    `own` is the name of the threads whose transactions are not told of.
    """

    def __init__(self, events: socket.socket, tables: Collection[tuple[TableFamily, str]], *, own: str) -> None:
        self._events = events
        self._heads = {(_FAMILIES[family], name.encode() + b"\0") for family, name in tables}
        self._names = {name for _, name in self._heads}
        self._own = own
        self._touched = False  # by the transaction whose end has not been told yet
        self._changed = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._listen(_NETLINK_ADD_MEMBERSHIP)
        self._loop.add_reader(events, self._read)

    def close(self) -> None:
        """Stop watching. Whoever waits goes on waiting."""
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._events)
        self._events.close()

    async def changed(self) -> None:
        """Wait for the first change since this returned last. For one task; a cancellation loses nothing."""
        await self._changed.wait()
        self._changed.clear()

    @contextmanager
    def unheard(self, changes: int) -> Iterator[None]:
        """For a transaction of the caller's own, in any thread but not in two at a time: if it has more changes than
        LARGE nobody listens for the time of the block. As that goes for others' changes too, a change is told LATER.
        """
        if changes <= LARGE:
            yield
            return
        self._listen(_NETLINK_DROP_MEMBERSHIP)
        try:
            yield
        finally:
            self._listen(_NETLINK_ADD_MEMBERSHIP)
            self._loop.call_soon_threadsafe(self._tell_later)

    def _listen(self, option: int) -> None:
        self._events.setsockopt(_SOL_NETLINK, option, _NFNLGRP_NFTABLES)

    def _tell_later(self) -> None:
        if self._later is None:
            self._later = self._loop.call_later(LATER, self._tell)

    def _tell(self) -> None:
        self._later = None
        self._changed.set()

    def _read(self) -> None:
        # Not to the end in one go: a storm of events of other tables must not hold up the loop.
        for _ in range(_READS):
            try:
                datagram = self._events.recv(_DATAGRAM)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._touched = False  # whose it was may be among what is lost
                self._tell_later()
                continue
            self._take(datagram)

    def _take(self, datagram: bytes) -> None:
        # The end of a transaction has a datagram of its own.
        kind, _flags, _sequence, body = next(split_messages(datagram), (0, 0, 0, b""))
        if kind == _NEW_GENERATION:
            if self._touched and self._owner(body) != self._own:
                self._changed.set()
            self._touched = False
        elif not self._touched and any(name in datagram for name in self._names):
            self._touched = any(self._concerns(kind, body) for kind, _, _, body in split_messages(datagram))

    def _concerns(self, kind: int, body: bytes) -> bool:
        if kind >> 8 != _SUBSYSTEM or len(body) < _GENERIC + _TEXT.size:
            return False
        length, attribute = _TEXT.unpack_from(body, _GENERIC)
        return attribute == _TABLE and (body[0], body[_GENERIC + _TEXT.size : _GENERIC + length]) in self._heads

    @staticmethod
    def _owner(body: bytes) -> str:
        return parse_text(parse_attributes(body, _GENERIC).get(_GENERATION_OWNER, b""))
