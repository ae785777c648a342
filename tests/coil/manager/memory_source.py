"""A collection in memory that an informer lists and watches. It may be silent, or not served, until a test says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coil.crd.meta import ObjectMeta
from coil.crd.resource import Resource
from coil.kube.collection import Page
from coil.kube.errors import ApiError
from coil.kube.watch import Added, Deleted, Modified, WatchEvent
from tests.coil.kube.thing import Thing


class MemorySource:
    """Things by name. `fault`, if any, is the answer to every list; without `answering` there is none."""

    def __init__(self, plural: str, *, answering: bool = True, fault: ApiError | None = None) -> None:
        self.resource: Resource[Thing] = Resource("example.com", "v1", plural, "Thing", namespaced=False, type=Thing)
        self.fault = fault
        self._answering = asyncio.Event()
        if answering:
            self._answering.set()
        self._things: dict[str, Thing] = {}
        self._version = 0
        self._watches: list[asyncio.Queue[WatchEvent[Thing]]] = []

    def answer(self) -> None:
        """Answer lists from now on."""
        self.fault = None
        self._answering.set()

    def put(self, name: str, *, size: int = 1) -> None:
        self._version += 1
        metadata = ObjectMeta(name=name, uid=f"uid-{name}", resource_version=str(self._version))
        thing = Thing(metadata=metadata, size=size)
        self._tell(Modified(thing) if name in self._things else Added(thing))
        self._things[name] = thing

    def delete(self, name: str) -> None:
        self._tell(Deleted(self._things.pop(name)))

    def _tell(self, event: WatchEvent[Thing]) -> None:
        for watch in self._watches:
            watch.put_nowait(event)

    streams_lists = False

    async def list_page(self, *, limit: int, continue_token: str) -> Page[Thing]:
        if self.fault is not None:
            raise self.fault
        await self._answering.wait()
        return Page(list(self._things.values()), str(self._version), "")

    @asynccontextmanager
    async def watch(
        self, *, resource_version: str, initial_events: bool = False
    ) -> AsyncIterator[AsyncIterator[list[WatchEvent[Thing]]]]:
        events: asyncio.Queue[WatchEvent[Thing]] = asyncio.Queue()
        self._watches.append(events)

        async def batches() -> AsyncIterator[list[WatchEvent[Thing]]]:
            while True:
                yield [await events.get()]

        try:
            yield batches()
        finally:
            self._watches.remove(events)
