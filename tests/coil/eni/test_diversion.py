"""What counts as caught: rules and routes as others make them, on a node with pods on each of two interfaces."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network, ip_network

import pytest

from coil.eni.diversion import find_diversions, find_tables
from coil.eni.interface import InterfaceId
from coil.eni.node_plan import PROTOCOL, AttachedInterface, plan_table
from coil.kernel.family import Family
from coil.kernel.foreign_rule import ForeignRule, RuleAction
from coil.kernel.link import LinkName
from coil.kernel.route import Route, RouteTable, RouteType
from tests.coil.eni.vpc import interface

SUBNET = IPv4Network("10.1.0.0/20")
FIRST, SECOND = INTERFACES = tuple(
    AttachedInterface(interface=interface(device, f"10.1.{device}.32/28"), subnet=SUBNET) for device in range(2)
)
ENS5, ENS6, WG0, VETH = map(LinkName, ("ens5", "ens6", "wg0", "veth1"))
LINKS: dict[InterfaceId, LinkName] = {FIRST.interface.id: ENS5, SECOND.interface.id: ENS6}
DEFAULT, DEFAULT6 = ip_network("0.0.0.0/0"), ip_network("::/0")

PLAIN = ForeignRule(family=Family.IPV4, priority=0, action=RuleAction.LOOKUP, table=RouteTable.LOCAL)
KERNEL = [
    replace(PLAIN, family=family, priority=priority, table=table, protocol=2)
    for family in Family
    for priority, table in ((0, RouteTable.LOCAL), (32766, RouteTable.MAIN), (32767, RouteTable.DEFAULT))
]
OURS = [
    replace(PLAIN, priority=512, table=116, protocol=PROTOCOL),
    replace(PLAIN, priority=1024, table=RouteTable.MAIN, protocol=PROTOCOL, mark=0x80),
    replace(PLAIN, priority=1536, table=10_001, protocol=PROTOCOL, source=ip_network("10.1.1.33/32")),
]
RULE = replace(PLAIN, priority=100, table=77)
"""A rule of somebody for everything."""
MAIN = (
    Route(destination=DEFAULT, device=ENS5, gateway=SUBNET[1], protocol=16, metric=100),
    Route(destination=SUBNET, device=ENS5, protocol=2, metric=100),
    Route(destination=DEFAULT6, device=ENS5, protocol=9),
)
TABLES: dict[int, Sequence[Route]] = {
    RouteTable.MAIN: MAIN,
    RouteTable.LOCAL: [
        Route(destination=ip_network("10.1.0.10/32"), device=ENS5, table=255, type=RouteType.LOCAL),
        Route(destination=ip_network("ff00::/8"), device=ENS6, table=255, type=RouteType.MULTICAST),
    ],
    10_001: plan_table(SECOND, ENS6),
    77: [Route(destination=DEFAULT, device=WG0, table=77)],
}


def find(
    *rules: ForeignRule,
    tables: Mapping[int, Sequence[Route]] = TABLES,
    interfaces: Sequence[AttachedInterface] = INTERFACES,
) -> tuple[str, ...]:
    every = [*KERNEL, *OURS, *rules]
    wanted = find_tables(every, interfaces, LINKS, {VETH})
    return find_diversions(every, {table: tables.get(table, ()) for table in wanted}, interfaces, LINKS, {VETH})


def caught(found: tuple[str, ...]) -> dict[str, str]:
    """By what, and which packets."""
    return {cause: packets for cause, _, packets in (sentence.partition(" catches ") for sentence in found)}


def with_main(*routes: Route) -> dict[int, Sequence[Route]]:
    return {**TABLES, RouteTable.MAIN: [*routes, *MAIN]}


def test_a_node_as_it_should_be() -> None:
    assert find() == ()


OUT = "what pods of ens5, ens6 send"
OUT_5, OUT_6 = "what pods of ens5 send", "what pods of ens6 send"
IN = "what is sent to pods of ens5, ens6"
ALL = f"{OUT} and {IN}"
BY_PRIMARY = "what pods of ens6 send by the primary interface"
IN_MAIN = f"{OUT_5} and {BY_PRIMARY}"
"""What is looked up in main."""
OF_SECOND = ip_network("10.1.1.0/24")
OF_FIRST = ip_network("10.1.0.0/24")
ELSEWHERE = ip_network("203.0.113.0/24")
LATER = replace(RULE, priority=1300)
"""Behind the rules for what is sent to pods, and for what leaves by the primary interface."""


@pytest.mark.parametrize(
    ("rule", "packets"),
    [
        (RULE, ALL),
        (replace(RULE, priority=600), OUT),
        (LATER, OUT),
        (replace(RULE, priority=2000), OUT_5),
        (replace(RULE, source=OF_SECOND), f"{OUT_6} and {IN}"),
        (replace(RULE, source=ip_network("10.1.1.33/32")), f"{OUT_6} and {IN}"),
        (replace(RULE, source=ELSEWHERE), IN),
        (replace(LATER, source=OF_SECOND), OUT_6),
        (replace(RULE, source=ip_network("10.0.0.0/8"), priority=1537), OUT_5),
        (replace(RULE, iif=VETH), ALL),
        (replace(RULE, iif=ENS5), IN),
        (replace(RULE, narrowed=True), ALL),
        (replace(RULE, destination=ELSEWHERE), OUT),
        (replace(RULE, destination=OF_SECOND), f"{OUT} and what is sent to pods of ens6"),
        (replace(RULE, mark=1, source=OF_FIRST), OUT_5),
        (replace(RULE, mark=1, destination=OF_FIRST), "what is sent to pods of ens5"),
        (replace(RULE, inverted=True, mark=0xCA6C), ALL),
        (replace(RULE, inverted=True, source=SUBNET, destination=SUBNET), ALL),
        (replace(LATER, inverted=True, source=OF_FIRST), OUT_6),
        (replace(RULE, inverted=True, destination=SUBNET), OUT),
        (replace(RULE, action=RuleAction.BLACKHOLE, table=0), ALL),
        (replace(RULE, action=RuleAction.UNREACHABLE, table=0), ALL),
        (replace(RULE, action=RuleAction.PROHIBIT, table=0), ALL),
        (replace(RULE, action=RuleAction.GOTO, table=0, goto=1000), IN),
        (replace(RULE, action=RuleAction.GOTO, table=0, goto=1025), f"{BY_PRIMARY} and {IN}"),
        (replace(RULE, action=RuleAction.GOTO, table=0, goto=1600), f"{OUT_6} and {IN}"),
        (replace(RULE, action=RuleAction.GOTO, table=0, goto=32767), ALL),
        (replace(RULE, protocol=PROTOCOL), ALL),
        (replace(RULE, table=RouteTable.MAIN), f"{OUT_6} and {IN}"),
        (replace(RULE, priority=600, source=OF_SECOND, table=80), BY_PRIMARY),
    ],
    ids=str,
)
def test_a_rule_that_catches_packets_of_pods(rule: ForeignRule, packets: str) -> None:
    tables = {**TABLES, 80: [Route(destination=DEFAULT, device=ENS6, table=80)]}
    assert caught(find(rule, tables=tables)) == {str(rule): packets}


@pytest.mark.parametrize(
    "rule",
    [
        replace(RULE, priority=32767),
        replace(LATER, source=ip_network("10.1.2.0/24")),
        replace(LATER, iif=ENS5),
        replace(RULE, local=True),
        replace(RULE, mark=1),
        replace(RULE, family=Family.IPV6),
        replace(RULE, table=78),
        replace(RULE, suppressed=0),
        replace(RULE, action=RuleAction.NOP),
        replace(RULE, action=RuleAction.GOTO, table=0, goto=101),
        replace(RULE, inverted=True),
        replace(LATER, inverted=True, source=ip_network("10.1.0.0/16")),
        replace(RULE, destination=ELSEWHERE, table=79),
        replace(LATER, source=OF_SECOND, table=80),
        replace(LATER, source=OF_FIRST, table=RouteTable.MAIN),
        replace(RULE, table=116),
        replace(RULE, priority=1024, protocol=PROTOCOL),
    ],
    ids=str,
)
def test_a_rule_that_does_not(rule: ForeignRule) -> None:
    tables = {
        79: [Route(destination=ip_network("192.0.2.0/24"), device=WG0, table=79)],
        80: [Route(destination=DEFAULT, device=ENS6, table=80)],
        116: [Route(destination=ip_network("10.1.1.33/32"), device=VETH, table=116)],
    }
    assert find(rule, tables={**TABLES, **tables}) == ()


def test_the_halves_of_a_default_route_are_one() -> None:
    halves = [Route(destination=ip_network(half), device=WG0, table=77) for half in ("0.0.0.0/1", "128.0.0.0/1")]
    assert caught(find(RULE, tables={**TABLES, 77: halves})) == {str(RULE): ALL}


def test_what_wg_quick_makes() -> None:
    """Its second rule keeps main's other routes, and is no lookup that would be in the place of main's own."""
    everything = replace(RULE, priority=32765, inverted=True, mark=0xCA6C)
    suppressed = replace(RULE, priority=32764, table=RouteTable.MAIN, suppressed=0)
    assert caught(find(everything, suppressed)) == {"rule 32765 not from all fwmark 0xca6c lookup 77": OUT_5}


def test_where_main_has_no_rule_everything_before_the_end_counts() -> None:
    rule = replace(RULE, priority=32767)
    rules = [each for each in KERNEL if each.table != RouteTable.MAIN]
    wanted = find_tables([*rules, rule], INTERFACES, LINKS, ())
    found = find_diversions([*rules, rule], {table: TABLES.get(table, ()) for table in wanted}, INTERFACES, LINKS, ())
    assert caught(found) == {str(rule): OUT_5}


@pytest.mark.parametrize(
    "route",
    [
        Route(destination=DEFAULT, device=ENS6, gateway=SUBNET[1], protocol=16, metric=50),
        Route(destination=DEFAULT, device=ENS6, gateway=SUBNET[1], protocol=16, metric=100),
        Route(destination=ip_network("0.0.0.0/1"), device=WG0),
        Route(destination=SUBNET, device=ENS6, protocol=2),
        Route(destination=ip_network("10.1.0.2/32"), device=ENS6, gateway=SUBNET[1], protocol=16),
        Route(destination=DEFAULT, device=None, type=RouteType.BLACKHOLE),
        Route(destination=DEFAULT, device=None),
    ],
    ids=str,
)
def test_a_route_of_main_that_counts(route: Route) -> None:
    """The kernel lists the first of equal ones first."""
    assert caught(find(tables=with_main(route))) == {str(route): IN_MAIN}


@pytest.mark.parametrize(
    "route",
    [
        Route(destination=DEFAULT, device=ENS6, gateway=SUBNET[1], protocol=16, metric=200),
        Route(destination=DEFAULT, device=None, type=RouteType.THROW),
        Route(destination=ip_network("172.17.0.0/16"), device=LinkName("docker0"), protocol=2),
        Route(destination=ip_network("192.0.2.0/24"), device=ENS5),
        Route(destination=DEFAULT6, device=ENS6),
        Route(destination=DEFAULT, device=ENS6, protocol=PROTOCOL),
    ],
    ids=str,
)
def test_a_route_of_main_that_does_not(route: Route) -> None:
    assert find(tables=with_main(route)) == ()


def test_a_route_in_the_table_of_an_interface() -> None:
    foreign = Route(destination=ip_network("192.0.2.0/24"), device=ENS5, table=10_001)
    harmless = Route(destination=ip_network("198.51.100.0/24"), device=WG0, table=10_001)
    assert caught(find(tables={**TABLES, 10_001: [foreign, harmless, *plan_table(SECOND, ENS6)]})) == {
        str(foreign): OUT_6
    }


def test_of_ipv6_all_is_in_main() -> None:
    first, second = (
        replace(each, interface=replace(each.interface, ranges=frozenset({ip_network(f"fd00:{index}::/80")})))
        for index, each in enumerate(INTERFACES)
    )
    local = [Route(destination=ip_network("fe80::/64"), device=link, protocol=2) for link in (ENS6, ENS5)]
    tables = with_main(*local)
    assert find(tables=tables, interfaces=[first]) == ()
    foreign = Route(destination=DEFAULT6, device=ENS6, protocol=9, metric=1)
    assert caught(find(tables=with_main(foreign, *local), interfaces=[first])) == {str(foreign): OUT_5}
    assert set(caught(find(tables=tables, interfaces=[second]))) == {str(MAIN[2])}
    rule = replace(RULE, family=Family.IPV6, table=77)
    six = {**tables, 77: [Route(destination=DEFAULT6, device=WG0, table=77)]}
    assert caught(find(rule, tables=six, interfaces=[first])) == {
        str(rule): f"{OUT_5} and what is sent to pods of ens5"
    }


def test_an_interface_without_a_link_is_not_spoken_of() -> None:
    every = [*KERNEL, *OURS, RULE]
    tables = find_tables(every, INTERFACES, {FIRST.interface.id: ENS5}, ())
    found = find_diversions(every, {each: TABLES[each] for each in tables if each in TABLES}, INTERFACES, {}, ())
    assert 10_001 not in tables
    assert found == ()


def test_only_tables_that_matter_are_read() -> None:
    assert find_tables([*KERNEL, *OURS], INTERFACES, LINKS, ()) == {RouteTable.LOCAL, RouteTable.MAIN, 10_001}
    others = [RULE, replace(RULE, table=78, priority=32767), replace(RULE, table=79, local=True)]
    assert find_tables([*KERNEL, *OURS, *others], INTERFACES, LINKS, ()) == {255, 254, 10_001, 77}
