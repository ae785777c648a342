"""The uplink of the namespace that the calling thread is in, as the plans want it."""

from coil.egress.uplink import Uplink
from coil.kernel.link import Link, LinkName
from coil.kernel.route import Route, RouteTable, RouteType
from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.link_table import find_link
from coil.netlink.route_sync import read_routes


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
