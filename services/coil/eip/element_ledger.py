"""Elements as they are to be, who wants them, and what has changed since the last question."""

from collections.abc import Hashable, KeysView, Mapping
from enum import Enum
from typing import Final

from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName

_Words = dict[ElementKey, ElementValue]


class _Absence(Enum):
    ABSENT = "absent"


_ABSENT: Final = _Absence.ABSENT


class ElementLedger:
    """Every element has one owner, or is written by itself. All of it costs O(elements that differ)."""

    def __init__(self) -> None:
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
            kept = elements.get(name, {})
            # In the order in which they came: the kernel finds what came first sooner.
            for key in [key for key in words if key not in kept]:
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
        for name, touched in self._former.items():
            elements = self._now.get(name, {})
            differing = {key: old for key, old in touched.items() if elements.get(key, _ABSENT) != old}
            gone = tuple(key for key, old in differing.items() if old is not _ABSENT)
            if gone:
                deletes[name] = gone
            if new := {key: elements[key] for key in differing if key in elements}:
                adds[name] = new
        self._former = {}
        return ElementChanges(deletes=deletes, adds=adds)

    def keys(self, name: SetName) -> KeysView[ElementKey]:
        """Those of the set's elements of now."""
        return self._now.get(name, {}).keys()

    def counts(self) -> Mapping[str, int]:
        """How many elements there are now, by name of the set; a set that has become empty has 0. O(sets)."""
        return {name.name: len(words) for name, words in self._now.items()}

    def elements(self) -> Elements:
        """All elements of now."""
        return {name: dict(words) for name, words in self._now.items() if words}
