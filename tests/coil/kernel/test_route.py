from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import LOOPBACK
from coil.kernel.route import Route, RouteChanges, RouteKey, RouteScope, diff_routes, link_scope
from tests.coil.kernel.strategies import routes

sets = st.lists(routes(), unique_by=lambda route: route.key)
"""Routes as we make them: one in a place. What others make of it may be any list."""


def is_reached(keys: set[RouteKey], table: set[Route]) -> bool:
    return keys <= {route.key for route in table}


@given(st.lists(routes()), sets, st.lists(routes()))
def test_the_changes_turn_one_set_into_the_other_and_leave_the_others(
    actual: list[Route], wanted: list[Route], others: list[Route]
) -> None:
    changes = diff_routes(actual, wanted, others)
    table = set(actual)
    for gone in changes.clears:
        table.remove(gone)
    for new in changes.replaces:
        assert new.key not in {route.key for route in others}, "it might be theirs that goes"
        [old] = [route for route in table if route.key == new.key]
        table.remove(old)
        table.add(new)
    for new in changes.adds:
        assert not is_reached({new.key}, table), "the kernel would refuse it"
        table.add(new)
    for gone in changes.deletes:
        table.remove(gone)
    assert table == set(wanted)


@given(sets, sets)
def test_between_two_sets_no_place_of_both_is_ever_empty(one: list[Route], other: list[Route]) -> None:
    changes = diff_routes(one, other)
    assert not changes.clears
    kept = {route.key for route in one} & {route.key for route in other}
    replaced = {route.key for route in changes.replaces}
    assert replaced == {route.key for route in {*other} - {*one}} & kept
    assert not {route.key for route in changes.deletes} & kept
    back = diff_routes(other, one)
    assert (changes.adds, changes.deletes) == (back.deletes, back.adds)
    assert replaced == {route.key for route in back.replaces}


def test_several_routes_in_a_wanted_place_are_cleared_away_first() -> None:
    block = IPv4Network("10.0.0.0/27")
    first, second, wanted = (
        Route(destination=block, device=LOOPBACK, gateway=IPv4Address(f"192.0.2.{number}")) for number in (1, 2, 3)
    )
    assert diff_routes([first, second], [wanted]) == RouteChanges(clears=(first, second), adds=(wanted,))
    assert diff_routes([first, second], [second]) == RouteChanges(deletes=(first,))
    assert diff_routes([first], [wanted]) == RouteChanges(replaces=(wanted,))
    assert diff_routes([first], [wanted], others=[second]) == RouteChanges(clears=(first,), adds=(wanted,))


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
