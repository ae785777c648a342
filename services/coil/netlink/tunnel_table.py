"""The tunnels of a namespace, read. Runs in a worker's thread, in that namespace.

read_tunnels(connection) -> TunnelTable             all: one dump, whose cost grows with the number of links
find_tunnels(names, connection) -> TunnelTable      some, at a constant cost each
"""

import errno
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from coil.kernel.link import Link, LinkName
from coil.kernel.tunnel import CatchAll, Tunnel
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError
from coil.netlink.link_message import dump_links, get_link, parse_link
from coil.netlink.tunnel_message import parse_tunnel


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
