"""Routes on the wire: `struct rtmsg` (linux/rtnetlink.h)."""

import struct
from collections.abc import Mapping
from ipaddress import ip_address, ip_network

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import DEFAULT_NETWORKS, Route, RouteScope, RouteType
from coil.netlink.request import Request
from coil.netlink.wire import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REPLACE,
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
_RTNH_F_ONLINK = 4
_RTA_DST = 1
_RTA_OIF = 4
_RTA_GATEWAY = 5
_RTA_PRIORITY = 6
_RTA_TABLE = 15

IP6_DEFAULT_METRIC = 1024
"""IP6_RT_PRIO_USER of linux/ipv6_route.h: what the kernel stores for a route that was given no metric."""


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
    if index:
        body += attribute_u32(_RTA_OIF, index)
    metric = route.metric or (IP6_DEFAULT_METRIC if route.family is Family.IPV6 else 0)
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


def parse_route_index(body: bytes) -> int:
    """The link index of an RTM_NEWROUTE message, 0 if it names no single link."""
    oif = parse_attributes(body, _RTMSG.size).get(_RTA_OIF)
    return parse_u32(oif) if oif is not None else 0


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
    )
