"""What others' rules and routes make of what pods send (`coil.eni.diversion`), as the kernel has them now. Runs in a
worker's thread, in the node's namespace; changes nothing.
"""

from collections.abc import Collection, Mapping
from typing import Final

from coil.eni.diversion import find_diversions, find_tables
from coil.eni.interface import InterfaceId
from coil.eni.node_plan import AttachedInterface
from coil.kernel.family import Family
from coil.kernel.link import Link
from coil.kernel.route import Route
from coil.netlink.connection import Connection
from coil.netlink.link import read_links
from coil.netlink.route import dump_routes, parse_route
from coil.netlink.rule import read_foreign_rules

_VETH: Final = "veth"


def read_diversions(
    interfaces: Collection[AttachedInterface], links: Mapping[InterfaceId, Link], connection: Connection
) -> tuple[str, ...]:
    """A sentence for each rule and route that catches what pods send. `links` are those of the interfaces.

    Costs a pass over the links, the rules, main, and each table that is looked up for pods' packets. Raises
    NetlinkError.
    """
    indices = {link.index: interface for interface, link in links.items()}
    names = {}
    own, pod_links = {}, set()
    for link in read_links(connection):
        names[link.index] = link.name
        if link.index in indices:
            own[indices[link.index]] = link.name
        elif link.kind == _VETH:
            pod_links.add(link.name)
    rules = read_foreign_rules(connection)
    tables: dict[int, list[Route]] = {}
    for table in find_tables(rules, interfaces, own, pod_links):
        bodies = [body for family in Family for body in connection.dump(dump_routes(family, table))]
        routes = (parse_route(body, names) for body in bodies)
        tables[table] = [route for route in routes if route is not None and route.table == table]
    return find_diversions(rules, tables, interfaces, own, pod_links)
