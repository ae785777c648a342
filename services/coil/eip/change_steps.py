"""Splits changes of the EIP data plane into steps, each of them one transaction, so that the timeouts of the node's
lease can be refreshed between two steps.

Place in the flow: `coil.eip.data_plane` says what changes, `coil.nft` carries out step after step.

Decisions that connections bear are always deleted first, and a packet that has a way before and after has one between
any two steps. New policies and classes are complete before anything leads to them, and old ones stay complete until
nothing leads to them. Policies that stay get new ranges before any policy loses one, except for overlapping ranges of a
policy, which the kernel does not accept side by side: those of all policies are exchanged in one step. What else
changes of one policy is in one step, and so is what changes of one source.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

from coil.eip.eip_set import DECISIONS, EVERYWHERE, NEXT, NODE_IPS, SETS, VALID
from coil.kernel.family import Family
from coil.kernel.interval import Span, parse_span, touching
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName

STEP: Final = 4096
"""The effort of one step, about 20 ms in the kernel: each element takes 1, one that goes from a set of ranges more."""

_PODS: Final = {name: family for family, names in SETS.items() for name in (names.classes, names.remote_classes)}
_SOURCES: Final = frozenset(_PODS) | {names.subnet_classes for names in SETS.values()}
_SUBNETS: Final = frozenset(names.subnet_classes for names in SETS.values())
_RANGES: Final = frozenset(name for names in SETS.values() for name in (*names.ranges, names.cluster_ranges))
_DECISIONS: Final = (VALID, DECISIONS)
_WAYS: Final = frozenset(names.ways for names in SETS.values())
_BY_NUMBER: Final = _RANGES | _WAYS | {names.eips for names in SETS.values()} | {NEXT, EVERYWHERE, NODE_IPS}
"""The sets whose keys are, or begin with, the number of a policy or of a class."""
_SCANNED: Final = 2
"""Ranges that the kernel compares in the time that it takes to change an element. To delete a range, it compares all of
the set that are older (`nft_pipapo_remove`).
"""

_Touched: TypeAlias = tuple[SetName, ElementKey]


@dataclass(slots=True)
class _Unit:
    """What belongs into one step."""

    deletes: list[_Touched] = field(default_factory=list)
    adds: list[tuple[SetName, ElementKey, ElementValue]] = field(default_factory=list)


def delete_effort(size: int) -> int:
    """At most, for one range of a set of that size."""
    return 1 + size // _SCANNED


def split_changes(
    changes: ElementChanges, sizes: Mapping[SetName, int], *, limit: int = STEP
) -> Iterator[ElementChanges]:
    """The steps, in their order; one of them alone may take more than `limit`, if what it changes belongs together.
    What is to come anew makes one step of all. `sizes` are those of the sets before, as far as elements go from them.
    """
    efforts = {name: delete_effort(sizes.get(name, 0)) if name in _RANGES else 1 for name in changes.deletes}
    deletes = sum(len(keys) * efforts[name] for name, keys in changes.deletes.items())
    if changes.anew or deletes + sum(map(len, changes.adds.values())) <= limit:
        if changes:
            yield changes
        return
    if not changes.deletes:
        yield from _split_adds(changes.adds, limit)
        return
    for units in _phases(changes):
        yield from _pack(units, efforts, limit)


def _split_adds(adds: Elements, limit: int) -> Iterator[ElementChanges]:
    """As `_phases` if nothing goes, without a unit for each element: this is how empty tables are filled."""

    def rank(name: SetName) -> int:
        return 2 if name in _SOURCES else 1 if name in _WAYS else 0

    step: dict[SetName, Mapping[ElementKey, ElementValue]] = {}
    room = limit
    for name in sorted(adds, key=rank):
        words = iter(adds[name].items())
        while part := dict(islice(words, room)):
            step[name] = part
            room -= len(part)
            if not room:
                yield ElementChanges(adds=step)
                step, room = {}, limit
    if step:
        yield ElementChanges(adds=step)


def _phases(changes: ElementChanges) -> Iterator[Iterable[_Unit]]:
    """In their order."""
    decisions, rest = _Unit(), _Unit()
    numbers: dict[str, _Unit] = {}
    sources: dict[tuple[Family, str], _Unit] = {}
    subnets = _Unit()

    def unit_of(name: SetName, key: ElementKey, *, goes: bool) -> _Unit:
        if name in _DECISIONS:
            # A mark that comes is for connections that are decided for from now on.
            return decisions if goes else rest
        if name in _SUBNETS:
            return subnets
        if name in _PODS:
            return sources.setdefault((_PODS[name], key if isinstance(key, str) else key[-1]), _Unit())
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
    kept = [unit for unit in numbers.values() if unit.deletes and unit.adds]
    coming = [unit for unit in numbers.values() if not unit.deletes]
    going = [unit for unit in numbers.values() if not unit.adds]
    for unit in kept:
        gained, lost = _take_ranges(unit)
        coming.append(gained)
        going.append(lost)
    yield _singly([decisions])
    yield _singly([unit for unit in sources.values() if not unit.adds])
    yield _singly([rest])
    yield _singly(coming)
    yield _joined(kept)
    yield [subnets]
    yield [unit for unit in sources.values() if unit.adds]
    yield _singly(going)


def _take_ranges(unit: _Unit) -> tuple[_Unit, _Unit]:
    """The ranges that a policy gets, and those that it loses, taken out of what changes of it together: all that have
    nothing in common with each other.
    """
    had, has = _ranges_of(unit.deletes), _ranges_of((name, key) for name, key, _ in unit.adds)
    exchanged: set[_Touched] = set()
    for name in had.keys() & has.keys():
        for ranges, others in ((had[name], has[name]), (has[name], had[name])):
            exchanged.update((name, ranges[span]) for span in touching(sorted(ranges), sorted(others)))

    def is_free(name: SetName, key: ElementKey) -> bool:
        return name in _RANGES and (name, key) not in exchanged

    gained = _Unit(adds=[added for added in unit.adds if is_free(added[0], added[1])])
    lost = _Unit(deletes=[touched for touched in unit.deletes if is_free(*touched)])
    unit.adds = [added for added in unit.adds if not is_free(added[0], added[1])]
    unit.deletes = [touched for touched in unit.deletes if not is_free(*touched)]
    return gained, lost


def _ranges_of(elements: Iterable[_Touched]) -> dict[SetName, dict[Span, ElementKey]]:
    """By set and addresses; all are of one policy."""
    found: dict[SetName, dict[Span, ElementKey]] = {}
    for name, key in elements:
        if name in _RANGES:
            found.setdefault(name, {})[parse_span(key[1])] = key
    return found


def _joined(units: Iterable[_Unit]) -> Iterator[_Unit]:
    """Those that exchange ranges as one, as what one loses another one may get."""
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


def _pack(units: Iterable[_Unit], efforts: Mapping[SetName, int], limit: int) -> Iterator[ElementChanges]:
    step, effort = _Unit(), 0
    for unit in units:
        more = len(unit.adds) + sum(efforts[name] for name, _ in unit.deletes)
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
