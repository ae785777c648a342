"""Whether packet filters of others let the packets of pods through: their FORWARD chains, as far as they can be judged.

    coil.nft.forward_hook (nf_tables, iptables-nft), coil.nft.legacy_iptables ─► ForwardHook ─► judge ─► a sentence

A packet is dropped if one of the namespace's filters drops it, whatever the others say; so each hook is judged alone. A
rule is taken into account only where all that it asks of a packet is known here: its links, its addresses, its family.
Rules with other conditions (state of the connection, marks, sets, ports) are passed over, whichever way they decide:
what is judged is a new connection that nothing else sets apart. Pure.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LinkName

MOST_CHAINS: Final = 256
"""That are read. Those beyond count as empty."""


class FilterVerdict(Enum):
    """What becomes of a packet that a rule is about. `CONTINUE`: the rule decides nothing."""

    ACCEPT = "accept"
    DROP = "drop"
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedPacket:
    """The first one of a connection. An address is None where it may be any."""

    family: Family
    input: LinkName
    output: LinkName
    source: IPAddress | None = None
    destination: IPAddress | None = None


class Side(Enum):
    """Where a packet comes from, and where it goes."""

    FROM = "from"
    TO = "to"


@dataclass(frozen=True, slots=True)
class LinkMatch:
    """The packet's link is called `name`, or begins so (`is_prefix`: `veth+` of iptables, `veth*` of nftables)."""

    side: Side
    name: str
    is_prefix: bool = False
    negated: bool = False

    def covers(self, packet: ForwardedPacket) -> bool:
        """Whether it holds for the packet."""
        link = packet.input if self.side is Side.FROM else packet.output
        return (link.startswith(self.name) if self.is_prefix else link == self.name) != self.negated


@dataclass(frozen=True, slots=True)
class AddressMatch:
    """The packet's address is in the network."""

    side: Side
    network: IPNetwork
    negated: bool = False

    def covers(self, packet: ForwardedPacket) -> bool:
        """Whether it holds for the packet; for an address that may be any it does not."""
        address = packet.source if self.side is Side.FROM else packet.destination
        if address is None or address.version != self.network.version:
            return False
        return (address in self.network) != self.negated


FilterMatch: TypeAlias = LinkMatch | AddressMatch


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRule:
    """All of `matches` must hold, and the family if there is one. `target` is the chain of a JUMP or GOTO."""

    matches: tuple[FilterMatch, ...] = ()
    family: Family | None = None
    verdict: FilterVerdict
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterChain:
    """Rules of which everything is known, in their order; `policy` is what a base chain does with what they leave."""

    rules: tuple[FilterRule, ...]
    policy: FilterVerdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardHook:
    """A base chain at the kernel's hook for packets that are forwarded, and the chains that it may jump to, by name.

    `label` says to an admin where it is: `iptables (legacy) chain FORWARD`, `nftables chain inet filter forward`.
    """

    label: str
    families: frozenset[Family]
    base: str
    chains: Mapping[str, FilterChain]


def reach_chains(base: str, rules_of: Callable[[str], tuple[FilterRule, ...]]) -> dict[str, FilterChain]:
    """The base chain and those that its rules lead to, by name. A table may have many thousands that they do not: of
    Services, for example.
    """
    found: dict[str, FilterChain] = {}
    waiting = deque([base])
    while waiting and len(found) < MOST_CHAINS:
        name = waiting.popleft()
        if name not in found:
            found[name] = FilterChain(rules=rules_of(name))
            waiting.extend(rule.target for rule in found[name].rules if rule.target)
    return found


def judge(hook: ForwardHook, packet: ForwardedPacket) -> str | None:
    """Why the hook drops the packet, for an admin: a rule, or the policy. None if it does not."""
    if packet.family not in hook.families:
        return None
    verdict, reason = _walk(hook, hook.base, packet, {})
    if verdict is FilterVerdict.CONTINUE:
        verdict, reason = hook.chains[hook.base].policy or FilterVerdict.ACCEPT, "its policy"
    return f"{hook.label}: {reason} drops it" if verdict is FilterVerdict.DROP else None


_Decision: TypeAlias = tuple[FilterVerdict, str]
_UNDECIDED: Final = (FilterVerdict.CONTINUE, "")


def _walk(hook: ForwardHook, name: str, packet: ForwardedPacket, known: dict[str, _Decision]) -> _Decision:
    # Each chain once, however many rules lead there: what it decides is the same each time.
    if name not in known:
        known[name] = _UNDECIDED
        known[name] = _decide(hook, name, packet, known)
    return known[name]


def _decide(hook: ForwardHook, name: str, packet: ForwardedPacket, known: dict[str, _Decision]) -> _Decision:
    for rule in hook.chains[name].rules if name in hook.chains else ():
        if not _concerns(rule, packet):
            continue
        match rule.verdict:
            case FilterVerdict.ACCEPT | FilterVerdict.DROP:
                return rule.verdict, f"a rule of {name}"
            case FilterVerdict.RETURN:
                break
            case FilterVerdict.JUMP | FilterVerdict.GOTO:
                decided = _walk(hook, rule.target, packet, known)
                if decided[0] is not FilterVerdict.CONTINUE:
                    return decided
                if rule.verdict is FilterVerdict.GOTO:
                    break
            case FilterVerdict.CONTINUE:
                pass
    return _UNDECIDED


def _concerns(rule: FilterRule, packet: ForwardedPacket) -> bool:
    return rule.family in (None, packet.family) and all(match.covers(packet) for match in rule.matches)
