"""Routes: the codec (`struct rtmsg`, linux/rtnetlink.h), and the routes of a namespace read and brought in line.

    read_routes(table, connection)                            one table, both families
    sync_routes(table=, protocol=, plan=, connection=)        exactly these of that protocol in that table
    add_routes(routes, connection)                            besides what is there
    find_uplink(node_addresses, connection)                   the link by which packets leave the node

Runs in a worker's thread, in that namespace.
"""

import errno
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from coil.egress.gateway import Uplink
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LOOPBACK, Link, LinkName
from coil.kernel.route import (
    DEFAULT_NETWORKS,
    IP6_DEFAULT_METRIC,
    Route,
    RouteChanges,
    RouteScope,
    RouteTable,
    RouteType,
    diff_routes,
)
from coil.netlink.address import dump_addresses, parse_address
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link import find_link, read_links
from coil.netlink.wire import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Request,
    attribute,
    attribute_u32,
    parse_attributes,
    parse_u32,
)

RTM_NEWROUTE = 24
RTM_DELROUTE = 25
RTM_GETROUTE = 26

_RTMSG = struct.Struct("=BBBBBBBBI")  # family, dst and src length, tos, table, protocol, scope, type, flags
_RTM_F_CLONED = 0x200
_RTM_F_FIB_MATCH = 0x2000
"""Answer with the route that a lookup finds, and not with the way of one packet."""
_RTNH_F_ONLINK = 4
_RTA_DST = 1
_RTA_OIF = 4
_RTA_GATEWAY = 5
_RTA_PRIORITY = 6
_RTA_PREFSRC = 7
_RTA_MULTIPATH = 9
_RTA_TABLE = 15
_RTA_VIA = 18  # a gateway of the other family, RFC 5549
_NEXT_HOP = struct.Struct("=HBBi")  # rtnexthop: length, flags, weight, link


def new_route(route: Route, index: int) -> Request:
    """Add a route over the link `index`. EEXIST where there is one of the same destination, table and metric."""
    body = _route_body(route, index, scope=route.scope, type_=route.type)
    return Request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, body, ("add", route))


def replace_route(route: Route, index: int) -> Request:
    """Put a route over the link `index` into the place of the one that is there, whoever made that; add it if there
    is none. No lookup meanwhile finds neither (fib_table_insert, fib6_add_rt2node).
    """
    body = _route_body(route, index, scope=route.scope, type_=route.type)
    return Request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body, ("replace", route))


def delete_route(route: Route, index: int) -> Request:
    """Delete that route and no other: the kernel compares table, protocol, metric, gateway and link as well."""
    return Request(RTM_DELROUTE, 0, _route_body(route, index, scope=route.scope, type_=route.type), ("delete", route))


def _route_body(route: Route, index: int, *, scope: int, type_: int) -> bytes:
    network = route.destination
    flags = _RTNH_F_ONLINK if route.onlink else 0
    body = _RTMSG.pack(route.family, network.prefixlen, 0, 0, 0, route.protocol, scope, type_, flags)
    body += attribute(_RTA_DST, network.network_address.packed) + attribute_u32(_RTA_TABLE, route.table)
    if route.gateway is not None:
        body += attribute(_RTA_GATEWAY, route.gateway.packed)
    if route.source is not None:
        body += attribute(_RTA_PREFSRC, route.source.packed)
    if index:
        body += attribute_u32(_RTA_OIF, index)
    metric = route.effective_metric
    return body + attribute_u32(_RTA_PRIORITY, metric) if metric else body


def dump_routes(family: Family, table: int) -> Request:
    """Ask for one table; the kernel filters (a socket with strict checking), so a full BGP table elsewhere
    costs nothing.
    """
    body = _RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0) + attribute_u32(_RTA_TABLE, table)
    return Request(RTM_GETROUTE, NLM_F_DUMP, body, ("list the routes of table", table))


def dump_link_routes(family: Family, *, index: int, protocol: int) -> Request:
    """Ask for the routes of a protocol over one link, in whatever table; the kernel filters."""
    body = _RTMSG.pack(family, 0, 0, 0, 0, protocol, 0, 0, 0) + attribute_u32(_RTA_OIF, index)
    return Request(RTM_GETROUTE, NLM_F_DUMP, body, ("list the routes over link", index))


def dump_protocol_routes(family: Family, protocol: int) -> Request:
    """Ask for the routes of a protocol, in whatever table; the kernel filters."""
    body = _RTMSG.pack(family, 0, 0, 0, 0, protocol, 0, 0, 0)
    return Request(RTM_GETROUTE, NLM_F_DUMP, body, ("list the routes of protocol", protocol))


def get_route(destination: IPAddress, index: int = 0) -> Request:
    """Ask which route a packet to `destination` would take, if it had to leave by the link `index`."""
    family = Family.of(destination)
    body = _RTMSG.pack(family, destination.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    body += attribute(_RTA_DST, destination.packed)
    if index:
        body += attribute_u32(_RTA_OIF, index)
    return Request(RTM_GETROUTE, 0, body, ("find the way to", destination))


def parse_route_type(body: bytes) -> RouteType:
    """The type of an RTM_NEWROUTE message: LOCAL where the destination is an address of the namespace itself."""
    return RouteType(_RTMSG.unpack_from(body)[7])


def match_route(destination: IPAddress) -> Request:
    """Ask which route a packet to `destination` would find: with all of its next hops."""
    body = _RTMSG.pack(Family.of(destination), destination.max_prefixlen, 0, 0, 0, 0, 0, 0, _RTM_F_FIB_MATCH)
    return Request(RTM_GETROUTE, 0, body + attribute(_RTA_DST, destination.packed), ("find the route to", destination))


def parse_next_hops(body: bytes) -> tuple[int, ...]:
    """The indices of all links that the route of an RTM_NEWROUTE message leads over."""
    attributes = parse_attributes(body, _RTMSG.size)
    if _RTA_OIF in attributes:
        return (parse_u32(attributes[_RTA_OIF]),)
    hops, found, offset = attributes.get(_RTA_MULTIPATH, b""), [], 0
    while offset + _NEXT_HOP.size <= len(hops):
        length, _flags, _weight, index = _NEXT_HOP.unpack_from(hops, offset)
        found.append(index)
        offset += max(length + 3 & ~3, _NEXT_HOP.size)
    return tuple(found)


def parse_route_place(body: bytes) -> tuple[int, int, IPNetwork]:
    """The table, protocol and destination of an RTM_NEWROUTE or RTM_DELROUTE message, over whatever link."""
    family, length, _src, _tos, table, protocol, _scope, _type, _flags = _RTMSG.unpack_from(body)
    attributes = parse_attributes(body, _RTMSG.size)
    packed = attributes.get(_RTA_DST)
    destination = ip_network((packed, length)) if packed else DEFAULT_NETWORKS[Family(family)]
    return parse_u32(attributes[_RTA_TABLE]) if _RTA_TABLE in attributes else table, protocol, destination


def parse_route(body: bytes, names: Mapping[int, LinkName]) -> Route | None:
    """Read an RTM_NEWROUTE message; None for entries of the route cache and for routes over links that are
    gone.
    """
    family, length, _src, _tos, table, protocol, scope, type_, flags = _RTMSG.unpack_from(body)
    attributes = parse_attributes(body, _RTMSG.size)
    oif = attributes.get(_RTA_OIF)
    device = names.get(parse_u32(oif)) if oif is not None else None
    if flags & _RTM_F_CLONED or (oif is not None and device is None):
        return None
    destination = attributes.get(_RTA_DST)
    gateway = attributes.get(_RTA_GATEWAY)
    source = attributes.get(_RTA_PREFSRC)
    metric = parse_u32(attributes[_RTA_PRIORITY]) if _RTA_PRIORITY in attributes else 0
    ipv6 = family == Family.IPV6
    return Route(
        destination=ip_network((destination, length)) if destination else DEFAULT_NETWORKS[Family(family)],
        device=device,
        gateway=ip_address(gateway) if gateway is not None else None,
        table=parse_u32(attributes[_RTA_TABLE]) if _RTA_TABLE in attributes else table,
        protocol=protocol,
        scope=RouteScope.UNIVERSE if ipv6 else scope,
        type=RouteType(type_),
        metric=0 if ipv6 and metric == IP6_DEFAULT_METRIC else metric,
        onlink=bool(flags & _RTNH_F_ONLINK),
        source=ip_address(source) if source is not None else None,
    )


_ANYWHERE: tuple[IPAddress, ...] = (IPv4Address("203.0.113.1"), IPv6Address("2001:db8::1"))
"""Addresses for documentation: nothing but a default route leads to them."""


@dataclass(frozen=True, slots=True)
class RouteAdditions:
    """What became of routes that were to be added: those that were, and those whose place was taken."""

    added: tuple[Route, ...] = ()
    refused: tuple[Route, ...] = ()


def read_routes(table: int, connection: Connection) -> list[Route]:
    """The routes of one table in both families, whoever installed them."""
    # The routes first: one whose link is not in the list then has lost it meanwhile, and is gone as well.
    bodies = [body for family in Family for body in connection.dump(dump_routes(family, table))]
    names = {link.index: link.name for link in read_links(connection)}
    routes = (parse_route(body, names) for body in bodies)
    return [route for route in routes if route is not None and route.table == table]


def sync_routes(
    *, table: int, protocol: int, plan: Callable[[list[Route]], Collection[Route]], connection: Connection
) -> RouteChanges:
    """Make what `plan` returns the routes of that protocol in that table; it is given the routes of other protocols
    there, which are not touched.

    One next hop changes to another in one step; else routes are added before others are deleted. (The kernel replaces
    whatever is in a place: should another program take ours within the milliseconds since it was read, that goes.)
    Raises NetlinkError for the first route that could not be put in or taken out, after having tried all the others.
    """
    mine: list[Route] = []
    others: list[Route] = []
    for route in read_routes(table, connection):
        (mine if route.protocol == protocol else others).append(route)
    wanted = plan(others)
    strangers = [route for route in wanted if (route.table, route.protocol) != (table, protocol)]
    if strangers:
        raise ValueError(f"not of table {table} and protocol {protocol}: {strangers[0]}")
    changes = diff_routes(mine, wanted, others)
    if not changes:
        return changes
    indices = {link.name: link.index for link in read_links(connection)}
    errors = [
        *_delete(changes.clears, indices, connection),
        *_put(changes.replaces, replace_route, indices, connection),
        *_put(changes.adds, new_route, indices, connection),
        *_delete(changes.deletes, indices, connection),
    ]
    for error in errors:
        raise error
    return changes


def add_routes(routes: Collection[Route], connection: Connection) -> RouteAdditions:
    """Add each route to what is there, and replace nothing. A route that is there already, or whose link is gone, is
    neither added nor refused. Raises NetlinkError for the first that the kernel did not take.
    """
    added: list[Route] = []
    doubtful: list[Route] = []
    for route in routes:
        link = find_link(route.device, connection) if route.device is not None else None
        if route.device is not None and link is None:
            continue
        try:
            connection.apply((new_route(route, link.index if link is not None else 0),))
            added.append(route)
        except KernelError as error:
            if error.errno == errno.EEXIST:
                doubtful.append(route)
            elif error.errno != errno.ENODEV:
                raise
    there = {
        (table, route.destination, route.device)
        for table in {route.table for route in doubtful}
        for route in read_routes(table, connection)
    }
    refused = (route for route in doubtful if (route.table, route.destination, route.device) not in there)
    return RouteAdditions(tuple(added), tuple(refused))


def _delete(routes: Collection[Route], indices: Mapping[LinkName, int], connection: Connection) -> list[NetlinkError]:
    # A route without its link is gone already; ESRCH says that someone else was faster.
    requests = [
        delete_route(route, indices[route.device] if route.device else 0)
        for route in routes
        if route.device is None or route.device in indices
    ]
    return [*connection.submit(requests, tolerate={errno.ESRCH})]


def _put(
    routes: Collection[Route],
    request: Callable[[Route, int], Request],
    indices: Mapping[LinkName, int],
    connection: Connection,
) -> list[NetlinkError]:
    errors: list[NetlinkError] = []
    requests = []
    for route in routes:
        if route.device is not None and route.device not in indices:
            errors.append(NetlinkError(f"{route}: there is no link {route.device}"))
        else:
            requests.append(request(route, indices[route.device] if route.device else 0))
    return [*connection.submit(requests), *errors]


def find_links(destinations: Iterable[IPAddress], connection: Connection) -> dict[IPAddress, LinkName]:
    """The link that a packet to each of them leaves by; nothing for those that there is no route to."""
    names = {link.index: link.name for link in read_links(connection)}
    found = {}
    for destination in destinations:
        try:
            hops = parse_next_hops(connection.get(get_route(destination)))
        except KernelError as error:
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
                continue
            raise
        if hops and hops[0] in names:
            found[destination] = names[hops[0]]
    return found


def find_uplink(node_addresses: Collection[IPAddress], connection: Connection) -> Link:
    """The link by which packets leave the node, and of several the one of the smallest MTU.

    It is the one that has one of the node's addresses in a network of its own. A node that speaks BGP has its address
    alone on lo or another link by which nothing leaves: then those count that the default routes lead over, and where
    it is told of every network and has no default route, those of all routers.

    Raises NetlinkError if there is neither.
    """
    links = {link.index: link for link in read_links(connection)}
    hops = set(_default_hops(connection)) or set(_router_hops(connection))
    ways = [links[index] for index in hops if index in links]
    for holder in _holders(node_addresses, links, connection) if node_addresses else ():
        if not holder.alone or any(holder.link.index == way.index for way in ways):
            return holder.link
    ways = [link for link in ways if link.name != LOOPBACK]
    if not ways:
        raise NetlinkError(
            "the node has no uplink: there is no route to a router, and no link has its address in a network of its own"
        )
    return min(ways, key=lambda link: (link.mtu, link.name))


@dataclass(frozen=True, slots=True)
class _Holder:
    """A link that has one of the node's addresses; `alone`: as a host's address, without a network."""

    link: Link
    alone: bool


def _holders(
    node_addresses: Iterable[IPAddress], links: Mapping[int, Link], connection: Connection
) -> Iterator[_Holder]:
    """In the order of the addresses."""
    names = {index: link.name for index, link in links.items()}
    by_name = {link.name: link for link in links.values()}
    held = {
        address.interface.ip: address
        for family in Family
        for body in connection.dump(dump_addresses(family))
        if (address := parse_address(body, names)) is not None
    }
    for node_address in node_addresses:
        if (address := held.get(node_address)) is not None:
            network = address.interface.network
            yield _Holder(by_name[address.device], network.num_addresses == 1 or address.device == LOOPBACK)


def _default_hops(connection: Connection) -> Iterator[int]:
    """Indices of the links that the default routes lead over."""
    for destination in _ANYWHERE:
        try:
            yield from parse_next_hops(connection.get(match_route(destination)))
        except KernelError:
            continue  # no way there in this family


def _router_hops(connection: Connection) -> Iterator[int]:
    """Indices of the links over which there are routers, by the main table."""
    for family in Family:
        for body in connection.dump(dump_routes(family, RouteTable.MAIN)):
            if not {_RTA_GATEWAY, _RTA_VIA, _RTA_MULTIPATH}.isdisjoint(parse_attributes(body, _RTMSG.size)):
                yield from parse_next_hops(body)


def read_uplink(name: LinkName, connection: Connection) -> Uplink:
    """The link without its routes. Raises NetlinkError where there is none."""
    return as_uplink(name, find_link(name, connection))


def as_uplink(name: LinkName, link: Link | None, routes: tuple[Route, ...] = ()) -> Uplink:
    """A link that was found, or was not. Raises NetlinkError where it was not."""
    if link is None:
        raise NetlinkError(f"there is no link {name}, which would be the uplink")
    return Uplink(name=link.name, index=link.index, mtu=link.mtu, routes=routes)


def read_uplink_routes(name: LinkName, connection: Connection) -> tuple[Route, ...]:
    """What of the main table leaves by the link and nothing else."""
    routes = read_routes(RouteTable.MAIN, connection)
    return tuple(route for route in routes if route.device == name and route.type is RouteType.UNICAST)
