"""Policy routing rules that send packets to a table, and the difference of two sets of them (linux/fib_rules.h)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from coil.kernel.family import Family, IPNetwork
from coil.kernel.link import LinkName


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`from all … lookup <table>` at `priority` (lower is asked first). `protocol` says who installed it.

    A selector that is None selects everything: `destination` (`to`), `iif` (the link a packet came in by; it need not
    exist), and `mark` (`fwmark`, all 32 bits of it).
    """

    family: Family
    priority: int
    table: int
    protocol: int
    destination: IPNetwork | None = None
    iif: LinkName | None = None
    mark: int | None = None

    def __post_init__(self) -> None:
        destination = self.destination
        if destination is not None and Family.of(destination) is not self.family:
            raise ValueError(f"destination {destination} is not of the family {self.family.name}")
        if destination is not None and destination.prefixlen == 0:
            raise ValueError(f"destination {destination} selects everything: leave it out")

    @property
    def lookup(self) -> tuple[object, ...]:
        """What the rule does, whoever installed it."""
        return self.family, self.priority, self.table, self.destination, self.iif, self.mark

    @property
    def selects(self) -> bool:
        """False where the rule is for every packet."""
        return (self.destination, self.iif, self.mark) != (None, None, None)

    def __str__(self) -> str:
        to = f" to {self.destination}" if self.destination else ""
        iif = f" iif {self.iif}" if self.iif else ""
        mark = f" fwmark {self.mark:#x}" if self.mark is not None else ""
        return f"rule {self.priority}{to}{iif}{mark} lookup {int(self.table)} ({self.family.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleClaim:
    """Which rules of a namespace are ours: those of `protocol` at one of the `priorities`, in both families."""

    protocol: int
    priorities: frozenset[int]

    def covers(self, rule: Rule) -> bool:
        return rule.protocol == self.protocol and rule.priority in self.priorities


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChanges:
    """First the adds, so that no packet misses a lookup that both sets have, then the deletes. May name a
    rule more than once.
    """

    adds: tuple[Rule, ...]
    deletes: tuple[Rule, ...]

    def __bool__(self) -> bool:
        return bool(self.adds or self.deletes)


def diff_rules(actual: Collection[Rule], wanted: Collection[Rule]) -> RuleChanges:
    """The changes after which every wanted lookup is there once and no other rule of the wanted protocols is
    left.

    A wanted lookup that someone else installed already counts as present and is left alone, and so are the
    rules of other protocols. `actual` is a list as the kernel gives it: equal rules may be in it several
    times, and only one is kept.
    """
    protocols = {rule.protocol for rule in wanted}
    return _diff(actual, wanted, is_ours=lambda rule: rule.protocol in protocols)


def diff_claimed_rules(actual: Collection[Rule], wanted: Collection[Rule], claim: RuleClaim) -> RuleChanges:
    """The same, where the rules that are ours are those of the claim; so all of them go if none is wanted.

    Raises ValueError if one that is wanted is not of the claim: nothing would ever delete it.
    """
    for rule in wanted:
        if not claim.covers(rule):
            raise ValueError(f"{rule} proto {rule.protocol} is none of those that are claimed")
    return _diff(actual, wanted, is_ours=claim.covers)


def _diff(actual: Collection[Rule], wanted: Collection[Rule], *, is_ours: Callable[[Rule], bool]) -> RuleChanges:
    lookups = {rule.lookup for rule in wanted}
    present: set[tuple[object, ...]] = set()
    deletes: list[Rule] = []
    # Rules of others come first: where they satisfy a wish, ours is the one too many.
    for rule in sorted(actual, key=is_ours):
        if is_ours(rule) and (rule.lookup not in lookups or rule.lookup in present):
            deletes.append(rule)
        else:
            present.add(rule.lookup)
    adds = {rule.lookup: rule for rule in wanted if rule.lookup not in present}
    return RuleChanges(adds=tuple(sorted(adds.values(), key=_order)), deletes=tuple(sorted(deletes, key=_order)))


def _order(rule: Rule) -> tuple[int | str, ...]:
    to = rule.destination
    return (
        int(rule.family),
        rule.priority,
        int(rule.table),
        rule.protocol,
        -1 if to is None else int(to.network_address),
        -1 if to is None else to.prefixlen,
        rule.iif or "",
        -1 if rule.mark is None else rule.mark,
    )
