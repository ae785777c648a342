"""Which addresses are on a link of this node, as its main table tells. Pure."""

from collections.abc import Iterable

from coil.kernel.family import IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import Route, RouteScope, RouteType


class Neighbourhood:
    """Longest prefix match over the routes of one table; of routes to one network, the one of the least metric."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._best: dict[tuple[int, int], dict[int, Route]] = {}
        for route in routes:
            network = route.destination
            entries = self._best.setdefault((network.version, network.prefixlen), {})
            known = entries.get(int(network.network_address))
            if known is None or route.metric < known.metric:
                entries[int(network.network_address)] = route
        self._lengths = sorted(self._best, key=lambda family_and_length: -family_and_length[1])

    def link_to(self, address: IPAddress) -> LinkName | None:
        """The link on which the address is a neighbour; None if it is behind a router, or nowhere."""
        for version, length in self._lengths:
            if version == address.version:
                host_bits = address.max_prefixlen - length
                route = self._best[version, length].get(int(address) >> host_bits << host_bits)
                if route is not None:
                    return route.device if _is_direct(route) else None
        return None


def _is_direct(route: Route) -> bool:
    # An IPv4 route may have an IPv6 gateway (RTA_VIA), which `Route` does not hold; its scope then is not the link's.
    scope = RouteScope.LINK if route.destination.version == 4 else RouteScope.UNIVERSE
    return route.type is RouteType.UNICAST and route.gateway is None and route.scope == scope
