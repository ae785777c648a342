"""Which routes a node wants to the blocks of the others, and what it says of those it cannot have."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.builtin import Node, NodeAddress, NodeStatus
from coil.crd.meta import ObjectMeta
from coil.crd.names import ANNOTATION_OCCUPIED, LABEL_NODE, LABEL_RESERVED, RESERVED, NodeName
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LinkName
from coil.kernel.route import DEFAULT_NETWORKS, Route, RouteScope, RouteTable, RouteType
from coil.podnet.block_route import Neighbourhood, NodeRoutes, RouteTrouble, plan_export, plan_node_routes
from coil.podnet.plan import RoutePolicy
from tests.coil.kernel.strategies import networks

OWN = NodeName("here")
ETH0 = LinkName("eth0")
FLAT = [
    Route(destination=ip_network("192.0.2.0/24"), device=ETH0, protocol=2, scope=RouteScope.LINK),
    Route(destination=ip_network("2001:db8::/64"), device=ETH0, protocol=2, metric=256),
    Route(destination=ip_network("0.0.0.0/0"), device=ETH0, gateway=ip_address("192.0.2.1")),
]


def node(name: str, *addresses: str) -> Node:
    entries = tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)
    hostname = NodeAddress(type="Hostname", address=name)
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(addresses=(hostname, *entries)))


def block(
    name: str,
    owner: str,
    ipv4: str | None = None,
    ipv6: str | None = None,
    *,
    going: bool = False,
    reserved: bool = False,
    occupied: str = "",
) -> AddressBlock:
    labels = {LABEL_NODE: owner} | ({LABEL_RESERVED: RESERVED} if reserved else {})
    annotations = {ANNOTATION_OCCUPIED: occupied} if occupied else {}
    deleted = datetime(2024, 1, 1, tzinfo=UTC) if going else None
    return AddressBlock(
        metadata=ObjectMeta(name=name, labels=labels, annotations=annotations, deletion_timestamp=deleted),
        index=0,
        ipv4=ipv4,
        ipv6=ipv6,
    )


HERE = node("here", "192.0.2.10", "2001:db8::10")
A = node("a", "192.0.2.11", "2001:db8::11")
B = node("b", "192.0.2.12", "2001:db8::12")


def pool(*texts: str) -> AddressPool:
    """Of subnets with one family each."""
    subnets = tuple(SubnetSet(ipv6=text) if ":" in text else SubnetSet(ipv4=text) for text in texts)
    return AddressPool(metadata=ObjectMeta(name="p"), spec=AddressPoolSpec(subnets=subnets))


EVERYTHING = pool("0.0.0.0/0", "::/0")


def plan(
    blocks: Sequence[AddressBlock],
    *nodes: Node,
    others: Collection[Route] = FLAT,
    pools: Collection[AddressPool] = (EVERYTHING,),
) -> NodeRoutes:
    return plan_node_routes(blocks, nodes or (HERE, A, B), pools, OWN, others=others, protocol=31)


def lines(planned: NodeRoutes) -> set[str]:
    return {f"{route.destination} via {route.gateway} dev {route.device}" for route in planned.routes}


def troubles(planned: NodeRoutes) -> list[tuple[str, str, RouteTrouble]]:
    return [(entry.block, entry.network, entry.trouble) for entry in planned.troubled]


def test_both_families_of_every_other_nodes_blocks_and_none_of_ones_own() -> None:
    planned = plan(
        [
            block("p-0", "here", "10.0.0.0/27", "fd00::/123"),
            block("p-1", "a", "10.0.0.32/27", "fd00::20/123"),
            block("p-2", "b", "10.0.0.64/27"),
            block("q-0", "b", None, "fd01::/123", reserved=True),
            block("p-3", "a", "10.0.0.96/27", going=True),
        ]
    )
    assert lines(planned) == {
        "10.0.0.32/27 via 192.0.2.11 dev eth0",
        "fd00::20/123 via 2001:db8::11 dev eth0",
        "10.0.0.64/27 via 192.0.2.12 dev eth0",
        "fd01::/123 via 2001:db8::12 dev eth0",
        "10.0.0.96/27 via 192.0.2.11 dev eth0",
    }
    assert {(route.table, route.protocol, route.metric) for route in planned.routes} == {(RouteTable.MAIN, 31, 0)}
    assert planned.troubled == ()


def test_a_block_that_is_in_no_pool_is_not_routed() -> None:
    """It was written by somebody who may write blocks: half of the Internet is not a node's for that."""
    pools = [pool("10.0.0.0/26", "10.0.0.64/26", "broken"), pool("fd00::/120")]
    blocks = [
        block("p-1", "a", "10.0.0.32/27", "fd00::20/123"),
        block("p-2", "a", "10.0.0.32/26", "fd00::100/123"),
        block("p-3", "b", "10.0.0.96/27", "fd00::/119"),
        block("p-4", "b", "0.0.0.0/1", "::/0"),
        block("p-5", "b", "10.0.0.128/27", "fcff::/123"),
    ]
    planned = plan(blocks, pools=pools)
    assert lines(planned) == {
        "10.0.0.32/27 via 192.0.2.11 dev eth0",
        "fd00::20/123 via 2001:db8::11 dev eth0",
        "10.0.0.96/27 via 192.0.2.12 dev eth0",
    }
    assert [(name, network) for name, network, trouble in troubles(planned) if trouble is RouteTrouble.NO_POOL] == [
        ("p-2", "fd00::100/123"),
        ("p-3", "fd00::/119"),
        ("p-4", "0.0.0.0/1"),
        ("p-4", "::/0"),
        ("p-5", "10.0.0.128/27"),
        ("p-5", "fcff::/123"),
    ]
    assert lines(plan(blocks, pools=[])) == set()


def test_a_family_that_the_owner_does_not_have_is_skipped_alone() -> None:
    planned = plan([block("p-1", "a", "10.0.0.32/27", "fd00::20/123")], HERE, node("a", "192.0.2.11"))
    assert lines(planned) == {"10.0.0.32/27 via 192.0.2.11 dev eth0"}
    assert troubles(planned) == [("p-1", "fd00::20/123", RouteTrouble.NO_ADDRESS)]


def test_an_address_that_is_not_on_a_link_is_no_next_hop() -> None:
    blocks = [block("p-1", "a", "10.0.0.32/27", "fd00::20/123")]
    planned = plan(blocks, HERE, node("a", "198.51.100.1", "2001:db8:1::1"))
    assert lines(planned) == set()
    assert {trouble for _, _, trouble in troubles(planned)} == {RouteTrouble.NOT_ON_LINK}


def test_the_first_address_that_is_on_a_link_is_the_next_hop() -> None:
    blocks = [block("p-1", "a", "10.0.0.32/27", "fd00::20/123")]
    planned = plan(blocks, HERE, node("a", "198.51.100.1", "fe80::7", "192.0.2.11", "2001:db8::11", "192.0.2.99"))
    assert lines(planned) == {"10.0.0.32/27 via 192.0.2.11 dev eth0", "fd00::20/123 via 2001:db8::11 dev eth0"}


def test_a_link_local_address_and_nonsense_are_no_addresses() -> None:
    link = Route(destination=ip_network("fe80::/64"), device=ETH0, protocol=2, metric=256)
    blocks = [block("p-1", "a", "10.0.0.32/27", "fd00::20/123")]
    planned = plan(blocks, HERE, node("a", "fe80::7", "nonsense"), others=[*FLAT, link])
    assert [trouble for _, _, trouble in troubles(planned)] == [RouteTrouble.NO_ADDRESS] * 2


def test_an_old_name_of_this_node_is_not_routed_to_itself() -> None:
    planned = plan([block("p-1", "renamed", "10.0.0.32/27")], HERE, node("renamed", "192.0.2.10"))
    assert lines(planned) == set()
    assert troubles(planned) == [("p-1", "10.0.0.32/27", RouteTrouble.NOT_ON_LINK)]


def test_the_blocks_of_a_node_that_is_gone_are_not_routed() -> None:
    planned = plan([block("p-1", "gone", "10.0.0.32/27"), block("p-2", "", "10.0.0.64/27")])
    assert lines(planned) == set()
    assert {trouble for _, _, trouble in troubles(planned)} == {RouteTrouble.NO_NODE}


def test_a_foreign_route_in_the_same_place_stays_alone() -> None:
    blocks = [block("p-1", "a", "10.0.0.32/27", "fd00::20/123"), block("p-2", "b", "10.0.0.64/27")]
    foreign = [
        Route(destination=ip_network("10.0.0.32/27"), device=ETH0, gateway=ip_address("192.0.2.99"), protocol=4),
        Route(destination=ip_network("fd00::20/123"), device=None, protocol=12, metric=0),
    ]
    planned = plan(blocks, others=[*FLAT, *foreign])
    assert lines(planned) == {"10.0.0.64/27 via 192.0.2.12 dev eth0"}
    assert [(network, trouble.value) for _, network, trouble in troubles(planned)] == [
        ("10.0.0.32/27", "foreign_route"),
        ("fd00::20/123", "foreign_route"),
    ]


def test_ours_stands_beside_a_foreign_route_of_another_metric() -> None:
    foreign = Route(
        destination=ip_network("10.0.0.32/27"), device=ETH0, gateway=ip_address("192.0.2.11"), protocol=12, metric=32
    )
    planned = plan([block("p-1", "a", "10.0.0.32/27")], others=[*FLAT, foreign])
    assert lines(planned) == {"10.0.0.32/27 via 192.0.2.11 dev eth0"}
    assert troubles(planned) == [("p-1", "10.0.0.32/27", RouteTrouble.FOREIGN_ROUTE)]


def test_a_wider_foreign_route_is_nobodys_trouble() -> None:
    wide = Route(destination=ip_network("10.0.0.0/8"), device=ETH0, gateway=ip_address("192.0.2.1"), protocol=4)
    planned = plan([block("p-1", "a", "10.0.0.32/27")], others=[*FLAT, wide])
    assert (len(planned.routes), planned.troubled) == (1, ())


def test_two_blocks_of_one_network() -> None:
    planned = plan(
        [
            block("p-0", "a", "10.0.0.0/27", going=True),
            block("p-1", "b", "10.0.0.0/27"),
            block("q-1", "b", "10.0.0.32/27"),
            block("q-0", "a", "10.0.0.32/27"),
            block("a-0", "a", "10.0.0.64/27"),
            block("z-0", "here", "10.0.0.64/27"),
        ]
    )
    assert lines(planned) == {"10.0.0.0/27 via 192.0.2.12 dev eth0", "10.0.0.32/27 via 192.0.2.11 dev eth0"}
    assert {(name, trouble) for name, _, trouble in troubles(planned)} == {
        ("a-0", RouteTrouble.DUPLICATE),
        ("p-0", RouteTrouble.DUPLICATE),
        ("q-1", RouteTrouble.DUPLICATE),
    }


def test_what_is_no_network_is_named_and_stops_nothing() -> None:
    blocks = [block("p-0", "a", "10.0.0.1/27", "fd00::/123"), block("p-1", "a", "fd00::20/123", "10.0.0.0/27")]
    planned = plan(blocks)
    assert lines(planned) == {"fd00::/123 via 2001:db8::11 dev eth0"}
    assert troubles(planned) == [
        ("p-0", "10.0.0.1/27", RouteTrouble.MALFORMED),
        ("p-1", "fd00::20/123", RouteTrouble.MALFORMED),
        ("p-1", "10.0.0.0/27", RouteTrouble.MALFORMED),
    ]


owners = st.sampled_from(("here", "a", "b", "gone"))
clusters = st.lists(
    st.tuples(owners, st.integers(0, 5), st.booleans(), st.booleans()), max_size=12, unique_by=lambda entry: entry[:2]
)


@given(clusters, st.randoms())
def test_the_order_in_which_things_were_seen_does_not_matter(
    entries: list[tuple[str, int, bool, bool]], random: Random
) -> None:
    blocks = [
        block(
            f"p-{owner}-{number}",
            owner,
            f"10.0.0.{number * 32}/27",
            f"fd00::1{number}00/123" if dual else None,
            going=going,
        )
        for owner, number, dual, going in entries
    ]
    shuffled = list(blocks)
    random.shuffle(shuffled)
    planned = plan(blocks)
    assert planned == plan(shuffled)
    # One route for a network, never to this node, and for each network a route, a reason, or it is ours.
    destinations = [route.destination for route in planned.routes]
    assert len(destinations) == len(set(destinations))
    assert {str(route.gateway) for route in planned.routes} <= {
        "192.0.2.11",
        "192.0.2.12",
        "2001:db8::11",
        "2001:db8::12",
    }
    ours = {text for item in blocks if item.node == OWN for text in (item.ipv4, item.ipv6) if text}
    assert not ours & {str(destination) for destination in destinations}
    told = {str(destination) for destination in destinations} | ours | {entry.network for entry in planned.troubled}
    assert told == {text for item in blocks for text in (item.ipv4, item.ipv6) if text}


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


def test_a_network_where_nodes_are_is_not_routed() -> None:
    """It would cut this node from them, and perhaps from the API server."""
    blocks = [
        block("p-0", "a", "192.0.2.0/28", "2001:db8::/123"),
        block("p-1", "a", "192.0.2.16/28", "2001:db8::20/123"),
        # This node's own address.
        block("p-2", "b", "192.0.2.10/32"),
    ]
    planned = plan(blocks)
    assert lines(planned) == {"192.0.2.16/28 via 192.0.2.11 dev eth0", "2001:db8::20/123 via 2001:db8::11 dev eth0"}
    assert troubles(planned) == [
        ("p-0", "192.0.2.0/28", RouteTrouble.NODE_ADDRESS),
        ("p-0", "2001:db8::/123", RouteTrouble.NODE_ADDRESS),
        ("p-2", "192.0.2.10/32", RouteTrouble.NODE_ADDRESS),
    ]


def test_a_block_that_the_controller_has_found_to_be_occupied_is_not_routed() -> None:
    occupied = block("p-0", "a", "198.51.100.0/28", occupied="198.51.100.0/24 of the ServiceCIDR kubernetes")
    assert troubles(plan([occupied])) == [("p-0", "198.51.100.0/28", RouteTrouble.OCCUPIED)]


def test_external_addresses_are_the_nodes_too() -> None:
    entries = (NodeAddress(type="InternalIP", address="192.0.2.13"), NodeAddress(type="ExternalIP", address="10.0.0.5"))
    c = Node(metadata=ObjectMeta(name="c"), status=NodeStatus(addresses=entries))
    assert troubles(plan([block("p-0", "a", "10.0.0.0/27")], HERE, A, c)) == [
        ("p-0", "10.0.0.0/27", RouteTrouble.NODE_ADDRESS)
    ]
