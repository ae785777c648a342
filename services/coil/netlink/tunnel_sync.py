"""Tunnels made, changed and taken away. Runs in a worker's thread, in the namespace of the tunnels.

    create_tunnel(tunnel, connection) -> int                the index; the link is down
    open_tunnel(index, routes, connection)                  up, and at once its routes
    change_tunnel(tunnel, connection)                       in place: index, state and routes stay
    delete_tunnels(names)                                   many at once, with their routes
    ensure_catch_alls(catch_alls, connection)               flow-based links, up
    rename_fallbacks(connection)                            tunl0 and ip6tnl0, which the kernel adds to each namespace

Each tunnel costs the same, however many there are: nothing here asks for a list. One that fails raises for itself, so a
caller goes on with the others. A namespace should have its flow-based links before its first tunnel: what arrives
before a peer's own tunnel is there, or while that is changed, is received by them.
"""

import errno
from collections.abc import Collection
from typing import Final

from coil.kernel.link import LinkName, LinkState
from coil.kernel.route import Route
from coil.kernel.tunnel import FALLBACK_NAMES, CatchAll, Tunnel, TunnelKind
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link_message import get_link, parse_link, rename_link, set_up
from coil.netlink.link_table import find_link
from coil.netlink.removal import remove_links
from coil.netlink.request import Request
from coil.netlink.route_message import replace_route
from coil.netlink.tunnel_message import new_catch_all, new_tunnel, set_tunnel
from coil.netlink.tunnel_table import find_tunnels

_MODULES: Final = {TunnelKind.IPIP: ("ipip", "fou"), TunnelKind.IP6TNL: ("ip6_tunnel", "fou6")}
"""Of each kind of link, the module that has it, and the one that wraps it into UDP."""

_BATCH: Final = 64  # deletions that the kernel makes while everybody else waits for its lock of links


def create_tunnel(tunnel: Tunnel, connection: Connection) -> int:
    """Make the tunnel's link, down, and return its index.

    Not idempotent: raises KernelError (EEXIST) where there is a link of its name, or a tunnel between the same two
    addresses. Where the kernel lacks a module, NetlinkError names it.
    """
    _create(new_tunnel(tunnel), tunnel.kind, connection)
    return parse_link(connection.get(get_link(tunnel.name))).index


def open_tunnel(index: int, routes: Collection[Route], connection: Connection) -> None:
    """Bring the link up and have the routes lead over it, each in the place of the one that is there, if any.

    Idempotent. Raises KernelError for the first step that the kernel refused, after having tried the others.
    """
    connection.apply([set_up(index), *(replace_route(route, index) for route in routes)])


def change_tunnel(tunnel: Tunnel, connection: Connection) -> None:
    """Make the link of that name be the tunnel, without taking it down. Idempotent.

    The kernel has no lock between this and what is sent: a packet that another processor puts into the tunnel in the
    same microsecond may be dropped, or leave as IP in IP without UDP around it (ip_tunnel_encap_setup, ip6_tnl_update).
    Measured with a sender that never paused: five packets in 2646 changes (IPv4), eight in 710 (IPv6).

    Raises KernelError: ENODEV where there is no such link, EOPNOTSUPP where it is of another kind.
    """
    connection.apply((set_tunnel(tunnel),))


def delete_tunnels(names: Collection[LinkName]) -> None:
    """Delete the links, and with them the routes over them. Idempotent. Raises KernelError.

    Many cost little more than one: the kernel's waits are for all in a batch together.
    """
    ordered = sorted(names)
    for start in range(0, len(ordered), _BATCH):
        remove_links(ordered[start : start + _BATCH])


def ensure_catch_alls(catch_alls: Collection[CatchAll], connection: Connection) -> bool:
    """Have each flow-based link there and up; returns whether there was anything to do. Idempotent.

    Raises NetlinkError where its name is another link's, or the namespace has a flow-based link of another name.
    """
    changed = False
    table = find_tunnels([wanted.name for wanted in catch_alls], connection)
    for wanted in catch_alls:
        link = table.links.get(wanted.name)
        if link is None:
            _create(new_catch_all(wanted), wanted.kind, connection)
            link = parse_link(connection.get(get_link(wanted.name)))
        elif wanted not in table.catch_alls:
            raise NetlinkError(f"there is a link {wanted.name} already, and it is no {wanted}")
        if link.state is not LinkState.UP:
            connection.apply((set_up(link.index),))
            changed = True
    return changed


def rename_fallbacks(connection: Connection) -> bool:
    """Take the fallback devices' names away from what would set them up by mistake; returns whether any was there.

    Idempotent. One that is up is in use, and keeps its name. None is there before a module makes its first link, nor
    where net.core.fb_tunnels_only_for_init_net says so.
    """
    changed = False
    for old, new in FALLBACK_NAMES.items():
        link = find_link(old, connection)
        if link is not None and link.state is LinkState.DOWN:
            connection.apply((rename_link(link.index, new),), tolerate={errno.EBUSY, errno.EEXIST, errno.ENODEV})
            changed = True
    return changed


def _create(request: Request, kind: TunnelKind, connection: Connection) -> None:
    try:
        connection.apply((request,))
    except KernelError as error:
        links, wrapping = _MODULES[kind]
        missing = {errno.EOPNOTSUPP: links, errno.EINVAL: wrapping}.get(error.errno)
        if missing is None:
            raise
        raise NetlinkError(f"{error}; is the module there? On the node, run `modprobe {missing}`") from error
