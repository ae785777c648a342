"""Tunnels of the kinds ipip and ip6tnl, wrapped into UDP or flow-based: the codec (IFLA_IPTUN_*, linux/if_tunnel.h,
linux/ip6_tunnel.h), reading them, and making, changing and deleting them.

    read_tunnels(connection)              all: one dump, whose cost grows with the number of links
    find_tunnels(names, connection)       some, at a constant cost each

A change has to name everything: the kernel takes what is left out for zero (ipip_netlink_parms, ip6_tnl_netlink_parms).
Runs in a worker's thread, in the namespace of the tunnels.
"""

import errno
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from coil.kernel.family import Family
from coil.kernel.link import Link, LinkName, LinkState
from coil.kernel.route import Route
from coil.kernel.tunnel import FALLBACK_NAMES, FOU_DUMMY, CatchAll, Tunnel, TunnelKind
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link import (
    add_alternative_name,
    change_virtual_link,
    dump_links,
    find_link,
    get_link,
    new_virtual_link,
    parse_link,
    parse_link_data,
    rename_link,
    set_up,
)
from coil.netlink.removal import remove_links
from coil.netlink.route import replace_route
from coil.netlink.wire import (
    Request,
    attribute,
    attribute_be16,
    attribute_u8,
    attribute_u16,
    attribute_u32,
    parse_attributes,
    parse_be16,
    parse_u8,
    parse_u16,
    parse_u32,
)

_LOCAL = 2
_REMOTE = 3
_TTL = 4
_ENCAP_LIMIT = 6
_FLAGS = 8
_PROTO = 9
_ENCAP_TYPE = 15
_ENCAP_FLAGS = 16
_ENCAP_SPORT = 17
_ENCAP_DPORT = 18
_COLLECT_METADATA = 19
_TUNNEL_ENCAP_FOU = 1
_IP6_TNL_F_IGN_ENCAP_LIMIT = 1
_IPPROTO_IPIP = 4
_IPPROTO_IPV6 = 41


def new_tunnel(tunnel: Tunnel) -> Request:
    """Make the tunnel's link, down. EEXIST where there is a link of its name, or a tunnel between its ends."""
    return new_virtual_link(tunnel.name, tunnel.kind, _tunnel_data(tunnel), mtu=tunnel.mtu)


def set_tunnel(tunnel: Tunnel) -> Request:
    """Make the link of that name be the tunnel, in place. ENODEV where there is none."""
    return change_virtual_link(tunnel.name, tunnel.kind, _tunnel_data(tunnel), mtu=tunnel.mtu)


def new_catch_all(link: CatchAll) -> Request:
    """Make the flow-based link, down. EEXIST where its name is taken or the namespace has another one."""
    return new_virtual_link(link.name, link.kind, _protocol(link.family) + attribute(_COLLECT_METADATA, b""), mtu=0)


def _tunnel_data(tunnel: Tunnel) -> bytes:
    data = (
        attribute(_LOCAL, tunnel.local.packed)
        + attribute(_REMOTE, tunnel.remote.packed)
        + attribute_u8(_TTL, tunnel.ttl)
        + _protocol(tunnel.family)
        + attribute_u16(_ENCAP_TYPE, _TUNNEL_ENCAP_FOU)
        + attribute_u16(_ENCAP_FLAGS, 0)
        + attribute_be16(_ENCAP_SPORT, tunnel.source_port)
        + attribute_be16(_ENCAP_DPORT, tunnel.port)
    )
    if tunnel.family is Family.IPV6:
        flags = 0 if tunnel.encap_limit else _IP6_TNL_F_IGN_ENCAP_LIMIT
        data += attribute_u8(_ENCAP_LIMIT, 0) + attribute_u32(_FLAGS, flags)
    return data


def _protocol(family: Family) -> bytes:
    return attribute_u8(_PROTO, _IPPROTO_IPIP if family is Family.IPV4 else _IPPROTO_IPV6)


def parse_tunnel(body: bytes, link: Link) -> Tunnel | CatchAll | None:
    """Read an RTM_NEWLINK message whose link is `link`. None for all that is neither a tunnel in Foo-over-UDP nor
    flow-based.
    """
    if link.kind not in tuple(TunnelKind):
        return None
    data = parse_attributes(parse_link_data(body), 0)
    if _COLLECT_METADATA in data:
        return CatchAll(name=link.name, family=Family.IPV4 if link.kind == TunnelKind.IPIP else Family.IPV6)
    if parse_u16(data.get(_ENCAP_TYPE, b"\0\0")) != _TUNNEL_ENCAP_FOU or not any(data[_ENCAP_DPORT]):
        return None
    return Tunnel(
        name=link.name,
        local=ip_address(data[_LOCAL]),
        remote=ip_address(data[_REMOTE]),
        port=parse_be16(data[_ENCAP_DPORT]),
        source_port=parse_be16(data[_ENCAP_SPORT]),
        mtu=link.mtu,
        ttl=parse_u8(data[_TTL]),
        encap_limit=link.kind == TunnelKind.IP6TNL and not parse_u32(data[_FLAGS]) & _IP6_TNL_F_IGN_ENCAP_LIMIT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelTable:
    """What was found: the tunnels in Foo-over-UDP and the flow-based links, whoever made them, and all links that were
    looked at, those among them.
    """

    tunnels: tuple[Tunnel, ...]
    catch_alls: tuple[CatchAll, ...]
    links: Mapping[LinkName, Link]


def read_tunnels(connection: Connection) -> TunnelTable:
    """Everything in the namespace."""
    return _table(connection.dump(dump_links()))


def find_tunnels(names: Collection[LinkName], connection: Connection) -> TunnelTable:
    """The links of these names, those that are there."""
    bodies: list[bytes] = []
    for name in names:
        try:
            bodies.append(connection.get(get_link(name)))
        except KernelError as error:
            if error.errno != errno.ENODEV:
                raise
    return _table(bodies)


def _table(bodies: Iterable[bytes]) -> TunnelTable:
    tunnels: list[Tunnel] = []
    catch_alls: list[CatchAll] = []
    links: dict[LinkName, Link] = {}
    for body in bodies:
        link = parse_link(body)
        links[link.name] = link
        found = parse_tunnel(body, link)
        if isinstance(found, Tunnel):
            tunnels.append(found)
        elif found is not None:
            catch_alls.append(found)
    return TunnelTable(tunnels=tuple(tunnels), catch_alls=tuple(catch_alls), links=links)


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
            name = add_alternative_name(link.index, FOU_DUMMY)
            # The other family's link has it, or that of Coil in Go. Kernels before 5.5 have no such names.
            connection.apply((name,), tolerate={errno.EEXIST, errno.EOPNOTSUPP})
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
