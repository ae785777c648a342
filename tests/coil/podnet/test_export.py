from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import IPNetwork
from coil.podnet.export import plan_export
from coil.podnet.plan import RoutePolicy
from tests.coil.kernel.strategies import networks


@given(st.lists(networks))
def test_one_route_for_each_block(blocks: list[IPNetwork]) -> None:
    routes = plan_export(blocks)
    assert {route.destination for route in routes} == set(blocks)
    assert len(routes) == len(set(blocks))
    assert {(route.device, route.gateway, route.table, route.protocol) for route in routes} <= {("lo", None, 119, 30)}


@given(networks)
def test_table_and_protocol_are_settings(block: IPNetwork) -> None:
    (route,) = plan_export([block], RoutePolicy(export_table=7, protocol=8))
    assert (route.table, route.protocol) == (7, 8)
