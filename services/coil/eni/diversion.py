"""What routing of others catches packets of pods, before these get to the table that is meant for them or there. Pure.

Other programs see the links of interfaces appear, too: DHCP clients give them an address and the node a second default
route, cloud agents add rules of their own, VPNs a rule for everything. EC2 takes a pod's packet from the interface that
has its address, and drops it without a word where it comes by another one. Nothing of theirs is changed; it is named.

    rules, in their order   one that may be for what pods of an interface send, stands before the lookup of the
                            interface's table, and drops, jumps over that lookup, or looks up a table that has a way by
                            another link; the same for what pods of all interfaces send by the primary one, as it is
                            translated, and for what is sent to pods, whose routes are looked up first
    the interface's table   a route that counts, by another link: in main, which pods of the primary interface use, and
                            all that leaves by it, or in the table of another interface

A rule counts if its selectors may fit: it is for pods' addresses, or for all; one for a mark alone is for whoever sets
it, and is left out. A table has a way for a rule without a destination if it has a default route, or a half of one; for
a rule with a destination, if it has a route there.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from coil.eni.interface import InterfaceId
from coil.eni.node_plan import (
    POD_PRIORITY,
    PRIMARY_PRIORITY,
    PROTOCOL,
    RULE_CLAIM,
    SOURCE_PRIORITY,
    AttachedInterface,
)
from coil.kernel.family import Family, IPNetwork
from coil.kernel.foreign_rule import ForeignRule, RuleAction
from coil.kernel.link import LinkName
from coil.kernel.route import Route, RouteTable, RouteType

_HALF: Final = 1
"""VPNs write 0.0.0.0/1 and 128.0.0.0/1 in the place of a default route, which they leave as it is."""
_LAST_PRIORITY: Final = 2**32 - 1
_NO_WAY: Final = frozenset({RouteType.LOCAL, RouteType.BROADCAST, RouteType.THROW})
_DROPS: Final = frozenset({RuleAction.BLACKHOLE, RuleAction.UNREACHABLE, RuleAction.PROHIBIT})


class _Way(StrEnum):
    """Of packets; in words, of pods' interfaces."""

    OUT = "what pods of {} send"
    BY_PRIMARY = "what pods of {} send by the primary interface"
    IN = "what is sent to pods of {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """Of pods of the interface `of` with addresses of `ranges`: `priority` looks up `table`, which is to lead to one of
    `links`. `table` None: whichever has the pods' routes.
    """

    way: _Way
    of: LinkName
    links: Collection[LinkName]
    family: Family
    ranges: tuple[IPNetwork, ...]
    priority: int
    table: int | None


def find_tables(
    rules: Collection[ForeignRule],
    interfaces: Collection[AttachedInterface],
    links: Mapping[InterfaceId, LinkName],
    pod_links: Collection[LinkName],
) -> frozenset[int]:
    """The tables that `find_diversions` needs for these rules."""
    traffics = list(_traffics(rules, interfaces, links, pod_links))
    looked_up = {
        rule.table
        for each in traffics
        for rule in _before(rules, each, pod_links)
        if rule.action is RuleAction.LOOKUP and rule.table != each.table
    }
    return frozenset(looked_up | {each.table for each in traffics if each.table is not None})


def find_diversions(
    rules: Collection[ForeignRule],
    tables: Mapping[int, Collection[Route]],
    interfaces: Collection[AttachedInterface],
    links: Mapping[InterfaceId, LinkName],
    pod_links: Collection[LinkName],
) -> tuple[str, ...]:
    """A sentence for each rule and each route that catches packets of pods, sorted; none if all is well.

    `rules` are all of the node's, in any order; `tables` those of `find_tables`, whole and in the kernel's order;
    `links` the interfaces' links by their present names, and `pod_links` those of pods.
    """
    found: dict[str, dict[_Way, set[LinkName]]] = {}
    for each in _traffics(rules, interfaces, links, pod_links):
        causes = [str(rule) for rule in _before(rules, each, pod_links) if _catches(rule, tables, each)]
        if each.table is not None:
            causes += map(str, _winners(tables.get(each.table, ()), each, frozenset(links.values())))
        for cause in causes:
            found.setdefault(cause, {}).setdefault(each.way, set()).add(each.of)
    return tuple(sorted(f"{cause} catches {_words(caught)}" for cause, caught in found.items()))


def _words(caught: Mapping[_Way, Collection[LinkName]]) -> str:
    # Whoever catches all that they send need not be told of a part of it.
    rest = {
        way: set(of) - (set(caught.get(_Way.OUT, ())) if way is _Way.BY_PRIMARY else set())
        for way, of in caught.items()
    }
    return " and ".join(way.format(", ".join(sorted(rest[way]))) for way in _Way if rest.get(way))


def _traffics(
    rules: Iterable[ForeignRule],
    interfaces: Collection[AttachedInterface],
    links: Mapping[InterfaceId, LinkName],
    pod_links: Collection[LinkName],
) -> Iterator[_Traffic]:
    primary = next((links.get(each.interface.id) for each in interfaces if each.is_primary), None)
    for attached in interfaces:
        of = links.get(attached.interface.id)
        for family in Family if of is not None else ():
            ranges = tuple(each for each in attached.interface.ranges if Family.of(each) is family)
            if of is None or not ranges:
                continue
            traffic = partial(_Traffic, of=of, family=family, ranges=ranges)
            # Of IPv6, nothing but main is used.
            table = attached.table if family is Family.IPV4 else RouteTable.MAIN
            priority = SOURCE_PRIORITY if table != RouteTable.MAIN else _main_priority(rules, family)
            yield traffic(way=_Way.OUT, links={of}, priority=priority, table=table)
            yield traffic(way=_Way.IN, links=pod_links, priority=POD_PRIORITY, table=None)
            if family is Family.IPV4 and primary not in (None, of):
                yield traffic(way=_Way.BY_PRIMARY, links={primary}, priority=PRIMARY_PRIORITY, table=RouteTable.MAIN)


def _main_priority(rules: Iterable[ForeignRule], family: Family) -> int:
    """Of the first rule by which everything looks up main; it is 32766 unless somebody has changed that."""
    wanted = (RuleAction.LOOKUP, RouteTable.MAIN, family, False, -1)
    plain = (
        rule.priority
        for rule in rules
        if (rule.action, rule.table, rule.family, rule.selects, rule.suppressed) == wanted and not rule.inverted
    )
    return min(plain, default=_LAST_PRIORITY)


def _before(rules: Iterable[ForeignRule], traffic: _Traffic, pod_links: Collection[LinkName]) -> Iterator[ForeignRule]:
    """Those of others that stand before the lookup, and may be for that traffic."""
    for rule in rules:
        own = rule.protocol == RULE_CLAIM.protocol and rule.priority in RULE_CLAIM.priorities
        if own or rule.family is not traffic.family or rule.priority > traffic.priority:
            continue
        if _may_select(rule, traffic, pod_links):
            yield rule


def _may_select(rule: ForeignRule, traffic: _Traffic, pod_links: Collection[LinkName]) -> bool:
    pods, others = rule.source, rule.destination
    if traffic.way is _Way.IN:
        pods, others = others, pods
    if rule.inverted:
        # Unless every packet fits the selectors, there may be one that does not.
        narrower = (others, rule.iif, rule.mark) != (None, None, None) or rule.local or rule.narrowed
        return narrower or not all(_contains(pods, each) for each in traffic.ranges)
    if rule.local or (traffic.way is not _Way.IN and rule.iif is not None and rule.iif not in pod_links):
        return False
    if rule.mark and pods is None:
        return False
    return pods is None or any(pods.overlaps(each) for each in traffic.ranges)


def _contains(network: IPNetwork | None, other: IPNetwork) -> bool:
    return network is None or (network.overlaps(other) and network.prefixlen <= other.prefixlen)


def _catches(rule: ForeignRule, tables: Mapping[int, Collection[Route]], traffic: _Traffic) -> bool:
    if rule.action in _DROPS:
        return True
    if rule.action is RuleAction.GOTO:
        return rule.goto > traffic.priority
    if rule.action is not RuleAction.LOOKUP or rule.table == traffic.table:
        return False
    return any(
        _leads_elsewhere(route, traffic)
        and route.destination.prefixlen > rule.suppressed
        and _has_way(route, rule, traffic)
        for route in tables.get(rule.table, ())
    )


def _has_way(route: Route, rule: ForeignRule, traffic: _Traffic) -> bool:
    if traffic.way is _Way.IN:
        return any(_overlaps(route.destination, each) for each in traffic.ranges)
    to = None if rule.inverted else rule.destination
    return route.destination.prefixlen <= _HALF if to is None else _overlaps(route.destination, to)


def _winners(routes: Collection[Route], traffic: _Traffic, links: Collection[LinkName]) -> Iterator[Route]:
    """Those of the traffic's own table that lead elsewhere, and count."""
    best: dict[IPNetwork, Route] = {}
    # Of equal ones the first counts, as the kernel lists them.
    for route in sorted(routes, key=lambda route: route.effective_metric):
        if route.family is traffic.family and route.type is not RouteType.THROW:
            best.setdefault(route.destination, route)
    for destination, route in best.items():
        # Each link has the whole of fe80::/64; packets with such addresses are not forwarded.
        if destination.version == 6 and destination.is_link_local:
            continue
        # What leads to a network elsewhere by a link of no interface, such as a bridge's, is what it should be.
        counts = destination.prefixlen <= _HALF or route.device in links
        if counts and route.protocol != PROTOCOL and _leads_elsewhere(route, traffic):
            yield route


def _leads_elsewhere(route: Route, traffic: _Traffic) -> bool:
    return route.device not in traffic.links and route.type not in _NO_WAY


def _overlaps(one: IPNetwork, other: IPNetwork) -> bool:
    return one.version == other.version and one.overlaps(other)
