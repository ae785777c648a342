"""What is in the sets and maps of nftables tables.

Place in the flow: `coil.eip` and `coil.podnet` plan elements and their changes, `coil.nft` carries them out and reads
them back.

Elements are words, in the very form in which the kernel's are listed, so that equality is identity in the kernel: an
address `10.1.2.3`, a network `10.1.0.0/16` where a range is one, any other range `10.1.2.3-10.1.2.9`, a class `1:1f`, a
protocol `tcp`, a port `8080`, a mark as a number.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from coil.kernel.nft_table import TableFamily

ElementKey: TypeAlias = str | tuple[str, ...]
"""A word, or as many as the set's key has types."""
ElementValue: TypeAlias = str | int | None
"""None in a set; in a map what belongs to the key."""


@dataclass(frozen=True, slots=True)
class SetName:
    """Where elements are."""

    family: TableFamily
    table: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} of table {self.family.value} {self.table}"


Elements: TypeAlias = Mapping[SetName, Mapping[ElementKey, ElementValue]]
"""All that is in some sets. A set that is missing here is empty."""


MOST_RANGES: Final = 32
"""Elements of a set of ranges that go one by one at most. The kernel looks through a set for each one that goes, if its
key has several types (`nft_pipapo_remove`): with 10 000 there, 16 take half as long as all of them take to be added.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementChanges:
    """What leads from some elements to others: first all that goes, then all that comes. An element whose value changes
    is in both. Sets that are in `anew` are in neither: they are made anew, with these elements and no others.
    """

    deletes: Mapping[SetName, tuple[ElementKey, ...]] = field(default_factory=dict)
    adds: Elements = field(default_factory=dict)
    anew: Elements = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.deletes or self.adds or self.anew)

    def __len__(self) -> int:
        """How many elements come and go."""
        return sum(len(words) for part in (self.deletes, self.adds, self.anew) for words in part.values())


def diff_elements(actual: Elements, wanted: Elements, *, ranged: Collection[SetName] = ()) -> ElementChanges:
    """The changes that turn `actual` into `wanted`. `ranged` are the sets of ranges."""
    deletes: dict[SetName, tuple[ElementKey, ...]] = {}
    adds: dict[SetName, Mapping[ElementKey, ElementValue]] = {}
    anew: dict[SetName, Mapping[ElementKey, ElementValue]] = {}
    for name in {**actual, **wanted}:
        have, want = actual.get(name, {}), wanted.get(name, {})
        if have == want:
            continue
        gone = tuple(key for key, value in have.items() if key not in want or want[key] != value)
        if len(gone) > MOST_RANGES and name in ranged:
            anew[name] = want
            continue
        if gone:
            deletes[name] = gone
        if new := {key: value for key, value in want.items() if key not in have or have[key] != value}:
            adds[name] = new
    return ElementChanges(deletes=deletes, adds=adds, anew=anew)


def class_word(number: int) -> str:
    """A class, counted from 1, as nftables writes it: no class of it is `none` or has a half that is zero."""
    major, minor = divmod(number - 1, 0xFFFF)
    return f"{major + 1:x}:{minor + 1:x}"
