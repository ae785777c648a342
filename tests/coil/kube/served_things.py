"""A model of the API server's list and watch for one collection, as the `otherwise` of a FaultyServer.

It keeps a history of changes by resource version, pages its lists from a snapshot or streams them, forgets history and
snapshots when compacted, and can be told to cut a watch at an exact point of the stream of events, and a streamed list
after so many objects.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.coil.kube.faulty_server import Exchange, fail, status_document
from tests.coil.kube.thing import bookmark, event, thing, thing_list


@dataclass(slots=True)
class _Entry:
    """Something in the stream: an event, or a cut that happens to the first watch which gets there."""

    version: int
    line: bytes = b""
    cut: Callable[[Exchange], Awaitable[None]] | None = None


class ServedThings:
    """`objects` is the truth: documents by name. Changing it is synchronous; watchers follow."""

    def __init__(self, *, page_size: int = 500, expire_by_event: bool = False, streams_lists: bool = False) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 10
        self.lists = 0
        self._page_size = page_size
        self._expire_by_event = expire_by_event
        self._streams_lists = streams_lists
        self._list_cuts: list[tuple[int, Callable[[Exchange], Awaitable[None]]]] = []
        self._compacted = 0
        self._entries: list[_Entry] = []
        self._snapshots: dict[int, list[dict[str, Any]]] = {}
        self._watchers: set[asyncio.Event] = set()
        self._births = 0

    def put(self, name: str, *, size: int = 1, colour: str = "") -> None:
        """Create or modify."""
        old = self.objects.get(name)
        if old is None:
            self._births += 1
        uid = old["metadata"]["uid"] if old else f"uid-{self._births}"
        self.version += 1
        self.objects[name] = thing(name, version=self.version, uid=uid, size=size, colour=colour)
        self._record(event("MODIFIED" if old else "ADDED", self.objects[name]))

    def delete(self, name: str) -> None:
        """Nothing happens if there is no such object."""
        gone = self.objects.pop(name, None)
        if gone is not None:
            self.version += 1
            last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self._record(event("DELETED", last))

    def replace(self, name: str) -> None:
        """Delete and create: the same name, another uid."""
        self.delete(name)
        self.put(name)

    def bookmark(self) -> None:
        self._record(bookmark(self.version))

    def cut(self, how: Callable[[Exchange], Awaitable[None]]) -> None:
        """The first watch that has sent everything so far is ended by `how`."""
        self._append(_Entry(self.version, cut=how))

    def cut_list(self, how: Callable[[Exchange], Awaitable[None]], *, after: int) -> None:
        """The next streamed list is ended by `how` when it has sent so many objects, or all."""
        self._list_cuts.append((after, how))

    def compact(self) -> None:
        """Forget the history: watches and continue tokens from before now are Gone. Running watches go on."""
        self._compacted = self.version
        self._snapshots.clear()

    def state(self) -> dict[str, tuple[str, str]]:
        """uid and resource version by key, to compare with an informer's."""
        return {
            f"here/{name}": (document["metadata"]["uid"], document["metadata"]["resourceVersion"])
            for name, document in self.objects.items()
        }

    async def answer(self, exchange: Exchange) -> None:
        await (self._watch(exchange) if exchange.request.is_watch else self._list(exchange))

    def _record(self, line: bytes) -> None:
        self._append(_Entry(self.version, line))

    def _append(self, entry: _Entry) -> None:
        self._entries.append(entry)
        for wake in self._watchers:
            wake.set()

    async def _list(self, exchange: Exchange) -> None:
        query = exchange.request.query
        if "continue" in query:
            version, start = (int(part) for part in query["continue"].split(":"))
            if version not in self._snapshots:
                await fail(410, reason="Expired", message="The provided continue parameter is too old")(exchange)
                return
        else:
            version, start = self.version, 0
            self.lists += 1
            self._snapshots[version] = list(self.objects.values())
        end = start + min(self._page_size, int(query["limit"]))
        snapshot = self._snapshots[version]
        more = f"{version}:{end}" if end < len(snapshot) else ""
        document = thing_list(*snapshot[start:end], version=version, more=more)
        await exchange.answer(200, json.dumps(document).encode())

    async def _watch(self, exchange: Exchange) -> None:
        query = exchange.request.query
        if query.get("sendInitialEvents") == "true":
            if not self._streams_lists:
                message = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
                await fail(422, reason="Invalid", message=message)(exchange)
                return
            assert query["resourceVersionMatch"] == "NotOlderThan", "the API server insists"
            assert query["allowWatchBookmarks"] == "true", "as well"
            self.lists += 1
            since = self.version
            await exchange.begin()
            if not await self._stream_list(exchange):
                return
        else:
            since = int(query["resourceVersion"])
            if since < self._compacted:
                await self._refuse(exchange)
                return
            await exchange.begin()
        wake = asyncio.Event()
        self._watchers.add(wake)
        leaving = asyncio.create_task(exchange.hold())
        leaving.add_done_callback(lambda _: wake.set())
        try:
            await self._send_entries(exchange, since=since, wake=wake, leaving=leaving)
        finally:
            self._watchers.discard(wake)
            leaving.cancel()
            await asyncio.wait([leaving])

    async def _stream_list(self, exchange: Exchange) -> bool:
        """All objects and the bookmark after them; False if that was cut."""
        version, snapshot = self.version, list(self.objects.values())
        limit, cut = self._list_cuts.pop(0) if self._list_cuts else (len(snapshot), None)
        for document in snapshot[:limit]:
            await exchange.send(event("ADDED", document))
        if cut is not None:
            await cut(exchange)
            return False
        await exchange.send(bookmark(version, ends_list=True))
        return True

    async def _refuse(self, exchange: Exchange) -> None:
        if self._expire_by_event:
            await exchange.begin()
            await exchange.send(event("ERROR", status_document(410, reason="Expired", message="too old")))
            await exchange.end()
        else:
            await fail(410, reason="Expired", message="too old")(exchange)

    async def _send_entries(
        self, exchange: Exchange, *, since: int, wake: asyncio.Event, leaving: "asyncio.Task[None]"
    ) -> None:
        position = 0
        while not leaving.done():
            wake.clear()
            while position < len(self._entries):
                entry = self._entries[position]
                position += 1
                if entry.cut is not None and entry.version >= since:
                    how, entry.cut = entry.cut, None
                    await how(exchange)
                    return
                if entry.line and entry.version > since:
                    await exchange.send(entry.line)
            await wake.wait()
