"""Policy routing rules that send every packet to a table, and the difference of two sets of them
(linux/fib_rules.h).
"""

from collections.abc import Collection
from dataclasses import dataclass

from coil.kernel.family import Family


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rule:
    """`from all lookup <table>` at `priority` (lower is asked first). `protocol` says who installed it."""

    family: Family
    priority: int
    table: int
    protocol: int

    @property
    def lookup(self) -> tuple[Family, int, int]:
        """What the rule does, whoever installed it."""
        return self.family, self.priority, self.table

    def __str__(self) -> str:
        return f"rule {self.priority} lookup {self.table} ({self.family.name})"


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
    lookups = {rule.lookup for rule in wanted}
    protocols = {rule.protocol for rule in wanted}
    present: set[tuple[Family, int, int]] = set()
    deletes: list[Rule] = []
    # Rules of others come first: where they satisfy a wish, ours is the one too many.
    for rule in sorted(actual, key=lambda rule: rule.protocol in protocols):
        own = rule.protocol in protocols
        if own and (rule.lookup not in lookups or rule.lookup in present):
            deletes.append(rule)
        else:
            present.add(rule.lookup)
    adds = {rule.lookup: rule for rule in wanted if rule.lookup not in present}
    return RuleChanges(adds=tuple(sorted(adds.values())), deletes=tuple(sorted(deletes)))
