"""Policy routing rules that send packets to a table or to another rule, and the difference of two sets of them.

The numbers and what they do are those of linux/fib_rules.h.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from coil.kernel.family import Family, IPNetwork
from coil.kernel.link import LinkName

WHOLE_MARK: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`from all … lookup <table>` at `priority` (lower is asked first). `protocol` says who installed it.

    A selector that is None selects everything: `source` (`from`), `destination` (`to`), `iif` (the link a packet came
    in by; it need not exist), and `mark` (`fwmark`, those of its bits that are in `mask`). With `goto`, the search goes
    on at the first rule of that priority, which has to be higher, and `table` is 0.
    """

    family: Family
    priority: int
    table: int = 0
    protocol: int
    source: IPNetwork | None = None
    destination: IPNetwork | None = None
    iif: LinkName | None = None
    mark: int | None = None
    mask: int = WHOLE_MARK
    goto: int | None = None

    def __post_init__(self) -> None:
        for name, network in (("source", self.source), ("destination", self.destination)):
            if network is not None and Family.of(network) is not self.family:
                raise ValueError(f"{name} {network} is not of the family {self.family.name}")
            if network is not None and network.prefixlen == 0:
                raise ValueError(f"{name} {network} selects everything: leave it out")
        if (self.goto is None) is (self.table == 0):
            raise ValueError("a rule leads to a table or to another rule")
        if self.goto is not None and self.goto <= self.priority:
            raise ValueError(f"a rule at {self.priority} cannot lead back to {self.goto}")
        if (self.mark is None and self.mask != WHOLE_MARK) or (self.mark or 0) & ~self.mask:
            raise ValueError(f"bits of a mark that are not looked at: {self.mark} of {self.mask:#x}")

    @property
    def lookup(self) -> tuple[object, ...]:
        """What the rule does, whoever installed it."""
        action = self.family, self.priority, self.table, self.goto
        return *action, self.source, self.destination, self.iif, self.mark, self.mask

    @property
    def selects(self) -> bool:
        """False where the rule is for every packet."""
        return (self.source, self.destination, self.iif, self.mark) != (None, None, None, None)

    def __str__(self) -> str:
        source = f" from {self.source}" if self.source else ""
        to = f" to {self.destination}" if self.destination else ""
        iif = f" iif {self.iif}" if self.iif else ""
        mask = f"/{self.mask:#x}" if self.mask != WHOLE_MARK else ""
        mark = f" fwmark {self.mark:#x}{mask}" if self.mark is not None else ""
        action = f"lookup {int(self.table)}" if self.goto is None else f"goto {self.goto}"
        return f"rule {self.priority}{source}{to}{iif}{mark} {action} ({self.family.name})"


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
    return (
        int(rule.family),
        rule.priority,
        int(rule.table),
        rule.protocol,
        *(
            number
            for network in (rule.source, rule.destination)
            for number in ((-1, -1) if network is None else (int(network.network_address), network.prefixlen))
        ),
        rule.iif or "",
        -1 if rule.mark is None else rule.mark,
        rule.mask,
        -1 if rule.goto is None else rule.goto,
    )
