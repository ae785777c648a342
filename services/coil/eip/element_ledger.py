"""Elements as they are to be, who wants them, what has changed since the last question, and the numbers in them."""

from collections.abc import Collection, Hashable, Mapping
from enum import Enum
from hashlib import blake2s
from typing import Final

from coil.kernel.nft_element import MOST_RANGES, ElementChanges, ElementKey, Elements, ElementValue, SetName, class_word

_Words = dict[ElementKey, ElementValue]


class _Absence(Enum):
    ABSENT = "absent"


_ABSENT: Final = _Absence.ABSENT


class ElementLedger:
    """Every element has one owner, or is written by itself. All of it costs O(elements that differ), or, where more
    than a few of a set of ranges (`ranged`) go, O(its elements).
    """

    def __init__(self, *, ranged: Collection[SetName] = ()) -> None:
        self._ranged = ranged
        self._now: dict[SetName, _Words] = {}
        self._owned: dict[Hashable, dict[SetName, _Words]] = {}
        self._former: dict[SetName, dict[ElementKey, ElementValue | _Absence]] = {}
        """What each element that was touched was when the changes were last taken."""

    def put(self, name: SetName, key: ElementKey, value: ElementValue) -> None:
        """An element that has no owner."""
        elements = self._now.setdefault(name, {})
        self._former.setdefault(name, {}).setdefault(key, elements.get(key, _ABSENT))
        elements[key] = value

    def remove(self, name: SetName, key: ElementKey) -> None:
        """It is not there, whether or not it was."""
        elements = self._now.get(name, {})
        if key in elements:
            self._former.setdefault(name, {}).setdefault(key, elements[key])
            del elements[key]

    def write(self, owner: Hashable, elements: Mapping[SetName, _Words]) -> None:
        """All that the owner wants from now on."""
        former = self._owned.pop(owner, {})
        for name, words in former.items():
            for key in words.keys() - elements.get(name, {}).keys():
                self.remove(name, key)
        for name, words in elements.items():
            known = former.get(name, {})
            for key, value in words.items():
                if key not in known or known[key] != value:
                    self.put(name, key, value)
        if elements:
            self._owned[owner] = dict(elements)

    def take_changes(self) -> ElementChanges:
        """What leads from the elements at the last call, none at first, to those of now."""
        deletes: dict[SetName, tuple[ElementKey, ...]] = {}
        adds: dict[SetName, _Words] = {}
        anew: dict[SetName, _Words] = {}
        for name, touched in self._former.items():
            elements = self._now.get(name, {})
            differing = {key: old for key, old in touched.items() if elements.get(key, _ABSENT) != old}
            gone = tuple(key for key, old in differing.items() if old is not _ABSENT)
            if len(gone) > MOST_RANGES and name in self._ranged:
                anew[name] = dict(elements)
                continue
            if gone:
                deletes[name] = gone
            if new := {key: elements[key] for key in differing if key in elements}:
                adds[name] = new
        self._former = {}
        return ElementChanges(deletes=deletes, adds=adds, anew=anew)

    def counts(self) -> Mapping[str, int]:
        """How many elements there are now, by name of the set; a set that has become empty has 0. O(sets)."""
        return {name.name: len(words) for name, words in self._now.items()}

    def elements(self) -> Elements:
        """All elements of now."""
        return {name: dict(words) for name, words in self._now.items() if words}


_COUNT = 0xFFFF * 0xFFFF - 1
"""Of numbers that `class_word` has words for, but for the first, which is that of unknown sources."""


class WordAllocator:
    """Numbers for names: what the sets call a class or a policy. A name has the same number in every process, so one
    that takes over what an earlier one has left need not write it again.

    Two names never have one number at a time. Where they should, the later one gets the next that is free; that is the
    one case where the number depends on more than the name.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def allocate(self, name: str) -> str:
        """The word of its number (`coil.kernel.nft_element`). Not idempotent: ask once, and give it back once."""
        number = int.from_bytes(blake2s(name.encode(), digest_size=8).digest())
        while (word := class_word(number % _COUNT + 2)) in self._taken:
            number += 1
        self._taken.add(word)
        return word

    def release(self, word: str) -> None:
        """Nobody uses it any more."""
        self._taken.discard(word)
