from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import LOOPBACK
from coil.kernel.route import Route, RouteScope, diff_routes, link_scope
from tests.coil.kernel.strategies import routes


@given(st.lists(routes()), st.lists(routes()))
def test_the_changes_turn_one_set_into_the_other(actual: list[Route], wanted: list[Route]) -> None:
    changes = diff_routes(actual, wanted)
    assert (set(actual) - set(changes.deletes)) | set(changes.adds) == set(wanted)
    assert set(changes.deletes) <= set(actual) - set(wanted)
    assert set(changes.adds) <= set(wanted) - set(actual)


@given(st.lists(routes()), st.lists(routes()))
def test_the_changes_back_are_the_changes_the_other_way_round(one: list[Route], other: list[Route]) -> None:
    there, back = diff_routes(one, other), diff_routes(other, one)
    assert there.adds == back.deletes
    assert there.deletes == back.adds


@given(st.lists(routes()), st.randoms())
def test_neither_order_nor_repetition_matters(wanted: list[Route], random: Random) -> None:
    shuffled = wanted * 2
    random.shuffle(shuffled)
    assert diff_routes([], shuffled) == diff_routes([], wanted)
    assert not diff_routes(shuffled, wanted)


def test_a_gateway_is_of_the_destinations_family() -> None:
    with pytest.raises(ValueError, match=r"gateway fe80::1 is not of the family of 10\.0\.0\.0/8"):
        Route(destination=IPv4Network("10.0.0.0/8"), gateway=IPv6Address("fe80::1"), device=LOOPBACK)
    with pytest.raises(ValueError, match=r"gateway 192\.0\.2\.1 is not"):
        Route(destination=IPv6Network("fd00::/8"), gateway=IPv4Address("192.0.2.1"), device=LOOPBACK)


def test_ipv6_routes_have_no_scope() -> None:
    with pytest.raises(ValueError, match="no scope"):
        Route(destination=IPv6Network("fd00::/8"), device=LOOPBACK, scope=RouteScope.LINK)
    assert link_scope(IPv6Network("fd00::/8")) is RouteScope.UNIVERSE
    assert link_scope(IPv4Network("10.0.0.0/8")) is RouteScope.LINK


def test_a_route_reads_like_the_command_that_adds_it() -> None:
    route = Route(destination=IPv4Network("10.0.0.0/8"), gateway=IPv4Address("192.0.2.1"), device=LOOPBACK, table=119)
    assert str(route) == "route 10.0.0.0/8 via 192.0.2.1 dev lo table 119 proto 3"
