"""The events of one watch: from lines of JSON to typed structs, in batches.

Invariants: events come in the server's order; every event before a fault is delivered, then the fault is
raised; nothing is guessed from a half-received line. The loop gets a turn after each BATCH_BYTES, so that
a burst of thousands of events does not hold up anything else.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec
from msgspec.structs import force_setattr

from coil.crd.meta import ObjectMeta
from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import GoneError, Status, UnavailableError, error_of, excerpt
from coil.kube.transport import network_errors

LIMIT = 1024
"""Distinct values that are remembered; more than that means that they have little in common."""


class MetadataInterner:
    """One copy in memory of what the objects of a collection have in common.

    Every block of a pool names the same owner and carries the same finalizers, and each decoded object has its own copy
    of both: a third of its size. Structs are frozen and tuples immutable, so nobody can tell whether they are shared.

    For objects that were just decoded and that nobody else has seen: they are still being made."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def intern(self, metadata: ObjectMeta) -> None:
        """Replace the owners and finalizers by the equal ones of earlier objects."""
        if metadata.owner_references:
            force_setattr(metadata, "owner_references", self._first(metadata.owner_references))
        if metadata.finalizers:
            force_setattr(metadata, "finalizers", self._first(metadata.finalizers))

    def _first(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(self._known) >= LIMIT:
            self._known.clear()
        known: tuple[Any, ...] = self._known.setdefault(value, value)
        return known


class LineTooLongError(ValueError):
    """A line exceeds the bound: the stream cannot be read on."""


class LineSplitter:
    """Cuts a byte stream into lines. aiohttp refuses lines longer than its buffer (4 MiB here), and an
    object may be longer.

    Feed it chunks, get whole lines. Each byte is searched once and copied at most twice.

    Invariant: what is held back contains no line break and is at most `limit` bytes long.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of a line whose end has not come yet."""
        return self._held

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their line breaks; empty lines are dropped.

        Raises LineTooLongError when a line, complete or not, exceeds the limit.
        """
        *complete, last = chunk.split(b"\n")
        if complete and self._rest:
            complete[0] = b"".join((*self._rest, complete[0]))
            self._rest, self._held = [], 0
        if last:
            self._rest.append(last)
            self._held += len(last)
        longest = max(map(len, complete), default=0)
        if max(longest, self._held) > self._limit:
            raise LineTooLongError(f"a line of more than {self._limit} bytes")
        return [line for line in complete if line]


_INITIAL_EVENTS_END = "k8s.io/initial-events-end"  # metav1.InitialEventsAnnotationKey
LINE_LIMIT = 32 * 1024 * 1024  # etcd's default limit for a request is 1.5 MiB; this is a fault, not a fit
BATCH_BYTES = 256 * 1024

T = TypeVar("T", bound=HasMetadata)


class Added(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag="ADDED"):
    object: T


class Modified(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag="MODIFIED"):
    object: T


class Deleted(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag="DELETED"):
    """`object` is the last state, with the resource version of the deletion."""

    object: T


class BookmarkObject(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


class Bookmark(msgspec.Struct, frozen=True, tag_field="type", tag="BOOKMARK"):
    """Nothing happened up to the resource version in `object.metadata`: a later place to resume from."""

    object: BookmarkObject

    @property
    def ends_initial_events(self) -> bool:
        """Whether all objects have now been sent by a watch that was asked for them (`sendInitialEvents`)."""
        return self.object.metadata.annotations.get(_INITIAL_EVENTS_END) == "true"


class _Failure(msgspec.Struct, frozen=True, tag_field="type", tag="ERROR"):
    object: Status


WatchEvent = Added[T] | Modified[T] | Deleted[T] | Bookmark


def event_decoder(resource: Resource[T]) -> "msgspec.json.Decoder[WatchEvent[T] | _Failure]":
    """The decoder of one line of a watch on `resource`. Costly to make: make it once per collection."""
    added: Any = Added
    modified: Any = Modified
    deleted: Any = Deleted
    kind = resource.type
    return msgspec.json.Decoder(added[kind] | modified[kind] | deleted[kind] | Bookmark | _Failure)


class Watch(Generic[T]):
    """An asynchronous iterator over batches of events, none of them empty. Ends when the server ends the watch.

    Iteration raises GoneError when the place to resume from is lost (410, or a line over LINE_LIMIT that
    cannot be skipped safely: list again), and UnavailableError, or another ApiError that the server sent,
    for everything that a new watch from the last seen resource version may cure.

    An object that `keep` denies is told as deleted, whatever has become of it.
    """

    def __init__(
        self,
        content: aiohttp.StreamReader,
        decoder: "msgspec.json.Decoder[WatchEvent[T] | _Failure]",
        *,
        interner: MetadataInterner,
        keep: Callable[[T], bool] | None = None,
        what: str,
        line_limit: int = LINE_LIMIT,
    ) -> None:
        self._content = content
        self._decoder = decoder
        self._interner = interner
        self._keep = keep
        self._what = what
        self._splitter = LineSplitter(line_limit)
        self._lines: deque[bytes] = deque()

    def __aiter__(self) -> "Watch[T]":
        return self

    async def __anext__(self) -> list[WatchEvent[T]]:
        if self._lines:
            await asyncio.sleep(0)
        while not self._lines:
            await self._receive()
        return self._decode()

    async def _receive(self) -> None:
        with network_errors(self._what):
            chunk = await self._content.readany()
        if not chunk:
            if self._splitter.held:
                raise UnavailableError(f"{self._what}: the stream ended within a line")
            raise StopAsyncIteration
        try:
            self._lines.extend(self._splitter.feed(chunk))
        except LineTooLongError as error:
            raise GoneError(f"{self._what}: {error}") from error

    def _decode(self) -> list[WatchEvent[T]]:
        """Decode waiting lines, up to BATCH_BYTES or a fault. A line that is at fault stays for the next call."""
        events: list[WatchEvent[T]] = []
        size = 0
        while self._lines and size < BATCH_BYTES:
            line = self._lines[0]
            try:
                event = self._decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                if events:
                    break
                raise UnavailableError(f"{self._what}: unreadable event: {error}: {excerpt(line)}") from error
            if isinstance(event, _Failure):
                if events:
                    break
                raise error_of(event.object, code=event.object.code, what=self._what)
            self._lines.popleft()
            if self._keep is not None and isinstance(event, Added | Modified) and not self._keep(event.object):
                event = Deleted(event.object)
            else:
                self._interner.intern(event.object.metadata)
            events.append(event)
            size += len(line)
        return events
