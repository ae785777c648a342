"""The informer's cache: the last observed state of a collection, with indexes over it. Pure.

Invariant: after each call every index holds exactly the keys of the objects that its indexer names now;
if an indexer raises, nothing has changed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeAlias, TypeVar

from coil.crd.resource import HasMetadata

T = TypeVar("T", bound=HasMetadata)

# From an object to the values under which it is to be found. Must be pure: asked again, the same answer.
Indexer: TypeAlias = Callable[[T], Iterable[str]]

# Keys in a dict, for its order: what was stored first is listed first, in every run the same. A single key, which is
# all that most values of some indexes ever have, stands by itself: it takes a fifth of the room.
_Keys: TypeAlias = dict[str, None]
_Entry: TypeAlias = str | _Keys


class Store(Generic[T]):
    """Objects by key, and keys by index value. Synchronous, single-threaded."""

    def __init__(self, indexers: Mapping[str, Indexer[T]]) -> None:
        self._objects: dict[str, T] = {}
        self._indexers = dict(indexers)
        self._indexes: dict[str, dict[str, _Entry]] = {name: {} for name in indexers}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[str]:
        """The keys. Not across an await: the store may change meanwhile."""
        return iter(self._objects)

    def items(self) -> list[T]:
        return list(self._objects.values())

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def by_index(self, index: str, value: str) -> list[T]:
        """The objects for which the indexer named `index` gives `value`. KeyError if there is no such index."""
        entry = self._indexes[index].get(value, ())
        return [self._objects[key] for key in ((entry,) if isinstance(entry, str) else entry)]

    def put(self, key: str, new: T) -> T | None:
        """Store `new` under `key`; returns what it replaces."""
        old = self._objects.get(key)
        for name, before, after in self._index_values(old, new):
            self._unlist(name, before - after, key)
            self._enlist(name, after - before, key)
        self._objects[key] = new
        return old

    def remove(self, key: str) -> T | None:
        """Forget `key`; returns what was stored, or None if nothing was."""
        old = self._objects.get(key)
        if old is None:
            return None
        for name, before, after in self._index_values(old, None):
            self._unlist(name, before - after, key)
        return self._objects.pop(key)

    def _index_values(self, old: T | None, new: T | None) -> list[tuple[str, set[str], set[str]]]:
        return [
            (
                name,
                set() if old is None else set(indexer(old)),
                set() if new is None else set(indexer(new)),
            )
            for name, indexer in self._indexers.items()
        ]

    def _enlist(self, index: str, values: set[str], key: str) -> None:
        entries = self._indexes[index]
        for value in values:
            entry = entries.get(value)
            if entry is None:
                entries[value] = key
            elif isinstance(entry, str):
                entries[value] = {entry: None, key: None}
            else:
                entry[key] = None

    def _unlist(self, index: str, values: set[str], key: str) -> None:
        entries = self._indexes[index]
        for value in values:
            entry = entries[value]
            if not isinstance(entry, str):
                del entry[key]
            if isinstance(entry, str) or not entry:
                del entries[value]
