"""Splits changes of the EIP data plane into steps, each of them one transaction, so that the timeouts of the node's
lease can be refreshed between two steps.

Place in the flow: `coil.eip.data_plane` says what changes, `coil.nft` carries out step after step.

Decisions that connections bear are always deleted first, and a packet that has a way before and after has one between
any two steps. New policies and classes are complete before anything leads to them, and old ones stay complete until
nothing leads to them; policies that stay get new ranges before others lose theirs. What else changes of one policy is
in one step, and so is what changes of one source.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from coil.eip.eip_set import DECISIONS, EVERYWHERE, NEXT, NODE_IPS, SETS, VALID
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName

STEP: Final = 4096
"""The effort of one step: an element takes 1, and one that goes from a set of ranges `_RANGE_EFFORT`."""

_SOURCES: Final = frozenset(name for names in SETS.values() for name in (names.classes, names.subnet_classes))
_SUBNETS: Final = frozenset(names.subnet_classes for names in SETS.values())
_RANGES: Final = frozenset(name for names in SETS.values() for name in (*names.ranges, names.cluster_ranges))
_DECISIONS: Final = (VALID, DECISIONS)
_WAYS: Final = frozenset(names.ways for names in SETS.values())
_BY_NUMBER: Final = _RANGES | _WAYS | {names.eips for names in SETS.values()} | {NEXT, EVERYWHERE, NODE_IPS}
"""The sets whose keys are, or begin with, the number of a policy or of a class."""
_RANGE_EFFORT: Final = 32
"""The kernel looks through the set for each (`coil.kernel.nft_element.MOST_RANGES`)."""

_Touched: TypeAlias = tuple[SetName, ElementKey]


@dataclass(slots=True)
class _Unit:
    """What belongs into one step."""

    deletes: list[_Touched] = field(default_factory=list)
    adds: list[tuple[SetName, ElementKey, ElementValue]] = field(default_factory=list)


def split_changes(changes: ElementChanges, *, limit: int = STEP) -> Iterator[ElementChanges]:
    """The steps, in their order; one of them alone may take more than `limit`, if what it changes belongs together.
    What is to come anew makes one step of all.
    """
    if changes.anew or _effort(changes) <= limit:
        if changes:
            yield changes
        return
    for units in _phases(changes):
        yield from _pack(units, limit)


def _effort(changes: ElementChanges) -> int:
    deletes = sum(len(keys) * _effort_of(name) for name, keys in changes.deletes.items())
    return deletes + sum(map(len, changes.adds.values()))


def _effort_of(name: SetName) -> int:
    """Of an element that goes."""
    return _RANGE_EFFORT if name in _RANGES else 1


def _phases(changes: ElementChanges) -> Iterator[Iterable[_Unit]]:
    """In their order."""
    decisions, rest = _Unit(), _Unit()
    numbers: dict[str, _Unit] = {}
    sources: dict[_Touched, _Unit] = {}
    subnets = _Unit()

    def unit_of(name: SetName, key: ElementKey, *, goes: bool) -> _Unit:
        if name in _DECISIONS:
            # A mark that comes is for connections that are decided for from now on.
            return decisions if goes else rest
        if name in _SUBNETS:
            return subnets
        if name in _SOURCES:
            return sources.setdefault((name, key), _Unit())
        if name in _BY_NUMBER:
            return numbers.setdefault(key if isinstance(key, str) else key[0], _Unit())
        return rest

    for name, keys in changes.deletes.items():
        for key in keys:
            unit_of(name, key, goes=True).deletes.append((name, key))
    # Where the kernel is to send what, before it is told to.
    for name, words in sorted(changes.adds.items(), key=lambda entry: entry[0] in _WAYS):
        for key, value in words.items():
            unit_of(name, key, goes=False).adds.append((name, key, value))
    kept = {number: unit for number, unit in numbers.items() if unit.deletes and unit.adds}
    shrinking = [_take_deletes(unit) for unit in kept.values() if not any(name in _RANGES for name, _, _ in unit.adds)]
    coming = [unit for number, unit in numbers.items() if number not in kept and unit.adds]
    going = [unit for number, unit in numbers.items() if number not in kept and unit.deletes]
    yield _singly([decisions])
    yield _singly([unit for unit in sources.values() if not unit.adds])
    yield _singly([rest])
    yield _singly(coming)
    yield _joined(kept.values())
    yield [subnets]
    yield [unit for unit in sources.values() if unit.adds]
    yield _singly([*shrinking, *going])


def _take_deletes(unit: _Unit) -> _Unit:
    """The ranges that it loses, which are taken out of it."""
    lost = [touched for touched in unit.deletes if touched[0] in _RANGES]
    unit.deletes = [touched for touched in unit.deletes if touched[0] not in _RANGES]
    return _Unit(deletes=lost)


def _joined(units: Iterable[_Unit]) -> Iterator[_Unit]:
    """Those with ranges as one, as what one loses another one may get."""
    ranged = _Unit()
    for unit in units:
        if any(name in _RANGES for name, _ in unit.deletes):
            ranged.deletes += unit.deletes
            ranged.adds += unit.adds
        else:
            yield unit
    yield ranged


def _singly(units: Iterable[_Unit]) -> Iterator[_Unit]:
    """Each element that comes or goes is one; of an element that has another value, both."""
    for unit in units:
        values = {(name, key): value for name, key, value in unit.adds}
        for touched in unit.deletes:
            if touched in values:
                yield _Unit([touched], [(*touched, values.pop(touched))])
            else:
                yield _Unit([touched], [])
        for (name, key), value in values.items():
            yield _Unit([], [(name, key, value)])


def _pack(units: Iterable[_Unit], limit: int) -> Iterator[ElementChanges]:
    step, effort = _Unit(), 0
    for unit in units:
        more = len(unit.adds) + sum(_effort_of(name) for name, _ in unit.deletes)
        if effort and effort + more > limit:
            yield _changes(step)
            step, effort = _Unit(), 0
        step.deletes += unit.deletes
        step.adds += unit.adds
        effort += more
    if effort:
        yield _changes(step)


def _changes(unit: _Unit) -> ElementChanges:
    deletes: dict[SetName, list[ElementKey]] = {}
    adds: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for name, key in unit.deletes:
        deletes.setdefault(name, []).append(key)
    for name, key, value in unit.adds:
        adds.setdefault(name, {})[key] = value
    wanted: Elements = adds
    return ElementChanges(deletes={name: tuple(keys) for name, keys in deletes.items()}, adds=wanted)
