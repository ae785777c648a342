from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family
from coil.kernel.link import Address, LinkName, MacAddress, Neighbour, Sysctl
from coil.kernel.route import Route
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import (
    LINK_LOCAL,
    Assignment,
    HostAddresses,
    PodPlan,
    RoutePolicy,
    node_addresses,
    plan_pod,
    plan_port,
    plan_rules,
)

V4, V6 = IPv4Address("10.64.0.5"), IPv6Address("fd02::5")
NODE = node_addresses([ip_address("192.0.2.7"), ip_address("fd00::7"), ip_address("192.0.2.8")])


def plan(
    ipv4: IPv4Address | None = V4,
    ipv6: IPv6Address | None = V6,
    *,
    gateways: HostAddresses = LINK_LOCAL,
    mtu: int = 1500,
    policy: RoutePolicy | None = None,
) -> PodPlan:
    return plan_pod(
        host_name=LinkName("veth01234567"),
        ifname=LinkName("eth0"),
        alias=PodAlias("default", "c0ffee", "eth0"),
        addresses=(ipv4, ipv6),
        mtu=mtu,
        gateways=gateways,
        policy=policy or RoutePolicy(),
    )


def test_a_dual_stack_pod() -> None:
    made = plan()
    mac = made.host.mac
    assert [str(address) for address in made.pod.addresses] == [
        "address 10.64.0.5/32 on eth0",
        "address fd02::5/128 on eth0",
    ]
    assert [str(route) for route in made.pod.routes] == [
        "route 169.254.1.1/32 dev eth0 table 254 proto 3",
        "route 0.0.0.0/0 via 169.254.1.1 dev eth0 table 254 proto 3",
        "route fe80::1/128 dev eth0 table 254 proto 3",
        "route ::/0 via fe80::1 dev eth0 table 254 proto 3",
    ]
    assert [str(neighbour) for neighbour in made.pod.neighbours] == [
        f"neighbour 169.254.1.1 at {mac} on eth0",
        f"neighbour fe80::1 at {mac} on eth0",
    ]
    assert [address.interface for address in made.host.addresses] == [
        ip_interface("169.254.1.1/32"),
        ip_interface("fe80::1/64"),
    ]
    assert [str(route) for route in made.host.routes] == [
        "route 10.64.0.5/32 dev veth01234567 table 116 proto 30",
        "route fd02::5/128 dev veth01234567 table 116 proto 30",
    ]
    assert [str(neighbour) for neighbour in made.host.neighbours] == [
        f"neighbour {assignment.address} at {made.pod.mac} on veth01234567" for assignment in made.assignments
    ]
    assert made.host.alias == "COIL:default:c0ffee:eth0"
    assert [(str(a.address), str(a.gateway)) for a in made.assignments] == [
        ("10.64.0.5", "169.254.1.1"),
        ("fd02::5", "fe80::1"),
    ]


@pytest.mark.parametrize(("ipv4", "ipv6", "family"), [(V4, None, Family.IPV4), (None, V6, Family.IPV6)])
def test_a_single_stack_pod_has_nothing_of_the_other_family(
    ipv4: IPv4Address | None, ipv6: IPv6Address | None, family: Family
) -> None:
    made, both = plan(ipv4, ipv6), plan()
    for end, full in ((made.pod, both.pod), (made.host, both.host)):
        assert end.addresses == tuple(address for address in full.addresses if address.family is family)
        assert end.routes == tuple(route for route in full.routes if route.family is family)
        assert end.neighbours == tuple(neighbour for neighbour in full.neighbours if neighbour.family is family)
    assert len(made.assignments) == 1


def test_the_nodes_own_addresses_as_gateways() -> None:
    made = plan(gateways=NODE)
    # The node asks from the link-local address for the pods that it forwards to.
    addresses = [str(address.interface) for address in made.host.addresses]
    assert addresses == ["192.0.2.7/32", "fd00::7/128", "fe80::1/64"]
    assert len(plan(ipv6=None, gateways=NODE).host.addresses) == 1
    assert [str(a.gateway) for a in made.assignments] == ["192.0.2.7", "fd00::7"]
    assert [str(route.gateway) for route in made.pod.routes if route.gateway] == ["192.0.2.7", "fd00::7"]


@pytest.mark.parametrize("ipv6", [None, V6])
def test_no_pod_may_advertise_routes_to_its_node(ipv6: IPv6Address | None) -> None:
    assert Sysctl("net/ipv6/conf/veth01234567/accept_ra", "0") in plan(ipv6=ipv6).host.sysctls


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"ipv4": None, "ipv6": None}, "at least one address"),
        ({"gateways": node_addresses([ip_address("192.0.2.7")])}, r"no address that could be the gateway of fd02::5"),
        ({"ipv4": IPv4Address("169.254.1.1")}, "the gateway's own"),
        ({"mtu": 1279}, "too small for fd02::5"),
        ({"mtu": 575}, r"too small for 10\.64\.0\.5"),
    ],
)
def test_what_cannot_be_planned(arguments: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        plan(**arguments)  # type: ignore[arg-type]


def test_small_frames_are_enough_for_ipv4() -> None:
    assert plan(ipv6=None, mtu=1279).mtu == 1279


@given(
    st.ip_addresses(v=4),
    st.ip_addresses(v=6),
    st.sampled_from((LINK_LOCAL, NODE)),
    st.builds(RoutePolicy, pod_table=st.integers(1, 2**32 - 1), protocol=st.integers(5, 255)),
)
def test_every_plan_is_closed(
    ipv4: IPv4Address, ipv6: IPv6Address, gateways: HostAddresses, policy: RoutePolicy
) -> None:
    taken = {interface.ip for interface in (gateways.ipv4, gateways.ipv6) if interface}
    if {ipv4, ipv6} & taken:
        return
    made = plan(ipv4, ipv6, gateways=gateways, policy=policy)
    assert made == plan(ipv4, ipv6, gateways=gateways, policy=policy)
    # Whatever the pod's routes lead to is an address of the host's end that the pod has a neighbour entry for...
    gateways_used = {route.gateway for route in made.pod.routes if route.gateway}
    on_host = {address.interface.ip for address in made.host.addresses}
    assert gateways_used <= on_host <= gateways_used | {ip_address("fe80::1")}
    assert gateways_used == {neighbour.address for neighbour in made.pod.neighbours}
    # ...and the host's routes lead to all addresses of the pod, and to nothing else.
    assert {route.destination for route in made.host.routes} == {
        address.interface.network for address in made.pod.addresses
    }
    assert {(route.table, route.protocol) for route in made.host.routes} == {(policy.pod_table, policy.protocol)}
    for end in (made.pod, made.host):
        things: list[Address | Route | Neighbour] = [*end.addresses, *end.routes, *end.neighbours]
        assert {thing.device for thing in things} == {end.name}
        assert all(sysctl.path.split("/")[3] == end.name for sysctl in end.sysctls)


def test_the_rules_look_the_pod_table_up_in_both_families() -> None:
    policy = RoutePolicy(pod_table=200, rule_priority=1999)
    assert [(rule.family, rule.priority, rule.table, rule.protocol) for rule in plan_rules(policy)] == [
        (Family.IPV4, 1999, 200, 30),
        (Family.IPV6, 1999, 200, 30),
    ]


def test_the_first_internal_address_of_each_family_is_the_nodes() -> None:
    assert HostAddresses(ipv4=IPv4Interface("192.0.2.7/32"), ipv6=IPv6Interface("fd00::7/128")) == NODE
    assert node_addresses([]) == HostAddresses(ipv4=None, ipv6=None)


MAC = MacAddress("fa:16:3e:00:00:15")


def assigned(interface: str, gateway: str = "") -> Assignment:
    return Assignment(interface=ip_interface(interface), gateway=ip_address(gateway) if gateway else None)


def port(*assignments: Assignment, mtu: int = 1450) -> PodPlan:
    return plan_port(
        host_name=LinkName("veth01234567"),
        ifname=LinkName("eth0"),
        alias=PodAlias("@port", "c0ffee", "eth0"),
        mac=MAC,
        assignments=assignments,
        mtu=mtu,
        nameservers=(ip_address("10.96.0.10"),),
    )


V4_PORT, V6_PORT = assigned("10.0.0.15/16", "10.0.0.1"), assigned("fd00::15/64", "fd00::1")


def test_a_pod_that_is_a_port_of_its_network() -> None:
    made = port(V6_PORT, V4_PORT)
    assert (made.mtu, made.pod.mac, made.host.alias) == (1450, MAC, "COIL:@port:c0ffee:eth0")
    assert {str(address) for address in made.pod.addresses} == {
        "address 10.0.0.15/16 on eth0",
        "address fd00::15/64 on eth0",
    }
    assert {str(route) for route in made.pod.routes} == {
        "route 0.0.0.0/0 via 10.0.0.1 dev eth0 table 254 proto 3",
        "route ::/0 via fd00::1 dev eth0 table 254 proto 3",
    }
    assert made.assignments == (V4_PORT, V6_PORT)
    assert made.nameservers == (ip_address("10.96.0.10"),)
    assert made.host.mac not in (MAC, made.pod.mac)


def test_the_hosts_end_of_a_port_has_nothing_and_takes_nothing() -> None:
    made = port(V4_PORT, V6_PORT)
    assert (made.host.addresses, made.host.routes, made.host.neighbours, made.pod.neighbours) == ((), (), (), ())
    assert {(sysctl.path, sysctl.value) for sysctl in made.host.sysctls} == {
        ("net/ipv6/conf/veth01234567/disable_ipv6", "1"),
        ("net/ipv4/conf/veth01234567/forwarding", "0"),
        ("net/ipv4/conf/veth01234567/rp_filter", "1"),
        ("net/ipv4/conf/veth01234567/arp_ignore", "8"),
    }


@pytest.mark.parametrize("assignments", [(V4_PORT,), (V6_PORT,), (V4_PORT, V6_PORT)])
def test_no_port_listens_to_routers_that_advertise_themselves(assignments: tuple[Assignment, ...]) -> None:
    assert Sysctl("net/ipv6/conf/eth0/accept_ra", "0") in port(*assignments).pod.sysctls


def test_a_port_with_ipv6_waits_for_no_duplicate_address_detection() -> None:
    at_once = {Sysctl("net/ipv6/conf/eth0/disable_ipv6", "0"), Sysctl("net/ipv6/conf/eth0/accept_dad", "0")}
    assert at_once <= {*port(V6_PORT).pod.sysctls}
    assert not at_once & {*port(V4_PORT).pod.sysctls}


def test_a_port_of_a_subnet_without_a_gateway_has_no_default_route() -> None:
    assert port(assigned("10.0.0.15/16")).pod.routes == ()


def test_one_default_route_for_each_family() -> None:
    made = port(assigned("10.0.0.15/16"), assigned("10.1.0.15/16", "10.1.0.1"), V4_PORT)
    assert [str(route.gateway) for route in made.pod.routes] == ["10.1.0.1"]
    assert len(made.assignments) == 3


@pytest.mark.parametrize(
    ("assignments", "mtu", "problem"),
    [
        ((), 1450, "at least one address"),
        ((V6_PORT,), 1279, "too small for fd00::15"),
        ((V4_PORT,), 575, r"too small for 10\.0\.0\.15"),
    ],
)
def test_ports_that_cannot_be_planned(assignments: tuple[Assignment, ...], mtu: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        port(*assignments, mtu=mtu)
