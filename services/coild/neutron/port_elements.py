"""What the tables of ports are to have: the elements of each port, of which ports of one network share some."""

from collections.abc import Hashable
from dataclasses import dataclass

from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName


@dataclass(slots=True)
class _Element:
    """An element, and how many owners want it. `taken` is its value, if any, when the changes were last taken."""

    value: ElementValue
    owners: int = 0
    taken: tuple[ElementValue, ...] = ()

    @property
    def wanted(self) -> tuple[ElementValue, ...]:
        """Its value, if it is to be there."""
        return (self.value,) if self.owners > 0 else ()


class PortElements:
    """An element is there as long as one owner wants it. All owners of an element want the same value for it.

    A change costs O(elements of the owner).
    """

    def __init__(self) -> None:
        self._owned: dict[Hashable, Elements] = {}
        self._elements: dict[SetName, dict[ElementKey, _Element]] = {}
        self._touched: set[tuple[SetName, ElementKey]] = set()

    def write(self, owner: Hashable, elements: Elements) -> None:
        """All that the owner wants from now on."""
        for name, words in self._owned.pop(owner, {}).items():
            for key in words:
                self._elements[name][key].owners -= 1
                self._touched.add((name, key))
        for name, words in elements.items():
            known = self._elements.setdefault(name, {})
            for key, value in words.items():
                element = known.setdefault(key, _Element(value))
                if element.owners == 0:
                    element.value = value
                element.owners += 1
                self._touched.add((name, key))
        if elements:
            self._owned[owner] = elements

    def remove(self, owner: Hashable) -> None:
        """The owner wants nothing any more."""
        self.write(owner, {})

    def take_changes(self) -> ElementChanges:
        """What leads from the elements at the last call, none at first, to those of now."""
        deletes: dict[SetName, list[ElementKey]] = {}
        adds: dict[SetName, dict[ElementKey, ElementValue]] = {}
        for name, key in self._touched:
            element = self._elements[name][key]
            taken, element.taken = element.taken, element.wanted
            if taken and taken != element.wanted:
                deletes.setdefault(name, []).append(key)
            if element.wanted and taken != element.wanted:
                adds.setdefault(name, {})[key] = element.value
            if not element.wanted:
                del self._elements[name][key]
        self._touched.clear()
        return ElementChanges(deletes={name: tuple(keys) for name, keys in deletes.items()}, adds=adds)

    def elements(self) -> Elements:
        """All elements of now."""
        return {
            name: wanted
            for name, words in self._elements.items()
            if (wanted := {key: element.value for key, element in words.items() if element.owners > 0})
        }
