"""The chains that enforce the security groups of ports on bridges: a part of the table of `coil.neutron.port_filter`.
Pure.

    forward   from a pod's link that is not in `open`   ─► send      to the chain of its rules, `out-…`; else dropped
              to a pod's link that is not in `open`     ─► receive   to the chain of its rules, `in-…`; else dropped

Ports with the same rules share their chains, whose names end with a digest of the rules, and are told apart by the sets
of their links, `members-…`. So the ports of a namespace cost its nodes one pair of chains, and a port is an element. A
port that neither is in `open` nor has rules that are known receives and sends nothing.

What the node itself sends to a pod, such as a probe, and the answer, are not forwarded and pass. So do ARP, neighbour
discovery and multicast listener reports: without these no rule would ever admit anything.

Rules are stateful, but conntrack is not to be had on the bridges of every kernel. So a packet that is admitted is
remembered by its addresses, protocol and ports, and its answers are admitted for as long as the packets of a
conversation may be apart. Each pair of chains has sets of its own for that: whoever fills them up is refused further
answers, and so are the pods with the same rules on that node. Isolated namespaces share none.

Of a fragmented packet only the first fragment has ports, so the others pass by rules without ports only. The errors
that ICMP reports pass always (RFC 4890): whom they concern cannot be looked up here, and the receiver compares them
with its own connections.
"""

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from typing import Final

from coil.kernel.family import Family
from coil.kernel.nft_element import SetName
from coil.kernel.nft_table import (
    ADDRESS,
    DESTINATION,
    SOURCE,
    Comparison,
    Count,
    DataType,
    Field,
    Goto,
    Key,
    Match,
    Member,
    NftSet,
    NumberRange,
    RegularChain,
    Remember,
    Rule,
    TableFamily,
    Verdict,
)
from coil.neutron.overlay_filter import TABLE
from coil.neutron.port_rules import Direction, PortRule, RuleProtocol, RuleSet, admits_everything

DENIED: Final = "denied"
"""Counts packets that no rule of a security group admits."""
SEND: Final = "send"
RECEIVE: Final = "receive"
OPEN: Final = SetName(TableFamily.BRIDGE, TABLE, "open")
"""The links of ports that no rules restrict."""
REMEMBERED: Final = 65536
"""Conversations of one family and direction that the ports with the same rules may have on one node."""
TCP_SECONDS: Final = 7440
"""How long a connection may be idle (RFC 5382, REQ-5)."""
DATAGRAM_SECONDS: Final = 300
"""The same for UDP (RFC 4787, REQ-5) and, having nothing better, SCTP."""
ECHO_SECONDS: Final = 60
"""RFC 5508, REQ-1."""

_DIGITS: Final = {Family.IPV4: "4", Family.IPV6: "6"}
_ETHER_TYPES: Final = {Family.IPV4: "ip", Family.IPV6: "ip6"}
_ICMP_TYPE: Final = {Family.IPV4: Field.ICMP_TYPE, Family.IPV6: Field.ICMPV6_TYPE}
_PORTS: Final = {
    RuleProtocol.TCP: (Field.TCP_SOURCE_PORT, Field.TCP_DESTINATION_PORT),
    RuleProtocol.UDP: (Field.UDP_SOURCE_PORT, Field.UDP_DESTINATION_PORT),
    RuleProtocol.SCTP: (Field.SCTP_SOURCE_PORT, Field.SCTP_DESTINATION_PORT),
}
_SECONDS: Final = {
    RuleProtocol.TCP: TCP_SECONDS,
    RuleProtocol.UDP: DATAGRAM_SECONDS,
    RuleProtocol.SCTP: DATAGRAM_SECONDS,
}
_PROTOCOL_NAMES: Final = {
    Family.IPV4: {RuleProtocol.ICMP: "icmp"},
    Family.IPV6: {RuleProtocol.ICMP: "ipv6-icmp"},
}
_ERRORS: Final = {
    Family.IPV4: ("destination-unreachable", "time-exceeded", "parameter-problem"),
    Family.IPV6: ("destination-unreachable", "packet-too-big", "time-exceeded", "parameter-problem"),
}
_TYPE_NAMES: Final = {
    Family.IPV4: {
        **{0: "echo-reply", 3: "destination-unreachable", 4: "source-quench", 5: "redirect", 8: "echo-request"},
        **{9: "router-advertisement", 10: "router-solicitation", 11: "time-exceeded", 12: "parameter-problem"},
        **{13: "timestamp-request", 14: "timestamp-reply", 15: "info-request", 16: "info-reply"},
        **{17: "address-mask-request", 18: "address-mask-reply"},
    },
    Family.IPV6: {
        **{1: "destination-unreachable", 2: "packet-too-big", 3: "time-exceeded", 4: "parameter-problem"},
        **{128: "echo-request", 129: "echo-reply", 130: "mld-listener-query", 131: "mld-listener-report"},
        **{132: "mld-listener-done", 133: "nd-router-solicit", 134: "nd-router-advert", 135: "nd-neighbor-solicit"},
        **{136: "nd-neighbor-advert", 137: "nd-redirect", 138: "router-renumbering", 141: "ind-neighbor-solicit"},
        **{142: "ind-neighbor-advert", 143: "mld2-listener-report"},
    },
}
"""What `nft` calls types of ICMP, and lists them by."""
_NEIGHBOURHOOD: Final = (
    "nd-router-solicit",
    "nd-neighbor-solicit",
    "nd-neighbor-advert",
    "mld-listener-query",
    "mld-listener-report",
    "mld-listener-done",
    "mld2-listener-report",
)


def members_set(rules: RuleSet) -> SetName:
    """The links of the ports that have these rules."""
    return SetName(TableFamily.BRIDGE, TABLE, f"members-{_digest(rules)}")


def plan_rule_sets(rule_sets: Collection[RuleSet]) -> tuple[NftSet, ...]:
    """All sets that the chains look at."""
    sets = [NftSet(name=OPEN.name, key=(DataType.LINK,))]
    for rules in _sorted(rule_sets):
        sets.append(NftSet(name=members_set(rules).name, key=(DataType.LINK,)))
        for direction in Direction:
            for family in _remembered(rules, direction):
                sets += _conversation_sets(rules, direction, family)
    return tuple(sets)


def plan_rule_chains(rule_sets: Collection[RuleSet]) -> tuple[RegularChain, ...]:
    """`SEND`, `RECEIVE`, and what they lead to; a chain comes before those that lead to it."""
    ordered = _sorted(rule_sets)
    chains = [chain for rules in ordered for chain in _chains(rules)]
    for name, link, prefix in ((SEND, Field.INPUT_LINK, "out"), (RECEIVE, Field.OUTPUT_LINK, "in")):
        rules_of = [
            (Match(link, Comparison.IS, Member(members_set(rules).name)), Goto(f"{prefix}-{_digest(rules)}"))
            for rules in ordered
        ]
        chains.append(RegularChain(name=name, rules=(*rules_of, (Count(DENIED), Verdict.DROP))))
    return tuple(chains)


def _chains(rules: RuleSet) -> Iterator[RegularChain]:
    digest = _digest(rules)
    for direction, prefix in ((Direction.EGRESS, "out"), (Direction.INGRESS, "in")):
        for family, digit in _DIGITS.items():
            if family in _remembered(rules, direction):
                name = _admitted(rules, direction, family)
                yield RegularChain(name=name, rules=tuple(_remember(rules, direction, family)))
            entries = tuple(_family_rules(rules, direction, family))
            yield RegularChain(name=f"{prefix}{digit}-{digest}", rules=(*entries, (Count(DENIED), Verdict.DROP)))
        by_family = [
            (Match(Field.ETHER_TYPE, Comparison.IS, _ETHER_TYPES[family]), Goto(f"{prefix}{digit}-{digest}"))
            for family, digit in _DIGITS.items()
        ]
        neighbours = (Match(Field.ETHER_TYPE, Comparison.IS, "arp"), Verdict.RETURN)
        yield RegularChain(name=f"{prefix}-{digest}", rules=(neighbours, *by_family, (Count(DENIED), Verdict.DROP)))


def _family_rules(rules: RuleSet, direction: Direction, family: Family) -> Iterator[Rule]:
    """What of one family and direction is admitted: answers, errors, and what a rule has words for."""
    back = _opposite(direction)
    if family in _remembered(rules, back):
        conversations, echoes = (entry.name for entry in _conversation_sets(rules, back, family))
        reverse: Key = (
            *(DESTINATION[family], SOURCE[family], Field.PROTOCOL),
            *(Field.DESTINATION_PORT, Field.SOURCE_PORT),
        )
        yield Match(reverse, Comparison.IS, Member(conversations)), Verdict.RETURN
        yield (
            Match(_ICMP_TYPE[family], Comparison.IS, "echo-reply"),
            Match((DESTINATION[family], SOURCE[family]), Comparison.IS, Member(echoes)),
            Verdict.RETURN,
        )
    if family is Family.IPV6:
        for kind in _NEIGHBOURHOOD:
            yield Match(Field.ICMPV6_TYPE, Comparison.IS, kind), Verdict.RETURN
    for kind in _ERRORS[family]:
        yield Match(_ICMP_TYPE[family], Comparison.IS, kind), Verdict.RETURN
    end = Goto(_admitted(rules, direction, family)) if family in _remembered(rules, direction) else Verdict.RETURN
    for rule in rules:
        if rule.direction is direction and rule.family is family:
            yield (*_matches(rule), end)


def _matches(rule: PortRule) -> Iterator[Match]:
    family = rule.family
    if rule.network.prefixlen:
        peer = SOURCE if rule.direction is Direction.INGRESS else DESTINATION
        yield Match(peer[family], Comparison.IS, rule.network)
    if rule.protocol is None:
        return
    if rule.any_port:
        name = _PROTOCOL_NAMES[family].get(rule.protocol, rule.protocol.value)
        yield Match(Field.PROTOCOL, Comparison.IS, name)
    elif rule.protocol is RuleProtocol.ICMP:
        yield Match(_ICMP_TYPE[family], Comparison.IS, _TYPE_NAMES[family].get(rule.first, rule.first))
    else:
        ports = rule.first if rule.first == rule.last else NumberRange(rule.first, rule.last)
        yield Match(_PORTS[rule.protocol][1], Comparison.IS, ports)


def _remember(rules: RuleSet, direction: Direction, family: Family) -> Iterator[Rule]:
    """Of a packet that was admitted, what its answers are admitted by. It goes on where the chains were entered."""
    conversations, echoes = (entry.name for entry in _conversation_sets(rules, direction, family))
    addresses = (SOURCE[family], DESTINATION[family])
    for protocol, ports in _PORTS.items():
        yield (Remember((*addresses, Field.PROTOCOL, *ports), conversations, _SECONDS[protocol]),)
    yield Match(_ICMP_TYPE[family], Comparison.IS, "echo-request"), Remember(addresses, echoes, ECHO_SECONDS)


def _remembered(rules: RuleSet, direction: Direction) -> frozenset[Family]:
    """The families of which what passes in that direction is remembered: answers may be refused otherwise."""
    return frozenset(
        family
        for family in Family
        if not admits_everything(rules, [family], _opposite(direction))
        and any(rule.direction is direction and rule.family is family for rule in rules)
    )


def _conversation_sets(rules: RuleSet, direction: Direction, family: Family) -> tuple[NftSet, NftSet]:
    addresses = (ADDRESS[family], ADDRESS[family])
    keys = {"conv": (*addresses, DataType.PROTOCOL, DataType.PORT, DataType.PORT), "echo": addresses}
    conversations, echoes = (
        NftSet(name=f"{word}{_DIGITS[family]}-{direction}-{_digest(rules)}", key=key, timeouts=True, size=REMEMBERED)
        for word, key in keys.items()
    )
    return conversations, echoes


def _admitted(rules: RuleSet, direction: Direction, family: Family) -> str:
    return f"admitted{_DIGITS[family]}-{direction}-{_digest(rules)}"


def _opposite(direction: Direction) -> Direction:
    return Direction.EGRESS if direction is Direction.INGRESS else Direction.INGRESS


def _sorted(rule_sets: Iterable[RuleSet]) -> list[RuleSet]:
    return sorted(set(rule_sets), key=_digest)


def _digest(rules: RuleSet) -> str:
    return sha256("\n".join(map(str, rules)).encode()).hexdigest()[:12]
