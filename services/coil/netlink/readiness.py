"""Waits for what the kernel finishes on its own after it has answered, so that no packet is lost to haste. Runs in a
worker's thread.

Of a veth, the end that came up first gets its carrier with the second, but its transmit queue is started by a work item
(net/core/link_watch.c); since Linux 6.8, asking for the link runs that item at once. An IPv6 address, even one without
duplicate address detection, joins its multicast groups and gets its local route in another work item
(addrconf_dad_work). Both take microseconds, on a busy machine milliseconds.
"""

import errno
import time
from collections.abc import Iterator
from typing import Final

from coil.kernel.link import Address, LinkName
from coil.kernel.route import RouteType
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link import get_link, parse_link
from coil.netlink.route import get_route, parse_route_type

_PAUSES: Final = tuple(0.0001 * 1.5**attempt for attempt in range(24))
"""Seconds between looks at something that is about to happen: three seconds in all."""


def await_carrier(name: LinkName, connection: Connection) -> None:
    """Wait until the link can send. Raises NetlinkError after three seconds."""
    pauses = iter(_PAUSES)
    while not parse_link(connection.get(get_link(name))).carrier:
        _pause(pauses, f"carrier of {name}")


def await_local(address: Address, index: int, connection: Connection) -> None:
    """Wait until packets to the address of the link `index` are received. Raises NetlinkError after three seconds."""
    pauses = iter(_PAUSES)
    while not _is_local(address, index, connection):
        _pause(pauses, str(address))


def _is_local(address: Address, index: int, connection: Connection) -> bool:
    try:
        body = connection.get(get_route(address.interface.ip, index))
    except KernelError as error:
        if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return False  # there is no other route either
        raise
    return parse_route_type(body) is RouteType.LOCAL


def _pause(pauses: Iterator[float], awaited: str) -> None:
    try:
        time.sleep(next(pauses))
    except StopIteration:
        raise NetlinkError(f"waited in vain for the {awaited}") from None
