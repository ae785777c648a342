"""A router's plan, held against the specification."""

from collections.abc import Collection
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address, ip_network
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.egress.gateway import RouterSpec, SourcePort, TunnelPolicy, Uplink
from coil.egress.private_network import PRIVATE_NETWORKS, is_within
from coil.egress.router_plan import (
    DESTINATION_SETS,
    NEVER_FORWARDED,
    client_elements,
    destination_elements,
    plan_peers,
    plan_router,
    plan_router_sysctls,
    router_rules,
)
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LinkName, Sysctl
from coil.kernel.rule import Rule
from coil.kernel.tunnel import FouPort, catch_all, tunnel_name

ETH0 = LinkName("eth0")
UPLINK = Uplink(name=ETH0, index=2, mtu=1500)
OWN4, OWN6 = IPv4Address("10.64.0.3"), IPv6Address("fd64::3")
DUAL = RouterSpec(addresses=(OWN4, OWN6))
COLLIDING = (ip_address("fd68::1:93bc"), ip_address("fd68::1:9b00"))

addresses = st.one_of(
    st.integers(0, 20).map(lambda number: IPv4Address("10.64.0.0") + number),
    st.integers(0, 20).map(lambda number: IPv6Address("fd64::") + number),
    st.sampled_from(COLLIDING),
)


def test_the_fixed_part() -> None:
    plan = plan_router(DUAL)
    assert plan.fou_ports == (FouPort(Family.IPV4, 5555), FouPort(Family.IPV6, 5555))
    assert plan.catch_alls == (catch_all(Family.IPV4), catch_all(Family.IPV6))
    assert plan.rules == tuple(
        Rule(family=family, priority=2000, table=118, protocol=30, iif=ETH0) for family in Family
    )
    assert all(map(router_rules(TunnelPolicy()).covers, plan.rules))
    kinds = ("masqueraded", "invalid", "unknown_client", "other_destination")
    assert plan.nft_table.counters == tuple(f"{kind}_{family}" for family in ("ipv4", "ipv6") for kind in kinds)


def test_sysctls_are_for_the_families_that_there_are() -> None:
    ipv4 = (
        Sysctl("net/ipv4/ip_forward", "1"),
        Sysctl("net/ipv4/conf/default/rp_filter", "0"),
        Sysctl("net/ipv4/conf/all/rp_filter", "0"),
    )
    ipv6 = (Sysctl("net/ipv6/conf/all/forwarding", "1"),)
    assert plan_router_sysctls([Family.IPV4]) == ipv4
    assert plan_router_sysctls([Family.IPV6]) == ipv6
    # Forwarding comes first: by the kernel's documentation, its change sets the other parameters to their defaults.
    assert plan_router_sysctls(list(Family)) == (ipv4[0], *ipv6, *ipv4[1:])
    assert plan_router(replace(DUAL, addresses=(OWN6,))).sysctls == ipv6


def test_a_router_without_an_address_is_none() -> None:
    with pytest.raises(ValueError, match="at least one address"):
        plan_router(RouterSpec(addresses=()))


@pytest.mark.parametrize(("source_port", "number"), [(SourcePort.FIXED, 5555), (SourcePort.AUTO, 0)])
def test_a_peer_is_a_tunnel_and_a_route(source_port: SourcePort, number: int) -> None:
    plan = plan_peers([IPv4Address("10.20.30.40"), IPv6Address("fd64::9")], DUAL, UPLINK, source_port)
    one, other = plan.tunnels
    assert (one.name, one.local, str(one.remote)) == ("fou4_0a141e28", OWN4, "10.20.30.40")
    assert (one.port, one.source_port, one.mtu, one.ttl) == (5555, number, 1472, 225)
    assert (other.local, other.port, other.source_port, other.mtu) == (OWN6, 5555, number, 1452)
    assert [(str(route.destination), route.device, route.table, route.protocol) for route in plan.routes] == [
        ("10.20.30.40/32", one.name, 118, 30),
        ("fd64::9/128", other.name, 118, 30),
    ]
    assert [int(route.scope) for route in plan.routes] == [0, 0]


def test_an_uplink_that_is_too_narrow_for_ipv6_serves_ipv4() -> None:
    peers: list[IPAddress] = [IPv6Address("fd64::9"), IPv4Address("10.64.0.9")]
    plan = plan_peers(peers, DUAL, replace(UPLINK, mtu=1300), SourcePort.FIXED)
    assert [tunnel.mtu for tunnel in plan.tunnels] == [1272]
    reason = "the MTU of eth0 is 1300, too small for a tunnel of IPv6"
    assert [str(refusal) for refusal in plan.refusals] == [f"no tunnel to fd64::9: {reason}"]


@given(st.sets(addresses), st.sampled_from([DUAL, RouterSpec(addresses=(OWN4,)), RouterSpec(addresses=(OWN6,))]))
def test_each_peer_is_served_or_named(peers: set[IPAddress], spec: RouterSpec) -> None:
    plan = plan_peers(peers, spec, UPLINK, SourcePort.FIXED)
    families = {address.version for address in spec.addresses}
    wanted = {peer for peer in peers if peer.version in families and peer not in spec.addresses}
    assert {tunnel.remote for tunnel in plan.tunnels} | {refusal.peer for refusal in plan.refusals} == wanted
    assert len({tunnel.name for tunnel in plan.tunnels}) == len(plan.tunnels) == len(plan.routes)
    assert bool(plan.refusals) == (set(COLLIDING) <= wanted)


def served(*destinations: str, cluster: tuple[str, ...] = (), spec: RouterSpec = DUAL) -> list[str]:
    """What clients may send to, as words of nftables."""
    elements = destination_elements(
        [ip_network(text) for text in destinations], spec, cluster=[ip_network(text) for text in cluster]
    )
    return [str(word) for name in elements for word in elements[name]]


def test_a_destination_is_not_for_what_is_private_inside_it() -> None:
    assert served("9.0.0.0/8", "10.0.0.0/7") == ["9.0.0.0/8", "11.0.0.0/8"]
    assert served("10.5.0.0/16", "0.0.0.0/5") == ["1.0.0.0-7.255.255.255", "10.5.0.0/16"]
    assert served("172.20.0.0/16", "fd12::/16") == ["172.20.0.0/16", "fd12::/16"]
    assert served("192.160.0.0/12") == ["192.160.0.0/13", "192.169.0.0-192.175.255.255"]


def test_nor_for_what_is_the_clusters() -> None:
    assert served("100.64.0.0/10", cluster=("100.96.0.0/11",)) == ["100.64.0.0/11"]
    assert served("100.64.0.0/10", "100.96.1.0/24", cluster=("100.96.0.0/11",)) == ["100.64.0.0/11", "100.96.1.0/24"]


def test_some_networks_are_nobodys_destination() -> None:
    assert served("169.254.0.0/16", "169.254.169.254/32", "fe80::/10", "ff02::/16", "127.0.0.0/8", "224.0.0.0/4") == []
    assert served("100.100.100.200/31") == ["100.100.100.201"]
    assert served("fd00:ec2::254/127") == ["fd00:ec2::255"]
    assert served("10.64.0.2/31", "fd64::3/128") == ["10.64.0.2"], "nor is the router itself"
    assert served("::/0", spec=RouterSpec(addresses=(OWN4,))) == []


networks = st.tuples(st.integers(0, 2**32 - 1), st.integers(2, 32)).map(lambda pair: ip_network(pair, strict=False))


@given(st.lists(networks, max_size=5), st.lists(networks, max_size=2), st.data())
def test_an_address_is_served_as_a_client_would_send_it(
    destinations: list[IPv4Network], cluster: list[IPv4Network], data: st.DataObject
) -> None:
    """The oracle asks network by network: the client's tunnel, the private networks, the cluster's, the never ones."""
    elements = destination_elements(destinations, DUAL, cluster=cluster)
    spans = [word_span(str(word)) for word in elements[DESTINATION_SETS[Family.IPV4]]]
    assert all(before[1] + 1 < after[0] for before, after in pairwise(spans)), "sorted, and none touches another"
    inside = [*PRIVATE_NETWORKS[Family.IPV4], *cluster]
    corners = {int(edge) for network in (*destinations, *inside) for edge in (network[0], network[-1])}
    numbers = {max(0, min(2**32 - 1, corner + step)) for corner in corners for step in (-1, 0, 1)}
    numbers.add(data.draw(st.integers(0, 2**32 - 1)))
    for number in numbers:
        address = IPv4Address(number)
        around = [network for network in destinations if address in network]
        wanted = any(all(address not in each for each in inside) or is_inside(network, inside) for network in around)
        never = address == OWN4 or any(address in network for network in NEVER_FORWARDED[Family.IPV4])
        assert any(first <= number <= last for first, last in spans) == (wanted and not never), address


def is_inside(network: IPNetwork, others: Collection[IPNetwork]) -> bool:
    return any(is_within(network, other) for other in others)


def word_span(word: str) -> tuple[int, int]:
    first, dash, last = word.partition("-")
    if dash:
        return int(IPv4Address(first)), int(IPv4Address(last))
    network = IPv4Network(word)
    return int(network[0]), int(network[-1])


def test_a_client_is_let_in_by_its_own_tunnel() -> None:
    elements = client_elements([ip_address("10.20.30.40"), ip_address("fd64::9")])
    assert {str(name): list(keys) for name, keys in elements.items()} == {
        "clients_ipv4 of table inet coil_router": [("fou4_0a141e28", "10.20.30.40")],
        "clients_ipv6 of table inet coil_router": [(str(tunnel_name(ip_address("fd64::9"))), "fd64::9")],
    }
