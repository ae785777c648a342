"""The API server in memory, with watches: real informers follow it, each with a delay of its own."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from coil.crd.resource import HasMetadata, Resource
from coil.kube.collection import Page
from coil.kube.watch import Added, Deleted, Modified, WatchEvent
from tests.coil.kube.memory_api import MemoryApi

T = TypeVar("T", bound=HasMetadata)


class WatchedApi(MemoryApi):
    def __init__(self) -> None:
        super().__init__()
        self._followers: list[asyncio.Event] = []
        self.subscribe(self._tell)

    def follow(self) -> asyncio.Event:
        """An event that every change sets; the follower clears it."""
        event = asyncio.Event()
        self._followers.append(event)
        return event

    def _tell(self) -> None:
        for event in self._followers:
            event.set()


class MemorySource(Generic[T]):
    """What an informer reads. News reaches it `delay()` seconds late; changes in between may be told as one."""

    def __init__(
        self,
        api: WatchedApi,
        resource: Resource[T],
        *,
        labels: Mapping[str, str] | None = None,
        delay: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.resource = resource
        self.delay = delay
        self._api = api
        self._labels = labels or {}
        self._shown: dict[str, T] = {}

    streams_lists = False

    async def list_page(self, *, limit: int, continue_token: str) -> Page[T]:
        assert not continue_token
        self._shown = self._look()
        return Page(list(self._shown.values()), "0", "")

    @asynccontextmanager
    async def watch(
        self, *, resource_version: str, initial_events: bool = False
    ) -> AsyncIterator[AsyncIterable[list[WatchEvent[T]]]]:
        yield self._batches()

    async def _batches(self) -> AsyncIterator[list[WatchEvent[T]]]:
        changed = self._api.follow()
        changed.set()
        while True:
            await changed.wait()
            await asyncio.sleep(self.delay())
            changed.clear()
            if events := self._news():
                yield events

    def _look(self) -> dict[str, T]:
        return {
            item.metadata.name: item
            for item in self._api.all(self.resource)
            if self._labels.items() <= item.metadata.labels.items()
        }

    def _news(self) -> list[WatchEvent[T]]:
        before, self._shown = self._shown, self._look()
        events: list[WatchEvent[T]] = []
        for name in sorted(before.keys() | self._shown.keys()):
            old, new = before.get(name), self._shown.get(name)
            if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                events.append(Deleted(old))
                old = None
            if new is not None and old is None:
                events.append(Added(new))
            elif new is not None and new != old:
                events.append(Modified(new))
        return events
