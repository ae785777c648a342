"""Tells that links, addresses or rules of the overlay have changed, whoever changed them.

Hints only: what is told is that it is worth looking. Events of other links are dropped here, and all that arrive before
somebody looks count as one; so nothing grows, however busy the node is. If the kernel itself had to drop events
(ENOBUFS), that counts as a change. One's own changes are told of as well: after them one look finds nothing to do.

Routes and neighbours have too many events on a node full of pods; those of ours that others delete one by one are found
by the next full comparison. Whatever takes many of them away (a link that goes down or away) is told of here.
"""

import asyncio
import errno
import socket
from collections.abc import Collection
from typing import Final

from coil.kernel.link import LinkName
from coil.kernel.mark import MARK_CLAIM
from coil.netlink.address_message import RTM_DELADDR, RTM_NEWADDR, parse_address_index
from coil.netlink.link_message import RTM_DELLINK, RTM_NEWLINK, RTNLGRP_LINK, parse_link
from coil.netlink.rule_message import RTM_DELRULE, RTM_NEWRULE, parse_rule
from coil.netlink.wire import split_messages

_SOL_NETLINK: Final = 270
_NETLINK_ADD_MEMBERSHIP: Final = 1
_DATAGRAM: Final = 1 << 16
_READS: Final = 64  # datagrams in one turn of the event loop
_RTNLGRP_IPV4_IFADDR: Final = 5
_RTNLGRP_IPV4_RULE: Final = 8
_RTNLGRP_IPV6_IFADDR: Final = 9
_RTNLGRP_IPV6_RULE: Final = 19
_GROUPS: Final = (RTNLGRP_LINK, _RTNLGRP_IPV4_IFADDR, _RTNLGRP_IPV4_RULE, _RTNLGRP_IPV6_IFADDR, _RTNLGRP_IPV6_RULE)


class OverlayWatch:
    """Owns the socket (`link_watch.open_event_socket`), belongs to the running event loop."""

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
        return False
