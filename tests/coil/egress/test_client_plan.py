"""A client's plan, held against the tables that the specification prints, case by case."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest

from coil.egress.client_plan import ClientPlan, client_rules, plan_client
from coil.egress.gateway import ClientSpec, Gateway, Replies, SourcePort, TunnelPolicy, Uplink
from coil.kernel.family import Family
from coil.kernel.link import LinkName, Sysctl
from coil.kernel.route import Route, RouteType
from coil.kernel.rule import Rule
from coil.kernel.tunnel import FouPort, Tunnel, catch_all, tunnel_name
from tests.coil.egress.policy_lookup import MAIN, NOWHERE, lookup

ETH0 = LinkName("eth0")
UPLINK = Uplink(
    name=ETH0,
    index=2,
    mtu=1500,
    routes=(
        Route(destination=ip_network("169.254.1.1/32"), device=ETH0, scope=253),
        Route(destination=ip_network("0.0.0.0/0"), device=ETH0, gateway=IPv4Address("169.254.1.1")),
        Route(destination=ip_network("::/0"), device=ETH0, gateway=IPv6Address("fe80::1")),
    ),
)
POD4 = IPv4Address("10.20.30.40")
POD6 = IPv6Address("fd20::40")
COLLIDING = ("fd68::1:93bc", "fd68::1:9b00")
"""The SHA-1 of both begins with e68904f8 (found by search)."""


def gateway(name: str, addresses: str, destinations: str, **options: Any) -> Gateway:
    """A gateway from words."""
    return Gateway(
        name=name,
        addresses=tuple(map(ip_address, addresses.split())),
        destinations=tuple(map(ip_network, destinations.split())),
        **options,
    )


def plan(*gateways: Gateway, uplink: Uplink = UPLINK, **options: Any) -> ClientPlan:
    """The plan of a dual-stack pod, unless `addresses` says otherwise."""
    options.setdefault("addresses", (POD4, POD6))
    return plan_client(ClientSpec(gateways=gateways, **options), uplink)


def problems(planned: ClientPlan) -> list[str]:
    return [str(problem) for problem in planned.problems]


def rule_lines(rules: tuple[Rule, ...], family: Family) -> list[str]:
    """As `ip rule` prints them."""
    tables = {254: "main"}
    return [
        f"{rule.priority}: from all"
        + (f" to {rule.destination}" if rule.destination else "")
        + (f" fwmark {rule.mark:#x}" if rule.mark else "")
        + f" lookup {tables.get(rule.table, rule.table)} proto {rule.protocol}"
        for rule in rules
        if rule.family is family
    ]


def test_the_example_of_the_article() -> None:
    planned = plan(
        gateway("internet-egress/nat", "10.68.124.145", "0.0.0.0/0"),
        gateway("domestic-egress/nat", "10.68.12.49", "192.168.10.0/24"),
    )
    assert rule_lines(planned.rules, Family.IPV4) == [
        "1800: from all to 169.254.0.0/16 lookup main proto 30",
        "1900: from all lookup 117 proto 30",
        "2000: from all to 10.0.0.0/8 lookup main proto 30",
        "2001: from all to 172.16.0.0/12 lookup main proto 30",
        "2002: from all to 192.168.0.0/16 lookup main proto 30",
        "2100: from all lookup 118 proto 30",
    ]
    assert {(str(route.destination), route.device, route.table, route.protocol) for route in planned.routes} == {
        ("192.168.10.0/24", "fou4_0a440c31", 117, 30),
        ("0.0.0.0/0", "fou4_0a447c91", 118, 30),
    }
    assert all(route.scope == 0 for route in planned.routes)  # `ip route` prints no scope then
    assert planned.problems == ()


def test_the_rules_of_ipv6() -> None:
    planned = plan(gateway("a/nat", "fd68::1", "::/0"))
    assert rule_lines(planned.rules, Family.IPV6) == [
        "1800: from all to fe80::/10 lookup main proto 30",
        "1900: from all lookup 117 proto 30",
        "2000: from all to fc00::/7 lookup main proto 30",
        "2100: from all lookup 118 proto 30",
    ]
    assert rule_lines(planned.rules, Family.IPV4) == []
    assert planned.sysctls == (Sysctl("net/ipv6/conf/default/accept_ra", "0"),)


def test_what_a_dual_stack_client_consists_of() -> None:
    planned = plan(gateway("a/nat", "10.68.0.1 fd68::1", "203.0.113.0/24 2001:db8::/32"))
    assert planned.tunnels == (
        Tunnel(
            name=LinkName("fou4_0a440001"),
            local=POD4,
            remote=IPv4Address("10.68.0.1"),
            port=5555,
            source_port=5555,
            mtu=1472,
            ttl=225,
        ),
        Tunnel(
            name=planned.tunnels[1].name,
            local=POD6,
            remote=IPv6Address("fd68::1"),
            port=5555,
            source_port=5555,
            mtu=1452,
            ttl=225,
        ),
    )
    assert planned.fou_ports == (FouPort(Family.IPV4, 5555), FouPort(Family.IPV6, 5555))
    assert [port.protocol for port in planned.fou_ports] == [4, 41]
    assert planned.catch_alls == (catch_all(Family.IPV4), catch_all(Family.IPV6))
    assert planned.sysctls == (
        *(Sysctl(f"net/ipv4/conf/{name}/rp_filter", "0") for name in ("default", "all", "eth0")),
        Sysctl("net/ipv6/conf/default/accept_ra", "0"),
    )
    assert planned.nft_table is None
    assert len(planned.routes) == 2


def test_without_gateways_there_is_nothing() -> None:
    assert plan() == ClientPlan()
    assert plan(replies=Replies.WHERE_THEY_CAME_FROM) == ClientPlan()


def test_where_it_fails_open_a_gateway_that_cannot_be_leaves_nothing_but_its_problem() -> None:
    found = plan(gateway("a/nat", "", "0.0.0.0/0"), fail_open=True)
    assert found == ClientPlan(problems=found.problems)
    assert [problem.unserved for problem in found.problems] == [True]


class TestBlocked:
    def test_a_destination_without_a_tunnel_is_unreachable(self) -> None:
        planned = plan(blocked=tuple(map(ip_network, ("8.0.0.0/8", "10.9.0.0/16", "2001:db8::/32"))))
        assert {(str(route.destination), route.device, route.table, route.type) for route in planned.routes} == {
            ("8.0.0.0/8", None, 118, RouteType.UNREACHABLE),
            ("10.9.0.0/16", None, 117, RouteType.UNREACHABLE),
            ("2001:db8::/32", "lo", 118, RouteType.UNREACHABLE),
        }
        assert (planned.tunnels, planned.fou_ports, planned.sysctls) == ((), (), ())
        for blocked in ("8.8.8.8", "10.9.1.1", "2001:db8::7"):
            assert lookup(planned, ip_address(blocked)) == NOWHERE
        for reached in ("9.9.9.9", "10.8.1.1", "169.254.1.1", "2600::1"):
            assert lookup(planned, ip_address(reached)) == MAIN

    def test_of_everything_that_is_blocked_the_cluster_is_still_reached(self) -> None:
        planned = plan(blocked=(ip_network("0.0.0.0/0"), ip_network("::/0")))
        for cluster in ("10.96.0.1", "172.16.1.1", "192.168.1.1", "169.254.1.1", "fd00::1", "fe80::1"):
            assert lookup(planned, ip_address(cluster)) == MAIN
        for outside in ("8.8.8.8", "2600::1"):
            assert lookup(planned, ip_address(outside)) == NOWHERE

    def test_the_narrowest_counts_and_of_equals_the_tunnel(self) -> None:
        served = gateway("a/nat", "10.68.0.1", "0.0.0.0/0 8.8.8.0/24")
        planned = plan(served, blocked=tuple(map(ip_network, ("0.0.0.0/0", "8.0.0.0/8", "8.8.8.0/24"))))
        assert lookup(planned, ip_address("8.8.8.8")) == "fou4_0a440001"
        assert lookup(planned, ip_address("8.9.9.9")) == NOWHERE
        assert lookup(planned, ip_address("9.9.9.9")) == "fou4_0a440001"

    def test_a_gateway_inside_what_is_blocked_is_reached(self) -> None:
        planned = plan(gateway("a/nat", "198.51.100.1", "8.0.0.0/8"), blocked=(ip_network("0.0.0.0/0"),))
        assert lookup(planned, ip_address("198.51.100.1")) == MAIN
        assert lookup(planned, ip_address("198.51.100.2")) == NOWHERE

    def test_a_family_that_the_pod_lacks_has_no_rules(self) -> None:
        assert plan(blocked=(ip_network("::/0"),), addresses=(POD4,)) == ClientPlan()

    def test_what_the_namespace_led_into_a_tunnel_stays_blocked_if_nobody_knows_whose_it_was(self) -> None:
        before = plan(gateway("a/nat", "10.68.0.1 fd68::1", "10.9.0.0/16 8.0.0.0/8 2001:db8::/32"))
        spec = ClientSpec(
            addresses=(POD4, POD6),
            gateways=(gateway("b/nat", "10.68.0.2", "8.0.0.0/8"),),
            block_unclaimed=True,
        )
        foreign = Route(destination=ip_network("7.0.0.0/8"), device=ETH0, table=118, protocol=3)
        planned = plan_client(spec, UPLINK, [*before.routes, foreign])
        assert lookup(planned, ip_address("10.9.1.1")) == NOWHERE
        assert lookup(planned, ip_address("2001:db8::7")) == NOWHERE
        assert lookup(planned, ip_address("8.8.8.8")) == "fou4_0a440002"
        assert lookup(planned, ip_address("7.7.7.7")) == MAIN, "another's route is not ours to block"
        # And from then on, whatever is looked at again.
        assert plan_client(spec, UPLINK, planned.routes) == planned
        assert plan_client(replace(spec, block_unclaimed=False), UPLINK, planned.routes) != planned

    def test_replies_to_what_came_in_by_the_uplink_still_leave_there(self) -> None:
        planned = plan(blocked=(ip_network("0.0.0.0/0"),), replies=Replies.WHERE_THEY_CAME_FROM)
        assert lookup(planned, ip_address("203.0.113.9"), mark=2) == "eth0"
        assert lookup(planned, ip_address("203.0.113.9")) == NOWHERE


def test_the_source_port_is_the_tunnels_own_or_the_kernels_choice() -> None:
    policy = TunnelPolicy(port=6000)
    for source_port, number in ((SourcePort.FIXED, 6000), (SourcePort.AUTO, 0)):
        [tunnel] = plan(gateway("a/nat", "10.68.0.1", "0.0.0.0/0", source_port=source_port), policy=policy).tunnels
        assert (tunnel.port, tunnel.source_port) == (6000, number)


@pytest.mark.parametrize(
    ("destination", "table"),
    [
        ("10.0.0.0/8", 117),
        ("10.1.0.0/16", 117),
        ("172.31.255.0/24", 117),
        ("172.32.0.0/16", 118),
        ("192.168.10.0/24", 117),
        ("8.0.0.0/5", 118),
        ("0.0.0.0/0", 118),
        ("fd00::/8", 117),
        ("fc00::/7", 117),
        ("f000::/4", 118),
        ("::/0", 118),
    ],
)
def test_destinations_inside_private_networks_have_a_table_of_their_own(destination: str, table: int) -> None:
    planned = plan(gateway("a/nat", "172.20.0.1 2001:db8::1", destination))
    assert [int(route.table) for route in planned.routes if route.type is RouteType.UNICAST] == [table]


class TestWhoHasADestination:
    def test_the_first_by_namespace_and_name(self) -> None:
        first = gateway("a/nat", "10.68.0.1", "0.0.0.0/0")
        second = gateway("a-b/nat", "10.68.0.2", "0.0.0.0/0 203.0.113.0/24")
        for gateways in ((first, second), (second, first)):
            planned = plan(*gateways)
            devices = {str(route.destination): route.device for route in planned.routes}
            assert devices == {"0.0.0.0/0": "fou4_0a440001", "203.0.113.0/24": "fou4_0a440002"}
            assert problems(planned) == ["a-b/nat: 0.0.0.0/0 goes through a/nat, which names it, too"]

    def test_one_that_gets_none_has_no_tunnel(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1", "0.0.0.0/0"), gateway("b/nat", "10.68.0.2", "0.0.0.0/0"))
        assert [tunnel.name for tunnel in planned.tunnels] == ["fou4_0a440001"]

    def test_one_that_cannot_serve_takes_nothing_from_another(self) -> None:
        planned = plan(gateway("a/nat", "fd68::1", "0.0.0.0/0"), gateway("b/nat", "10.68.0.2", "0.0.0.0/0"))
        assert [route.device for route in planned.routes] == ["fou4_0a440002"]

    def test_a_destination_that_is_named_twice_counts_once(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1", "0.0.0.0/0 0.0.0.0/0"))
        assert (len(planned.routes), planned.problems) == (1, ())


@pytest.mark.parametrize(
    ("addresses", "gateway_addresses", "text"),
    [
        ((POD4,), "10.68.0.1 fd68::1", "the pod has no IPv6 address; ::/0 cannot be reached through it"),
        ((POD4, POD6), "10.68.0.1", "its Service has no IPv6 address; ::/0 cannot be reached through it"),
        (
            (POD4, POD6),
            "10.68.0.1 fd20::40",
            "its address fd20::40 is the pod's own; ::/0 cannot be reached through it",
        ),
    ],
)
def test_a_family_that_cannot_be_is_left_out_and_reported(addresses: Any, gateway_addresses: str, text: str) -> None:
    planned = plan(gateway("a/nat", gateway_addresses, "0.0.0.0/0 ::/0"), addresses=addresses)
    assert [tunnel.family for tunnel in planned.tunnels] == [Family.IPV4]
    has_ipv6 = POD6 in addresses
    assert lookup(planned, ip_address("203.0.113.9")) == planned.tunnels[0].name
    families = {Family.IPV4, Family.IPV6} if has_ipv6 else {Family.IPV4}
    assert {rule.family for rule in planned.rules} == families
    assert {route.family for route in planned.routes} == families
    assert lookup(planned, ip_address("2600::1")) == (NOWHERE if has_ipv6 else MAIN)
    assert [problem.unserved for problem in planned.problems] == [has_ipv6]
    assert problems(planned) == [f"a/nat: {text}"]


def test_a_family_without_destinations_is_nobodys_trouble() -> None:
    planned = plan(gateway("a/nat", "10.68.0.1", "0.0.0.0/0"), addresses=(POD4, POD6))
    assert ([tunnel.family for tunnel in planned.tunnels], planned.problems) == ([Family.IPV4], ())


def test_by_another_link_than_eth0_packets_have_that_links_address() -> None:
    """The kernel would take the address of eth0, which the router does not know."""
    nat = gateway("a/nat", "10.68.0.1 fd68::1", "0.0.0.0/0 10.9.0.0/16 ::/0")
    planned = plan(nat, uplink=replace(UPLINK, name=LinkName("net1")), policy=TunnelPolicy(uplink=LinkName("net1")))
    led = {route.destination: route.source for route in planned.routes if route.type is RouteType.UNICAST}
    sources = {"0.0.0.0/0": POD4, "10.9.0.0/16": POD4, "::/0": POD6}
    assert led == {ip_network(network): source for network, source in sources.items()}
    assert {route.source for route in plan(nat).routes} == {None}, "eth0 comes first anyway"


def test_link_local_destinations_are_reported() -> None:
    planned = plan(gateway("a/nat", "10.68.0.1", "169.254.169.254/32 0.0.0.0/0"))
    assert problems(planned) == ["a/nat: 169.254.169.254/32 is link-local, which never leaves by a tunnel"]
    assert len(planned.routes) == 1


def test_two_ipv6_gateways_of_one_device_name() -> None:
    one, two = COLLIDING
    planned = plan(gateway("a/nat", one, "2001:db8:1::/48"), gateway("b/nat", two, "2001:db8:2::/48"))
    assert [str(tunnel.remote) for tunnel in planned.tunnels] == [one]
    assert f"is that of gateway {one} already" in problems(planned)[0]


class TestMtu:
    def test_it_follows_the_uplinks(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1 fd68::1", "0.0.0.0/0 ::/0"), uplink=replace(UPLINK, mtu=9000))
        assert [tunnel.mtu for tunnel in planned.tunnels] == [8972, 8952]

    def test_one_that_ipv6_does_not_work_with_is_reported(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1 fd68::1", "0.0.0.0/0 ::/0"), uplink=replace(UPLINK, mtu=1327))
        assert [tunnel.mtu for tunnel in planned.tunnels] == [1299]
        assert problems(planned) == [
            "a/nat: the MTU of eth0 is 1327, too small for a tunnel of IPv6; ::/0 cannot be reached through it"
        ]


CLUSTER = tuple(map(ip_network, ("100.64.0.0/13", "100.96.0.0/11", "172.20.0.0/16", "2600:1f14:aa:bb00::/56")))


class TestTheClustersNetworks:
    """They are reached as private ones are, wherever they are."""

    def test_of_everything_that_is_tunnelled_the_cluster_is_still_reached(self) -> None:
        planned = plan(gateway("a/nat", "100.64.12.7 fd68::1", "0.0.0.0/0 ::/0"), cluster=CLUSTER)
        for inside in ("100.64.0.10", "100.64.12.7", "100.96.9.9", "172.20.1.1", "2600:1f14:aa:bb01::9"):
            assert lookup(planned, ip_address(inside)) == MAIN
        for outside in ("203.0.113.9", "100.128.0.1"):
            assert lookup(planned, ip_address(outside)) == "fou4_64400c07"
        assert lookup(planned, ip_address("2001:db8::1")) == tunnel_name(IPv6Address("fd68::1"))

    def test_of_everything_that_is_blocked_as_well(self) -> None:
        planned = plan(blocked=(ip_network("0.0.0.0/0"), ip_network("::/0")), cluster=CLUSTER)
        for inside in ("100.64.0.10", "2600:1f14:aa:bb01::9"):
            assert lookup(planned, ip_address(inside)) == MAIN
        assert lookup(planned, ip_address("203.0.113.9")) == NOWHERE

    def test_an_egress_that_names_part_of_one_serves_that(self) -> None:
        """As one that names a network within 10.0.0.0/8 does."""
        named = gateway("a/nat", "10.68.0.1", "100.64.5.0/24 100.96.0.0/11 0.0.0.0/0")
        planned = plan(named, cluster=CLUSTER)
        for served in ("100.64.5.9", "100.96.9.9", "203.0.113.9"):
            assert lookup(planned, ip_address(served)) == "fou4_0a440001"
        assert lookup(planned, ip_address("100.64.0.10")) == MAIN

    def test_what_no_destination_contains_needs_no_route(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1", "8.0.0.0/8"), cluster=CLUSTER)
        assert all(route.type is RouteType.UNICAST for route in planned.routes)

    def test_no_place_has_two_routes(self) -> None:
        cluster = (ip_network("198.51.100.1/32"), ip_network("0.0.0.0/0"), *CLUSTER)
        planned = plan(gateway("a/nat", "198.51.100.1", "0.0.0.0/0"), cluster=cluster)
        keys = [route.key for route in planned.routes]
        assert len(keys) == len(set(keys))
        assert lookup(planned, ip_address("198.51.100.1")) == MAIN
        assert lookup(planned, ip_address("203.0.113.9")) == "fou4_c6336401"


class TestGatewaysInsideDestinations:
    def test_a_private_destination_that_contains_its_gateway(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1", "10.0.0.0/8"))
        assert lookup(planned, ip_address("10.68.0.1")) == MAIN
        assert lookup(planned, ip_address("10.68.0.2")) == "fou4_0a440001"

    def test_a_gateway_with_a_public_address(self) -> None:
        planned = plan(gateway("a/nat", "198.51.100.1 2001:db8::1", "0.0.0.0/0 ::/0"))
        assert lookup(planned, ip_address("198.51.100.1")) == MAIN
        assert lookup(planned, ip_address("2001:db8::1")) == MAIN
        throws = {(str(route.destination), route.device) for route in planned.routes if route.type is RouteType.THROW}
        assert throws == {("198.51.100.1/32", None), ("2001:db8::1/128", "lo")}

    def test_the_gateway_of_another_tunnel(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1", "10.96.0.0/16"), gateway("b/nat", "10.96.0.7", "0.0.0.0/0"))
        assert lookup(planned, ip_address("10.96.0.7")) == MAIN

    def test_none_is_thrown_out_where_a_rule_takes_it_away_before(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1 fd68::1", "0.0.0.0/0 ::/0 192.168.0.0/16"))
        assert all(route.type is RouteType.UNICAST for route in planned.routes)

    def test_a_destination_that_is_a_gateway(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1", "10.68.0.1/32 0.0.0.0/0"))
        assert problems(planned) == [
            "a/nat: 10.68.0.1/32 is the address of a gateway, which is reached without a tunnel"
        ]


class TestReplies:
    def test_what_came_in_by_the_uplink_is_answered_there(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1", "0.0.0.0/0"), replies=Replies.WHERE_THEY_CAME_FROM)
        assert rule_lines(planned.rules, Family.IPV4)[0] == "1000: from all fwmark 0x2 lookup 1002 proto 30"
        routes = {(str(route.destination), str(route.gateway)) for route in planned.routes if route.table == 1002}
        assert routes == {("169.254.1.1/32", "None"), ("0.0.0.0/0", "169.254.1.1")}
        assert all(route.protocol == 30 for route in planned.routes)
        assert lookup(planned, ip_address("203.0.113.9"), mark=2) == "eth0"
        assert lookup(planned, ip_address("203.0.113.9")) == "fou4_0a440001"
        assert planned.nft_table is not None

    def test_by_route_there_is_nothing_of_it(self) -> None:
        planned = plan(gateway("a/nat", "10.68.0.1", "0.0.0.0/0"))
        assert (planned.nft_table, min(rule.priority for rule in planned.rules)) == (None, 1800)


def test_every_planned_rule_is_among_ours() -> None:
    planned = plan(gateway("a/nat", "10.68.0.1 fd68::1", "0.0.0.0/0 ::/0"), replies=Replies.WHERE_THEY_CAME_FROM)
    claim = client_rules(TunnelPolicy())
    assert {rule.priority for rule in planned.rules} == claim.priorities
    assert all(map(claim.covers, planned.rules))
