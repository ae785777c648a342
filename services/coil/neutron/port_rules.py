"""The security groups of a port, as its node enforces them: what it may receive and send. Pure.

    Neutron's rules ─► resolve_rules ─► hand-off (`coil.neutron.handoff`) ─► coil.neutron.rule_filter

A rule admits, and what no rule admits is dropped. So whatever this model has no words for is left out and told, never
widened. Answers to what was admitted are admitted as well, as Neutron's rules are stateful.

Source: Networking API v2.0, security group rules.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from typing import Final, TypeAlias

from coil.kernel.family import Family, IPNetwork
from coil.neutron.resource import SecurityGroupId, SecurityGroupRule

MOST_RULES: Final = 100
"""Of one port; the hand-off is an annotation of every pod."""
ANY: Final[Mapping[Family, IPNetwork]] = {Family.IPV4: ip_network("0.0.0.0/0"), Family.IPV6: ip_network("::/0")}
_LAST_PORT: Final = 65535
_LAST_TYPE: Final = 255


class Direction(StrEnum):
    """As the port sees it."""

    INGRESS = "ingress"
    EGRESS = "egress"


class RuleProtocol(StrEnum):
    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"
    ICMP = "icmp"
    """ICMPv6 where the network is one of IPv6."""


_NUMBERED: Final = {RuleProtocol.TCP: "6", RuleProtocol.UDP: "17", RuleProtocol.SCTP: "132"}
_NAMES: Final[Mapping[Family, Mapping[str, RuleProtocol]]] = {
    family: {
        **{name: protocol for protocol, number in _NUMBERED.items() for name in (protocol.value, number)},
        **dict.fromkeys(icmp, RuleProtocol.ICMP),
    }
    for family, icmp in ((Family.IPV4, ("icmp", "1")), (Family.IPV6, ("icmp", "icmpv6", "ipv6-icmp", "58")))
}
"""Neutron takes `icmp` for ICMPv6 in a rule of IPv6 (neutron-lib, `constants.IPV6_ICMP_LEGACY_PROTO_LIST`)."""


_ETHERTYPES: Final[Mapping[str, Family]] = {"IPv4": Family.IPV4, "IPv6": Family.IPV6}


@dataclass(frozen=True, slots=True)
class PortRule:
    """Packets that are admitted, from `network` or to it. `protocol` is None for all.

    `first` to `last` are destination ports; of ICMP they are both the type, or all types.
    """

    direction: Direction
    network: IPNetwork
    protocol: RuleProtocol | None = None
    first: int = 0
    last: int = _LAST_PORT

    @property
    def family(self) -> Family:
        return Family.of(self.network)

    @property
    def any_port(self) -> bool:
        """Whether the ports, or the types, do not matter."""
        most = _LAST_TYPE if self.protocol is RuleProtocol.ICMP else _LAST_PORT
        return self.first == 0 and self.last >= most

    @property
    def admits_all(self) -> bool:
        """Whether it admits everything of its family in its direction."""
        return self.protocol is None and self.network.prefixlen == 0

    def __str__(self) -> str:
        words: list[str] = [self.direction, str(self.network)]
        if self.protocol is not None:
            words.append(self.protocol)
            if not self.any_port:
                words.append(str(self.first) if self.first == self.last else f"{self.first}-{self.last}")
        return " ".join(words)


RuleSet: TypeAlias = tuple[PortRule, ...]
"""All that a port may receive and send, sorted. An empty one admits nothing."""

_RULE: Final = re.compile(
    r"(?P<direction>ingress|egress) (?P<network>\S+)"
    r"(?: (?P<protocol>tcp|udp|sctp|icmp)(?: (?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?)?)?"
)


def parse_rule(text: str) -> PortRule:
    """The rule that is written so by `str`, such as `ingress 10.0.0.0/16 tcp 80-90`. Raises ValueError."""
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no rule of a security group")
    protocol = None if found["protocol"] is None else RuleProtocol(found["protocol"])
    most = _LAST_TYPE if protocol is RuleProtocol.ICMP else _LAST_PORT
    first = 0 if found["first"] is None else int(found["first"])
    last = most if found["first"] is None else int(found["last"] or first)
    if not first <= last <= most or (protocol is RuleProtocol.ICMP and first != last and (first, last) != (0, most)):
        raise ValueError(f"{text!r} has no ports from {first} to {last}")
    return PortRule(Direction(found["direction"]), ip_network(found["network"]), protocol, first, last)


def make_rule_set(rules: Iterable[PortRule]) -> RuleSet:
    """Each rule once, in an order that is always the same, without those that others make needless."""
    distinct = set(rules)
    wide = {(rule.direction, rule.family) for rule in distinct if rule.admits_all}
    left = (rule for rule in distinct if rule.admits_all or (rule.direction, rule.family) not in wide)
    return tuple(sorted(left, key=lambda rule: (rule.direction, rule.family.name, str(rule))))


def admits_everything(rules: RuleSet, families: Collection[Family], *directions: Direction) -> bool:
    """Whether everything of these families passes in these directions, or in both if none is given."""
    wide = {(rule.direction, rule.family) for rule in rules if rule.admits_all}
    return all((direction, family) in wide for direction in directions or tuple(Direction) for family in families)


@dataclass(frozen=True, slots=True)
class ResolvedRules:
    """`left_out` is a sentence for each of Neutron's rules that a node cannot enforce, and that admits nothing."""

    rules: RuleSet
    left_out: tuple[str, ...] = ()


def resolve_rules(
    rules: Sequence[SecurityGroupRule], members: Mapping[SecurityGroupId, Collection[IPNetwork]]
) -> ResolvedRules:
    """Neutron's rules of a port's group. `members` are the networks that the ports of a remote group are in."""
    found: set[PortRule] = set()
    left_out: list[str] = []
    for rule in rules:
        try:
            found.update(_resolve(rule, members))
        except ValueError as error:
            left_out.append(f"the rule {rule.id}: {error}")
    whole = make_rule_set(found)
    if len(whole) > MOST_RULES:
        left_out.append(f"{len(whole) - MOST_RULES} rules: a port has {MOST_RULES} at most")
    return ResolvedRules(whole[:MOST_RULES], tuple(left_out))


def _resolve(rule: SecurityGroupRule, members: Mapping[SecurityGroupId, Collection[IPNetwork]]) -> Iterable[PortRule]:
    direction = Direction(rule.direction)
    family = _ETHERTYPES.get(rule.ethertype)
    if family is None:
        raise ValueError(f"the ethertype {rule.ethertype} is neither IPv4 nor IPv6")
    if rule.remote_address_group_id is not None:
        raise ValueError(f"the addresses of its address group {rule.remote_address_group_id} are not known")
    protocol, first, last = _parse_protocol(rule, family)
    networks: Iterable[IPNetwork]
    if rule.remote_group_id is not None:
        if rule.remote_group_id not in members:
            raise ValueError(
                f"its remote group {rule.remote_group_id} is not that of a namespace, so the addresses are not known"
            )
        networks = [network for network in members[rule.remote_group_id] if Family.of(network) is family]
    elif rule.remote_ip_prefix is not None:
        networks = [ip_network(rule.remote_ip_prefix, strict=False)]
    else:
        networks = [ANY[family]]
    return [PortRule(direction, network, protocol, first, last) for network in networks]


def _parse_protocol(rule: SecurityGroupRule, family: Family) -> tuple[RuleProtocol | None, int, int]:
    if rule.protocol is None or rule.protocol in ("any", "0"):
        return None, 0, _LAST_PORT
    protocol = _NAMES[family].get(rule.protocol.lower())
    if protocol is None:
        raise ValueError(f"the protocol {rule.protocol} is not one of tcp, udp, sctp and icmp")
    first, last = rule.port_range_min, rule.port_range_max
    if protocol is not RuleProtocol.ICMP:
        return protocol, first or 0, _LAST_PORT if last is None else last
    if last is not None:
        raise ValueError(f"the code {last} of ICMP cannot be looked at")
    return (protocol, 0, _LAST_TYPE) if first is None else (protocol, first, first)
