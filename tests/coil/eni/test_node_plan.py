"""The plan, asked as a kernel asks it: rules by priority, in each the table, of each table the longest prefix."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

import pytest

from coil.eni.interface import InterfaceId, NetworkInterface
from coil.eni.node_plan import (
    PRIMARY_MARK,
    RULE_CLAIM,
    SECONDARY_MARK,
    SECONDARY_MASK,
    SHARED_CLAIM,
    TABLES,
    AttachedInterface,
    NodePlan,
    NodeState,
    plan_answer_rule,
    plan_node,
    plan_source_rule,
    table_of,
)
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import Route, RouteTable, RouteType
from coil.kernel.rule import Rule
from tests.coil.eni.vpc import interface

POD_TABLE = 116
SUBNET = IPv4Network("10.1.0.0/20")

ETH0 = AttachedInterface(interface=interface(0), subnet=SUBNET)
ETH1 = AttachedInterface(interface=interface(1), subnet=SUBNET)
ETH2 = AttachedInterface(interface=interface(2), subnet=IPv4Network("10.1.16.0/20"))
LINKS = {
    ETH0.interface.id: LinkName("eth0"),
    ETH1.interface.id: LinkName("eth1"),
    ETH2.interface.id: LinkName("ens7"),
}

ON_FIRST, ON_SECOND, ON_THIRD = map(IPv4Address, ("10.1.0.20", "10.1.1.20", "10.1.16.20"))
PODS: list[tuple[IPAddress, InterfaceId]] = [
    (ON_FIRST, ETH0.interface.id),
    (ON_SECOND, ETH1.interface.id),
    (ON_THIRD, ETH2.interface.id),
]
MAIN = [
    Route(destination=ip_network("0.0.0.0/0"), device=LinkName("eth0"), gateway=ETH0.gateway),
    Route(destination=SUBNET, device=LinkName("eth0")),
]
ANYWHERE = ("10.1.200.9", "10.1.0.99", "100.64.3.3", "192.168.7.7", "198.51.100.7")


def plan() -> NodePlan:
    return plan_node([ETH0, ETH1, ETH2], LINKS, PODS, pod_table=POD_TABLE)


def leaves_by(plan: NodePlan, source: str | IPAddress, destination: str | IPAddress, *, mark: int = 0) -> str:
    """The link, as the kernel would choose it on a node with those pods."""
    pods = [Route(destination=ip_network(address), device=LinkName(f"veth-{address}")) for address, _ in PODS]
    tables: dict[int, Sequence[Route]] = {POD_TABLE: pods, RouteTable.MAIN: MAIN, **plan.tables}
    own = Rule(family=Family.IPV4, priority=32766, table=RouteTable.MAIN, protocol=2)
    rules = sorted([*plan.rules, own], key=lambda rule: rule.priority)
    return _look_up(rules, tables, IPv4Address(str(source)), IPv4Address(str(destination)), mark)


def _look_up(
    rules: Sequence[Rule], tables: Mapping[int, Sequence[Route]], source: IPv4Address, to: IPv4Address, mark: int
) -> str:
    for rule in rules:
        selected = all(net is None or ip in net for net, ip in ((rule.source, source), (rule.destination, to)))
        marked = rule.mark is None or mark & rule.mask == rule.mark
        if rule.family is not Family.IPV4 or not selected or not marked:
            continue
        fitting = [route for route in tables.get(rule.table, ()) if to in route.destination]
        if fitting:
            chosen = max(fitting, key=lambda route: (route.destination.prefixlen, -route.metric))
            return str(chosen.device if chosen.type is RouteType.UNICAST else chosen.type.name)
    raise AssertionError("no route")


@pytest.mark.parametrize("mark", [0, PRIMARY_MARK])
def test_a_pod_of_this_node_is_reached_by_its_own_link_whoever_asks(mark: int) -> None:
    for source in (ON_FIRST, ON_SECOND, "10.1.9.9", "8.8.8.8"):
        assert leaves_by(plan(), source, ON_THIRD, mark=mark) == f"veth-{ON_THIRD}"


@pytest.mark.parametrize("destination", ANYWHERE)
def test_a_pod_sends_by_the_interface_that_has_its_address(destination: str) -> None:
    assert [leaves_by(plan(), pod, destination) for pod, _ in PODS] == ["eth0", "eth1", "ens7"]


@pytest.mark.parametrize("destination", ANYWHERE)
@pytest.mark.parametrize("others", [0, 0x26001100, 0x4000])
def test_what_has_the_mark_leaves_by_the_primary_interface(destination: str, others: int) -> None:
    assert [leaves_by(plan(), pod, destination, mark=PRIMARY_MARK | others) for pod, _ in PODS] == ["eth0"] * 3


@pytest.mark.parametrize("destination", ANYWHERE)
@pytest.mark.parametrize("others", [0, 0x26001100, 0x4000])
@pytest.mark.parametrize(("attached", "link"), [(ETH1, "eth1"), (ETH2, "ens7")])
def test_an_answer_leaves_by_the_interface_by_which_it_was_asked_for(
    destination: str, others: int, attached: AttachedInterface, link: str
) -> None:
    assert attached.mark is not None
    for source in (*(pod for pod, _ in PODS), "10.1.200.9", ETH0.interface.primary):
        assert leaves_by(plan(), source, destination, mark=attached.mark | others) == link
    assert leaves_by(plan(), destination, ON_FIRST, mark=attached.mark) == f"veth-{ON_FIRST}"


@pytest.mark.parametrize("mark", [1, 2, 0x40, 0x43, 0x4001, 0xCA6C])
def test_marks_of_others_lead_nowhere_else(mark: int) -> None:
    assert [leaves_by(plan(), pod, "10.1.200.9", mark=mark) for pod, _ in PODS] == ["eth0", "eth1", "ens7"]


def test_the_marks_of_interfaces_are_different_and_within_their_bits() -> None:
    each = [AttachedInterface(interface=interface(number), subnet=SUBNET) for number in range(100)]
    assert each[0].mark is None
    marks = [attached.mark for attached in each[1:64]]
    assert len({*marks}) == len(marks)
    assert all(mark is not None and mark & ~SECONDARY_MASK == 0 and mark & SECONDARY_MARK for mark in marks)
    assert not PRIMARY_MARK & SECONDARY_MASK
    # Their pods still have their own rules.
    assert [(attached.mark, plan_answer_rule(attached)) for attached in each[64:]] == [(None, None)] * 36


def test_what_the_node_sends_leaves_by_the_interface_whose_address_it_has() -> None:
    own = [each.interface.primary for each in (ETH0, ETH1, ETH2)]
    for destination in ANYWHERE:
        assert [leaves_by(plan(), source, destination) for source in own] == ["eth0", "eth1", "ens7"]
        assert leaves_by(plan(), "0.0.0.0", destination) == "eth0"


def test_every_rule_is_claimed_and_main_is_nobodys_to_fill() -> None:
    made = plan()
    assert all(RULE_CLAIM.covers(rule) for rule in made.rules)
    assert {rule for rule in made.rules if SHARED_CLAIM.covers(rule)} == {
        *plan_node((), {}, (), pod_table=POD_TABLE).rules
    }
    assert set(made.tables) == {table_of(1), table_of(2)} <= {*TABLES}


def test_a_pod_of_an_interface_that_is_gone_has_no_rule() -> None:
    pods: list[tuple[IPAddress, InterfaceId]] = [(ON_SECOND, InterfaceId("eni-gone"))]
    assert plan_node([ETH0, ETH1], LINKS, pods, pod_table=POD_TABLE) == plan_node(
        [ETH0, ETH1], LINKS, (), pod_table=POD_TABLE
    )


@pytest.mark.parametrize("destination", ANYWHERE)
def test_what_a_pod_sends_while_its_interface_has_no_link_leaves_by_no_other(destination: str) -> None:
    made = plan_node([ETH0, ETH1], {ETH0.interface.id: LinkName("eth0")}, PODS, pod_table=POD_TABLE)
    assert {rule.source for rule in made.rules} >= {IPv4Network(ON_SECOND)}
    assert [leaves_by(made, pod, destination) for pod in (ON_FIRST, ON_SECOND)] == ["eth0", "UNREACHABLE"]
    assert leaves_by(made, ON_FIRST, ON_SECOND) == f"veth-{ON_SECOND}"


def test_ipv6_and_the_primary_interface_need_no_rule() -> None:
    assert plan_source_rule(IPv6Address("fd00::7"), ETH1) is None
    assert plan_source_rule(ON_FIRST, ETH0) is None


def test_the_plan_does_not_depend_on_the_order() -> None:
    turned = plan_node([ETH2, ETH0, ETH1], LINKS, [*PODS[::-1], *PODS], pod_table=POD_TABLE)
    assert turned == plan()
    assert replace(turned, rules=()) != plan()


def test_what_a_state_says() -> None:
    ranges: list[NetworkInterface] = [
        interface(0, "10.1.0.32/28"),
        replace(interface(1), ranges=frozenset({IPv6Network("fd00:1::/80"), IPv4Network("10.1.1.7/32")})),
    ]
    state = NodeState(
        interfaces=tuple(AttachedInterface(interface=each, subnet=SUBNET) for each in ranges), inside=frozenset()
    )
    assert state.primary == state.find(InterfaceId("eni-0")) == state.interfaces[0]
    assert state.find(InterfaceId("eni-1")) == state.interfaces[1]
    assert state.find(InterfaceId("eni-2")) is None
    assert state.ranges == {*map(ip_network, ("10.1.0.32/28", "fd00:1::/80", "10.1.1.7/32"))}
    assert NodeState(interfaces=state.interfaces[1:], inside=frozenset()).primary is None
