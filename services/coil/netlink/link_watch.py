"""Tells that a link is gone as soon as it is, which is long before the request to delete it returns.

A veth is out of the kernel's tables, with its addresses and routes, after 0.4 ms. The request itself returns
15 ms later: the kernel waits for every other processor to let go of the link's memory (rcu_barrier in
netdev_run_todo). In between it sends RTM_DELLINK to whoever listens, at a moment when no request can see the
link any more.

Hints only: an event may be lost (ENOBUFS), so whoever waits here waits for the answer to the request as well.
"""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from coil.kernel.link import LinkName
from coil.netlink.link_message import RTM_DELLINK, RTNLGRP_LINK, parse_link
from coil.netlink.wire import split_messages

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
