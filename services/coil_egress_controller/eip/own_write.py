"""What this leader has written and its cache has not heard of yet.

A reconciler that looks at the cache right after its own write would decide on the state before it: its next write would
meet a conflict, and wait for a retry. An answer of the API server is as good as a cache, until the cache says something
that is no older.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from coil.crd.resource import HasMetadata, object_key

T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True)
class _Write(Generic[T]):
    """`outdated` are the versions of the object that it was built upon, one after the other."""

    outdated: frozenset[str]
    written: T


class OwnWrites(Generic[T]):
    """Of one kind, in one term. Subscribe `observe` to the kind's source."""

    def __init__(self) -> None:
        self._writes: dict[str, _Write[T]] = {}

    def note(self, before: T | None, written: T, *, cached: T | None) -> None:
        """`written` is the answer to a write that was guarded by the version of `before`; None: it was created.

        `cached` is what the cache has by now: it may have overtaken the answer.
        """
        key = object_key(written.metadata)
        known = self._writes.get(key)
        earlier = known.outdated if known is not None and known.written is before else frozenset()
        outdated = earlier | {_version(before)}
        if _version(written) not in outdated and _version(cached) in outdated:
            self._writes[key] = _Write(outdated, written)
        else:
            self.forget(key)

    def forget(self, key: str) -> None:
        """Believe the cache: a write has met a conflict, or the object is gone."""
        self._writes.pop(key, None)

    def observe(self, old: T | None, new: T | None) -> None:
        """The cache has changed. Unless it is news of before the write, it counts again."""
        present = new or old
        if present is None:
            return
        key = object_key(present.metadata)
        known = self._writes.get(key)
        if known is not None and (new is None or _version(new) not in known.outdated):
            self.forget(key)

    def latest(self, key: str, cached: T | None) -> T | None:
        """The newer of what the cache has and what was written."""
        known = self._writes.get(key)
        return known.written if known is not None else cached

    def unseen(self) -> list[T]:
        """What was written and the cache does not show yet."""
        return [write.written for write in self._writes.values()]


def _version(item: T | None) -> str:
    return item.metadata.resource_version if item is not None else ""
