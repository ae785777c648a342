"""A router's plan, held against the specification."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.egress.gateway import RouterSpec, SourcePort, TunnelPolicy, Uplink
from coil.egress.router_plan import plan_peers, plan_router, plan_router_sysctls, router_rules
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, Sysctl
from coil.kernel.rule import Rule
from coil.kernel.tunnel import FouPort, catch_all

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
    assert plan.nft_table.counters == ("masqueraded_ipv4", "invalid_ipv4", "masqueraded_ipv6", "invalid_ipv6")


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
