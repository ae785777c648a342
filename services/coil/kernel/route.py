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

IP6_DEFAULT_METRIC = 1024
"""IP6_RT_PRIO_USER of linux/ipv6_route.h: what the kernel stores for a route that was given no metric."""


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
    ROUTER_ADVERTISEMENT = 9
    """By the kernel, or by a daemon in its place, from what a router said (RFC 4861)."""


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
    0 is the kernel's default of the family. `onlink`: the gateway is on the link, whatever the link's networks are.
    `source` is the address that packets have if their sender has chosen none; it must be one of the namespace.
    """

    destination: IPNetwork
    device: LinkName | None
    gateway: IPAddress | None = None
    table: int = RouteTable.MAIN
    protocol: int = RouteProtocol.BOOT
    scope: int = RouteScope.UNIVERSE
    type: RouteType = RouteType.UNICAST
    metric: int = 0
    onlink: bool = False
    source: IPAddress | None = None

    def __post_init__(self) -> None:
        if self.source is not None and self.source.version != self.destination.version:
            raise ValueError(f"source {self.source} is not of the family of {self.destination}")
        if self.gateway is not None and self.gateway.version != self.destination.version:
            raise ValueError(f"gateway {self.gateway} is not of the family of {self.destination}")
        if self.destination.version == 6 and self.scope != RouteScope.UNIVERSE:
            raise ValueError(f"IPv6 routes have no scope: {self.destination}")

    @property
    def family(self) -> Family:
        return Family.of(self.destination)

    @property
    def effective_metric(self) -> int:
        """What the kernel compares: of routes to one destination, the one with the lowest counts."""
        return self.metric or (IP6_DEFAULT_METRIC if self.family is Family.IPV6 else 0)

    @property
    def key(self) -> "RouteKey":
        """Where in its table the route is."""
        return RouteKey(self.destination, self.metric)

    def __str__(self) -> str:
        via = f" via {self.gateway}" if self.gateway else ""
        device = f" dev {self.device}" if self.device else ""
        source = f" src {self.source}" if self.source else ""
        return f"route {self.destination}{via}{device}{source} table {int(self.table)} proto {int(self.protocol)}"


def link_scope(destination: IPNetwork) -> RouteScope:
    """The scope of a route without a gateway: LINK in IPv4, and the only one there is in IPv6."""
    return RouteScope.LINK if destination.version == 4 else RouteScope.UNIVERSE


@dataclass(frozen=True, slots=True)
class RouteKey:
    """What the kernel tells routes of one table apart by. Only one of them can be added with NLM_F_EXCL; what comes
    to be in one place by other means (appended, several next hops) is somebody's intention.
    """

    destination: IPNetwork
    metric: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChanges:
    """What leads from one set of routes to another, to be carried out in the order of the fields.

    A destination that both sets have is never without a route meanwhile, and a network that is divided or united is
    never left to a wider route: what comes is there before what goes. All sorted, so that runs are alike.
    """

    clears: tuple[Route, ...] = ()
    """Deletes that must come first: several routes share the place of one that is wanted."""
    replaces: tuple[Route, ...] = ()
    """Each takes the place of the one route that is there, in one step."""
    adds: tuple[Route, ...] = ()
    deletes: tuple[Route, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.clears or self.replaces or self.adds or self.deletes)


def diff_routes(actual: Collection[Route], wanted: Collection[Route], others: Collection[Route] = ()) -> RouteChanges:
    """The changes that turn `actual` into `wanted`, all of one table. Duplicates in either count once.

    `others` are in the same table and nobody's to touch: a place that one of them shares is never replaced, as it is
    not certain whose route would go.
    """
    have, want = frozenset(actual), frozenset(wanted)
    old: dict[RouteKey, list[Route]] = {}
    for route in sorted(have - want, key=_order):
        old.setdefault(route.key, []).append(route)
    shared = {route.key for route in (*(have & want), *others)} if old else frozenset()
    clears: list[Route] = []
    replaces: list[Route] = []
    adds: list[Route] = []
    for route in sorted(want - have, key=_order):
        leaving = old.pop(route.key, [])
        if len(leaving) == 1 and route.key not in shared:
            replaces.append(route)
        else:
            clears += leaving
            adds.append(route)
    deletes = [route for leaving in old.values() for route in leaving]
    return RouteChanges(clears=tuple(clears), replaces=tuple(replaces), adds=tuple(adds), deletes=tuple(deletes))


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
        route.onlink,
        str(route.source or ""),
    )
