from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import DEFAULT_NETWORKS, Route, RouteScope, RouteType
from coil.podnet.neighbourhood import Neighbourhood


def direct(network: str, device: str, *, metric: int = 0) -> Route:
    """As the kernel makes one of an address on a link, or an admin with `scope link`."""
    destination = ip_network(network)
    scope = RouteScope.LINK if destination.version == 4 else RouteScope.UNIVERSE
    return Route(destination=destination, device=LinkName(device), scope=scope, metric=metric)


def routed(network: str, gateway: str, *, metric: int = 0) -> Route:
    return Route(destination=ip_network(network), device=LinkName("eth0"), gateway=ip_address(gateway), metric=metric)


TABLE = [
    direct("192.0.2.0/24", "eth0"),
    routed("192.0.2.128/25", "192.0.2.1"),
    direct("192.0.2.129/32", "eth1"),
    routed("0.0.0.0/0", "192.0.2.1"),
    direct("2001:db8::/64", "eth0"),
    Route(destination=ip_network("2001:db8::bad/128"), device=None, type=RouteType.BLACKHOLE),
    direct("198.51.100.0/24", "slow", metric=200),
    direct("198.51.100.0/24", "fast", metric=100),
    routed("203.0.113.0/24", "192.0.2.1", metric=5),
    direct("203.0.113.0/24", "eth9", metric=6),
    # default via inet6 …: a gateway that `Route` does not hold.
    Route(destination=ip_network("100.64.0.0/10"), device=LinkName("eth0"), scope=RouteScope.UNIVERSE),
]


@pytest.mark.parametrize(
    ("address", "link"),
    [
        ("192.0.2.7", "eth0"),
        ("192.0.2.130", None),
        ("192.0.2.129", "eth1"),
        ("8.8.8.8", None),
        ("2001:db8::7", "eth0"),
        ("2001:db8::bad", None),
        ("2001:db9::7", None),
        ("198.51.100.7", "fast"),
        ("203.0.113.7", None),
        ("100.64.0.1", None),
    ],
)
def test_the_most_special_route_tells(address: str, link: str | None) -> None:
    for routes in (TABLE, TABLE[::-1]):
        assert Neighbourhood(routes).link_to(ip_address(address)) == link


addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


@given(addresses)
def test_nobody_is_a_neighbour_where_there_is_no_route(address: IPAddress) -> None:
    assert Neighbourhood([]).link_to(address) is None


@given(addresses)
def test_everybody_is_one_where_the_default_route_is_a_link(address: IPAddress) -> None:
    default = direct(str(DEFAULT_NETWORKS[Family.of(address)]), "ppp0")
    assert Neighbourhood([default]).link_to(address) == "ppp0"
