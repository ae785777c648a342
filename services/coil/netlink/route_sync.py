"""Routes of a namespace, read and brought in line. Runs in a worker's thread, in that namespace."""

import errno
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import Link, LinkName
from coil.kernel.route import Route, RouteChanges, diff_routes
from coil.netlink.address_message import dump_addresses, parse_address
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link_table import find_link, read_links
from coil.netlink.request import Request
from coil.netlink.route_message import (
    delete_route,
    dump_routes,
    get_route,
    new_route,
    parse_route,
    parse_route_index,
    replace_route,
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


def find_uplink(node_addresses: Collection[IPAddress], connection: Connection) -> Link:
    """The link that has one of the node's addresses, or else the one that its default route leaves by.

    Raises NetlinkError if there is neither.
    """
    links = {link.index: link for link in read_links(connection)}
    names = {index: link.name for index, link in links.items()}
    if node_addresses:
        holders = {
            address.interface.ip: address.device
            for family in Family
            for body in connection.dump(dump_addresses(family))
            if (address := parse_address(body, names)) is not None
        }
        for node_address in node_addresses:
            for link in links.values():
                if link.name == holders.get(node_address):
                    return link
    for destination in _ANYWHERE:
        try:
            index = parse_route_index(connection.get(get_route(destination)))
        except KernelError:
            continue  # no way there in this family
        if index in links:
            return links[index]
    raise NetlinkError("the node has no uplink: no link has its address, and there is no default route")
