"""Which route a packet takes in a namespace: policy routing as the kernel does it, over a dump. Pure.

As in ip-rule(8) and ip-route(8): rules by priority; in a table the longest prefix, and of those the smallest metric;
`throw` goes on with the next rule. Where a rule has selectors that the dump does not tell, the answer is uncertain, and
says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import ip_network

from coil.kernel.family import Family, IPAddress
from coil.page.node_dump import NamespaceDump, RouteDump, RuleDump

LOCAL_INPUT = "lo"
"""The input link of a packet that is made here."""


class RouteResult(StrEnum):
    FORWARD = "forward"
    LOCAL = "local"
    """It is for this namespace."""
    BLACKHOLE = "blackhole"
    UNREACHABLE = "unreachable"
    PROHIBIT = "prohibit"
    NO_ROUTE = "no route"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """`source` may be unknown to who asks for a route. `input_link` is where it comes in, or "lo"."""

    source: IPAddress | None
    destination: IPAddress
    mark: int = 0
    input_link: str = LOCAL_INPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`rule` and `route` are None where none matched. `links` are the names by which the packet may leave: one of them.

    `doubts` name rules before that one whose selectors are not known.
    """

    result: RouteResult
    rule: RuleDump | None = None
    route: RouteDump | None = None
    links: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


_ERRORS = {
    "blackhole": RouteResult.BLACKHOLE,
    "unreachable": RouteResult.UNREACHABLE,
    "prohibit": RouteResult.PROHIBIT,
}
_LOCAL_TYPES = frozenset({"local", "anycast"})


def find_route(namespace: NamespaceDump, packet: Packet) -> Decision:
    """What becomes of the packet. Broadcasts and multicasts are no concern of this."""
    family = Family.of(packet.destination)
    rules = [rule for rule in namespace.rules if rule.family == family]
    names = {link.index: link.name for link in namespace.links}
    doubts: list[str] = []
    for rule in _follow(rules, packet, doubts):
        if rule.action in _ERRORS:
            return Decision(result=_ERRORS[rule.action], rule=rule, doubts=tuple(doubts))
        route = _look_up(namespace.routes, rule.table, packet)
        if route is None or (rule.suppress is not None and ip_network(route.destination).prefixlen <= rule.suppress):
            continue
        found = Decision(result=RouteResult.FORWARD, rule=rule, route=route, doubts=tuple(doubts))
        if route.type in _ERRORS:
            return replace(found, result=_ERRORS[route.type])
        if route.type in _LOCAL_TYPES:
            return replace(found, result=RouteResult.LOCAL)
        hops = [hop for hop in route.hops if not hop.dead]
        links = tuple(dict.fromkeys(names[hop.link] for hop in hops if hop.link is not None and hop.link in names))
        return replace(found, links=links, gateways=tuple(dict.fromkeys(hop.gateway for hop in hops if hop.gateway)))
    return Decision(result=RouteResult.NO_ROUTE, doubts=tuple(doubts))


def _follow(rules: Sequence[RuleDump], packet: Packet, doubts: list[str]) -> Iterator[RuleDump]:
    """The rules that match, in their order, jumps followed. The dump has them in the kernel's order."""
    position = 0
    while position < len(rules):
        rule = rules[position]
        position += 1
        if not _matches(rule, packet):
            continue
        if rule.others:
            doubts.append(f"the rule {rule.priority} also asks for {', '.join(rule.others)}")
            continue
        if rule.action == "goto" and rule.goto is not None:
            target = rule.goto
            # The kernel takes forward jumps only.
            position = next((at for at in range(position, len(rules)) if rules[at].priority >= target), len(rules))
        elif rule.action != "nop":
            yield rule


def _matches(rule: RuleDump, packet: Packet) -> bool:
    conditions = (
        not rule.source or (packet.source is not None and packet.source in ip_network(rule.source)),
        not rule.destination or packet.destination in ip_network(rule.destination),
        not rule.input_link or rule.input_link == packet.input_link,
        # A packet has no output link before it is routed, unless its sender has bound it to one.
        not rule.output_link,
        rule.mark is None or (packet.mark ^ rule.mark) & (0xFFFFFFFF if rule.mask is None else rule.mask) == 0,
    )
    return all(conditions) is not rule.inverted


def _look_up(routes: Sequence[RouteDump], table: int, packet: Packet) -> RouteDump | None:
    """The table's route; None where it has none, or throws the packet back."""
    best: RouteDump | None = None
    length = -1
    family = Family.of(packet.destination)
    for route in routes:
        if (route.table, route.family) != (table, family):
            continue
        network = ip_network(route.destination)
        if packet.destination not in network:
            continue
        if route.hops and all(hop.dead for hop in route.hops):
            continue
        if network.prefixlen > length or (
            network.prefixlen == length and best is not None and route.metric < best.metric
        ):
            best, length = route, network.prefixlen
    return None if best is None or best.type == "throw" else best
