"""Tells that somebody else has changed certain nftables tables.

Hints only, as with `overlay_watch`: what is told is that it is worth looking, and all that happens before somebody
looks counts as one. What concerns other tables costs a search of the datagram for a name; of a large change to ours no
more is read than it takes to see that it is one.

Every transaction ends with a word of who made it, the name of the thread (NFTA_GEN_PROC_NAME): that tells ours from
others'. Neither of the other two marks would do: the port is that of a socket within libnftables, and the number of the
thread is that in the first PID namespace, which a container cannot know.

A listener is not free: of each object that a transaction changes the kernel keeps a message of its own until the end,
6 kB each. So while a large transaction of ours is carried out, nobody listens (`unheard`).
"""

import asyncio
import errno
import secrets
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from coil.kernel.nft_table import TableFamily
from coil.netlink.wire import parse_attributes, parse_text, split_messages

NETLINK_NETFILTER: Final = 12  # linux/netlink.h; the socket module has it from Python 3.12 on

LARGE: Final = 4096
"""Changes in one transaction: 25 MB of the kernel's memory, were somebody to listen."""
LATER: Final = 10.0
"""Seconds after which it is worth looking when events were lost, or not listened to."""

_SOL_NETLINK: Final = 270
_NETLINK_ADD_MEMBERSHIP: Final = 1
_NETLINK_DROP_MEMBERSHIP: Final = 2
_NFNLGRP_NFTABLES: Final = 7  # linux/netfilter/nfnetlink.h
_SUBSYSTEM: Final = 10  # NFNL_SUBSYS_NFTABLES
_NEW_GENERATION: Final = _SUBSYSTEM << 8 | 15  # NFT_MSG_NEWGEN
_GENERATION_OWNER: Final = 3  # NFTA_GEN_PROC_NAME
_GENERIC: Final = 4  # bytes of struct nfgenmsg; the first is the family
_TEXT: Final = struct.Struct("=HH")  # an attribute's head
_TABLE: Final = 1  # NFTA_*_TABLE, and NFTA_TABLE_NAME: the first attribute of all messages about a table
_FAMILIES: Final = {TableFamily.INET: 1, TableFamily.ARP: 3}  # NFPROTO_*, linux/netfilter.h
_DATAGRAM: Final = 1 << 16
_READS: Final = 64  # datagrams in one turn of the event loop


def unique_thread_name() -> str:
    """A name for the threads whose transactions are this process's own; the kernel has room for 15 characters."""
    return f"nft-{secrets.token_hex(4)}"


class TableWatch:
    """Owns the socket (`link_watch.open_event_socket`, of NETLINK_NETFILTER), belongs to the running event loop.

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
