"""A program's own writes: many of them a few at a time, and those that its cache does not show yet.

A reconciler that reads the cache right after its own write would decide on the state before it: its next write would
meet a conflict, and wait for a retry. The API server's answer is as good as the cache until the cache shows something
that is at least as new.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NamespaceTerminatingError, NotFoundError
from coil.reconcile.cache import Cache

T = TypeVar("T", bound=HasMetadata)
Work = TypeVar("Work")

AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class _Write(Generic[T]):
    """`outdated` are the versions of the object that led to `written`, one after the other."""

    outdated: frozenset[str]
    written: T


class OwnWrites(Generic[T]):
    """Of one kind; in a program with an election, of one term. Subscribe `observe` to the kind's cache before anything
    that reads it.
    """

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
        """Trust the cache again: a write has met a conflict, or the object is gone."""
        self._writes.pop(key, None)

    def observe(self, old: T | None, new: T | None) -> None:
        """The cache has changed. Unless it shows a state from before the write, it is trusted again."""
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


class OwnWriter(Generic[T]):
    """Creates, changes and deletes objects of one kind, with the API server's answers in mind: see `OwnWrites`.

    What writes raises ApiError. Each change is guarded by the version that it was decided on.
    """

    def __init__(self, client: ApiClient, resource: Resource[T], cache: Cache[T], writes: OwnWrites[T]) -> None:
        """`writes` observes the cache already."""
        self._client = client
        self._resource = resource
        self._cache = cache
        self._writes = writes

    def latest(self, key: str) -> T | None:
        """The object of that key, as this program wrote it if the cache does not show that yet."""
        return self._writes.latest(key, self._cache.get(key))

    def unseen(self) -> list[T]:
        """What was written and the cache does not show yet."""
        return self._writes.unseen()

    def wrote(self, new: T | None) -> bool:
        """Whether an event of the cache, with `new`, is that of the last write here."""
        if new is None:
            return False
        ours = self._writes.latest(object_key(new.metadata), None)
        return ours is not None and _version(ours) == _version(new)

    async def create(self, body: Mapping[str, Any] | Struct, *, namespace: str) -> bool:
        """Returns whether it was: in a namespace that is being deleted nothing is created."""
        try:
            created = await self._client.create(self._resource, body, namespace=namespace)
        except NamespaceTerminatingError:
            return False
        self._note(None, created)
        return True

    async def replace(self, present: T, body: Mapping[str, Any] | Struct) -> None:
        """`body` is all of it, with the metadata of `present`."""
        metadata = present.metadata
        try:
            stored = await self._client.replace(self._resource, body, name=metadata.name, namespace=metadata.namespace)
        except ApiError:
            self._writes.forget(object_key(metadata))
            raise
        self._note(present, stored)

    async def patch(self, present: T, changes: Mapping[str, Any]) -> None:
        """`changes` is a merge patch (RFC 7396)."""
        metadata = present.metadata
        patch = {"metadata": {"resourceVersion": metadata.resource_version}, **changes}
        try:
            stored = await self._client.patch(self._resource, metadata.name, patch, namespace=metadata.namespace)
        except ApiError:
            self._writes.forget(object_key(metadata))
            raise
        self._note(present, stored)

    async def delete(self, present: T) -> bool:
        """Returns whether it was: it may be gone already."""
        metadata = present.metadata
        self._writes.forget(object_key(metadata))
        try:
            await self._client.delete(self._resource, metadata.name, namespace=metadata.namespace, uid=metadata.uid)
        except NotFoundError:
            return False
        return True

    def _note(self, before: T | None, written: T) -> None:
        self._writes.note(before, written, cached=self._cache.get(object_key(written.metadata)))


def _version(item: T | None) -> str:
    return item.metadata.resource_version if item is not None else ""


async def work_through(
    items: Iterable[Work], work: Callable[[Work], Awaitable[None]], *, at_once: int = AT_ONCE
) -> None:
    """Await `work` for each item, `at_once` at a time; an ApiError of one does not keep the others from being done.

    Raises the first ApiError when all are done, and any other error at once. Cancelled, no call is left running.
    """
    waiting = iter(items)
    failures: list[ApiError] = []

    async def worker() -> None:
        for item in waiting:
            try:
                await work(item)
            except ApiError as error:
                failures.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    if failures:
        raise failures[0]
