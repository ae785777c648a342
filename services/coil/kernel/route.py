"""Routes and the difference of two sets of them.

The numbers are those of linux/rtnetlink.h. Invariant: routes are written the way the kernel reads them back
(IPv6 has no scope; metric 0 stands for the family's default), so equality is identity in the kernel.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Network, IPv6Network

from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LinkName

DEFAULT_NETWORKS: dict[Family, IPNetwork] = {
    Family.IPV4: IPv4Network("0.0.0.0/0"),
    Family.IPV6: IPv6Network("::/0"),
}


class RouteTable(IntEnum):
    """The tables that every namespace has; any other number up to 2^32 − 1 may be used as well."""

    DEFAULT = 253
    MAIN = 254
    LOCAL = 255


class RouteProtocol(IntEnum):
    """Who installed a route: the values below STATIC are reserved, the others are agreements between daemons."""

    UNSPEC = 0
    REDIRECT = 1
    KERNEL = 2
    BOOT = 3
    STATIC = 4


class RouteScope(IntEnum):
    """How far away the destination is (IPv4 only)."""

    UNIVERSE = 0
    LINK = 253
    HOST = 254
    NOWHERE = 255


class RouteType(IntEnum):
    """What happens to a packet that matches; `ip route` names all but UNICAST in its first column."""

    UNSPEC = 0
    UNICAST = 1
    LOCAL = 2
    BROADCAST = 3
    ANYCAST = 4
    MULTICAST = 5
    BLACKHOLE = 6
    UNREACHABLE = 7
    PROHIBIT = 8
    THROW = 9
    NAT = 10
    XRESOLVE = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route. `device` is None where the kernel names no single link: a blackhole, or several next hops.

    `table`, `protocol` and `scope` are open number ranges; the enums above hold the well-known ones. `metric`
    0 is the kernel's default of the family.
    """

    destination: IPNetwork
    device: LinkName | None
    gateway: IPAddress | None = None
    table: int = RouteTable.MAIN
    protocol: int = RouteProtocol.BOOT
    scope: int = RouteScope.UNIVERSE
    type: RouteType = RouteType.UNICAST
    metric: int = 0

    def __post_init__(self) -> None:
        if self.gateway is not None and self.gateway.version != self.destination.version:
            raise ValueError(f"gateway {self.gateway} is not of the family of {self.destination}")
        if self.destination.version == 6 and self.scope != RouteScope.UNIVERSE:
            raise ValueError(f"IPv6 routes have no scope: {self.destination}")

    @property
    def family(self) -> Family:
        return Family.of(self.destination)

    def __str__(self) -> str:
        via = f" via {self.gateway}" if self.gateway else ""
        device = f" dev {self.device}" if self.device else ""
        return f"route {self.destination}{via}{device} table {int(self.table)} proto {int(self.protocol)}"


def link_scope(destination: IPNetwork) -> RouteScope:
    """The scope of a route without a gateway: LINK in IPv4, and the only one there is in IPv6."""
    return RouteScope.LINK if destination.version == 4 else RouteScope.UNIVERSE


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChanges:
    """What leads from one set of routes to another: first the deletes, then the adds. Both sorted, so that
    runs are alike.
    """

    deletes: tuple[Route, ...]
    adds: tuple[Route, ...]

    def __bool__(self) -> bool:
        return bool(self.deletes or self.adds)


def diff_routes(actual: Collection[Route], wanted: Collection[Route]) -> RouteChanges:
    """The changes that turn `actual` into `wanted`. Duplicates in either count once."""
    have, want = frozenset(actual), frozenset(wanted)
    return RouteChanges(deletes=tuple(sorted(have - want, key=_order)), adds=tuple(sorted(want - have, key=_order)))


def _order(route: Route) -> tuple[object, ...]:
    network = route.destination
    return (
        int(route.table),
        network.version,
        int(network.network_address),
        network.prefixlen,
        route.metric,
        str(route.device or ""),
        str(route.gateway or ""),
        int(route.protocol),
        int(route.scope),
        int(route.type),
    )
