"""A local copy of a collection that follows the API server's for ever, and tells of each change.

In the flow: `coil.kube` lists and watches, the informer keeps the cache, its listeners put keys into work
queues, and reconcilers read the cache.

    run:   list ──► watch ──► watch ──► …          each arrow is a pause, unless the watch lived long
             ▲        │ 410, a refusal, an oversized line, or watches that bring nothing again and again
             └────────┘ reset, stall, truncated line, 5xx, HTML: the next watch resumes where this one ended

A list is streamed: the first watch brings what is there, object by object, and goes on from there. In pages it is read
from servers that cannot do that (before Kubernetes 1.32, or with the feature WatchList off), and after a stream that
broke off or was none.

Invariants:
* The cache and its notifications agree: replaying (old, new) from the subscription on gives the cache.
* Objects deleted while nobody watched are found out by the next list and told as (old, None). A new object
  of an old name (another uid) is told as a deletion and an addition.
* A list is applied as it comes, so that a big collection is never held twice; what is gone is removed
  at the end. Until then the cache may hold too much, never too little.
* An object that comes again unchanged (same resource version) is not told again.
* No retry without a pause, `WatchBackoff` says which; so no answer, however wrong, makes a busy loop.

Listeners are called in order, synchronously, between two turns of the loop: they must be quick and must
not raise. If one does, `run` ends with its exception, as the cache and that listener no longer agree; a
supervised process then ends with it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from copy import copy
from typing import Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge
from structlog.typing import FilteringBoundLogger

from coil.crd.resource import HasMetadata, Resource, object_key
from coil.kube.collection import Page
from coil.kube.errors import ApiError, GoneError, InvalidError, UnavailableError
from coil.kube.watch import Bookmark, Deleted, WatchEvent
from coil.reconcile.backoff import Backoff, Outcome, Step, Verdict, WatchBackoff
from coil.reconcile.cache import Listener, is_unserved
from coil.reconcile.store import Indexer, Store


class InformerMetrics:
    """The families, labelled with the plural of the kind that an informer follows.

    Where several informers of a process follow one kind, `named` gives the others their label.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.name = ""
        self.lists = Counter(
            "informer_lists",
            "Lists completed: the first, and one whenever a watch could not be resumed.",
            ["resource"],
            registry=registry,
        )
        self.watches = Counter(
            "informer_watches", "Watches that the API server accepted.", ["resource"], registry=registry
        )
        self.events = Counter(
            "informer_events", "Watch events received, bookmarks included.", ["resource"], registry=registry
        )
        self.failures = Counter(
            "informer_failures",
            "Lists and watches that failed, by class of error; EmptyWatchError is a watch that ended immediately.",
            ["resource", "error"],
            registry=registry,
        )
        self.objects = Gauge("informer_objects", "Objects in the cache.", ["resource"], registry=registry)
        self.last_contact = Gauge(
            "informer_last_contact_timestamp_seconds",
            "When the API server was last heard, in seconds since 1970. A quiet watch is silent for a minute or so.",
            ["resource"],
            registry=registry,
        )

    def named(self, name: str) -> "InformerMetrics":
        """The same families for one informer, which is called `name` there and in the log."""
        twin = copy(self)
        twin.name = name
        return twin


T = TypeVar("T", bound=HasMetadata)

PAGE_SIZE = 500
LIST_SILENCE = 30.0  # seconds in which a streamed list must go on
RETRY_BACKOFF = Backoff(base=0.5, cap=30.0)
_OBJECTS_PER_TURN = 500


class ListerWatcher(Protocol[T]):
    """What an informer reads (client-go's `cache.ListerWatcher`); `coil.kube.collection.Collection` is one."""

    @property
    def resource(self) -> Resource[T]: ...

    @property
    def streams_lists(self) -> bool:
        """Whether a watch with `initial_events` may be tried."""

    async def list_page(self, *, limit: int, continue_token: str) -> Page[T]: ...

    def watch(
        self, *, resource_version: str, initial_events: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterable[list[WatchEvent[T]]]]: ...


class EmptyWatchError(UnavailableError):
    """A watch ended properly, and too soon."""


class InterruptedListError(UnavailableError):
    """A streamed list ended, or turned out to be none, before all objects had been sent."""


class Informer(Generic[T]):
    """Run `run()` in one task; everything else is synchronous and may be called from the same event loop.

    Of an `optional` kind it is not worth a warning that the API server does not serve it.

    `clock` gives monotonic seconds, `random` [0, 1), `sleep` waits; they are arguments for tests to replace.
    """

    def __init__(
        self,
        source: ListerWatcher[T],
        *,
        log: FilteringBoundLogger,
        metrics: InformerMetrics,
        indexers: Mapping[str, Indexer[T]] | None = None,
        optional: bool = False,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        resource = self._name = metrics.name or source.resource.plural
        self._source = source
        self._optional = optional
        self._log = log.bind(resource=resource)
        self._store: Store[T] = Store(indexers or {})
        self._listeners: list[Listener[T]] = []
        self._watch_backoff = WatchBackoff(RETRY_BACKOFF, random)
        self._clock = clock
        self._sleep = sleep
        self._version = ""  # where the next watch resumes; "": nowhere, list
        self._streams_lists = source.streams_lists
        self._list_in_pages = False  # the next time, as a stream has just failed
        self._last_error: ApiError | None = None
        self._last_contact: float | None = None
        self._synced = asyncio.Event()
        self._lists = metrics.lists.labels(resource)
        self._watches = metrics.watches.labels(resource)
        self._failures = metrics.failures
        self._events = metrics.events.labels(resource)
        self._objects = metrics.objects.labels(resource)
        self._contact_gauge = metrics.last_contact

    def get(self, key: str) -> T | None:
        """The object of that key (`namespace/name`, or `name`) as last seen."""
        return self._store.get(key)

    def items(self) -> list[T]:
        return self._store.items()

    def by_index(self, index: str, value: str) -> list[T]:
        """The objects for which the indexer `index` gives `value`. KeyError if there is no such indexer."""
        return self._store.by_index(index, value)

    def subscribe(self, listener: Listener[T]) -> None:
        """Call `listener(old, new)` for every change from now on; first for what is there, as (None, new)."""
        for item in self._store.items():
            listener(None, item)
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener[T]) -> None:
        """Undo one `subscribe`; not from within a listener. Raises ValueError if `listener` is not subscribed."""
        self._listeners.remove(listener)

    @property
    def synced(self) -> bool:
        """True once a first list was complete; it stays true, see `contact_age` for an outage."""
        return self._synced.is_set()

    @property
    def contact_age(self) -> float:
        """Seconds since the API server was last heard: a page, an accepted watch, an event. Infinity: never.

        A quiet watch may be silent for minutes; the connection's own checks end a dead one earlier.
        """
        return float("inf") if self._last_contact is None else self._clock() - self._last_contact

    @property
    def last_error(self) -> ApiError | None:
        """Why the last list or watch failed; None if none did since the server was last heard."""
        return self._last_error

    async def wait_synced(self, timeout: float) -> None:
        """Return once the cache holds a complete first list. TimeoutError, with the last failure, otherwise."""
        try:
            async with asyncio.timeout(timeout):
                await self._synced.wait()
        except TimeoutError:
            reason = self._last_error or "no answer yet"
            raise TimeoutError(f"{self._name} not listed in {timeout:g} s: {reason}") from self._last_error

    async def run(self) -> None:
        """Follow the collection until cancelled. Ends otherwise only with an exception of a listener or indexer.

        After a cancellation the cache stays readable, and `run` may be called again.
        """
        while True:
            outcome = await self._follow()
            verdict = self._watch_backoff.decide(outcome)
            if verdict.step is Step.LIST:
                self._version = ""
            self._report(outcome, verdict)
            if verdict.delay:
                await self._sleep(verdict.delay)

    async def _follow(self) -> Outcome:
        """List if the place is lost, then watch until the watch ends, in whatever way."""
        began = self._clock()
        accepted = False
        events = 0
        fault: ApiError | None = None
        streamed = not self._version and self._streams_lists and not self._list_in_pages
        try:
            if not self._version and not streamed:
                await self._list()
                began = self._clock()
            async with self._source.watch(resource_version=self._version, initial_events=streamed) as opened:
                accepted = True
                self._watches.inc()
                self._heard()
                batches = aiter(opened)
                if streamed:
                    events += self._apply(await self._receive_list(batches))
                async for batch in batches:
                    self._heard()
                    events += self._apply(batch)
        except InvalidError as error:
            if not streamed or accepted:
                fault = error
            else:
                self._log.info("lists are read in pages, as this API server does not stream them")
                self._streams_lists = False
                return await self._follow()
        except ApiError as error:
            fault = error
            self._list_in_pages = streamed and not self._version
        return Outcome(self._clock() - began, accepted=accepted, events=events, fault=fault)

    async def _receive_list(self, batches: AsyncIterator[list[WatchEvent[T]]]) -> list[WatchEvent[T]]:
        """Bring the cache to the state that a streamed list ends with, and the place there; return what came after.

        Its events do not count: they come again, all of them, if it breaks off. Raises InterruptedListError.
        """
        seen: set[str] = set()
        while True:
            try:
                async with asyncio.timeout(LIST_SILENCE):
                    batch = await anext(batches, None)
            except TimeoutError:
                raise InterruptedListError(f"nothing of the list has come for {LIST_SILENCE:.0f} s") from None
            if batch is None:
                raise InterruptedListError("the watch ended before it had brought all objects")
            self._heard()
            for number, event in enumerate(batch, start=1):
                match event:
                    case Bookmark():
                        if not event.ends_initial_events:
                            self._streams_lists = False
                            raise InterruptedListError("the API server watches and does not list before")
                        self._events.inc(number)
                        await self._end_list(seen, event.object.metadata.resource_version, streamed=True)
                        return batch[number:]
                    case Deleted():
                        self._remove(object_key(event.object.metadata))
                        seen.discard(object_key(event.object.metadata))
                    case _:
                        seen.add(self._put(event.object))
            self._events.inc(len(batch))
            self._objects.set(len(self._store))

    async def _list(self) -> None:
        """Bring the cache to the state of a consistent list, and the place to its resource version."""
        seen: set[str] = set()
        token = version = ""
        while True:
            page = await self._source.list_page(limit=PAGE_SIZE, continue_token=token)
            self._heard()
            version = version or page.resource_version
            for number, item in enumerate(page.items, start=1):
                seen.add(self._put(item))
                if number % _OBJECTS_PER_TURN == 0:
                    await asyncio.sleep(0)  # a page from the server's cache may hold all objects there are
            self._objects.set(len(self._store))
            token = page.continue_token
            if not token:
                break
            del page  # or two pages would be in memory while the next one is read
        self._list_in_pages = False
        await self._end_list(seen, version, streamed=False)

    async def _end_list(self, seen: set[str], version: str, *, streamed: bool) -> None:
        """Remove what the list did not have."""
        gone = [key for key in self._store if key not in seen]
        for number, key in enumerate(gone, start=1):
            self._remove(key)
            if number % _OBJECTS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._objects.set(len(self._store))
        self._lists.inc()
        self._log.info(
            "listed", objects=len(self._store), deleted=len(gone), resource_version=version, streamed=streamed
        )
        self._version = version
        self._synced.set()

    def _apply(self, batch: list[WatchEvent[T]]) -> int:
        """Returns how many events these are."""
        for event in batch:
            match event:
                case Bookmark():
                    pass
                case Deleted():
                    self._remove(object_key(event.object.metadata))
                case _:
                    self._put(event.object)
            # Last, so that an event on which a listener failed is not skipped by a second `run`.
            self._version = event.object.metadata.resource_version or self._version
        self._events.inc(len(batch))
        self._objects.set(len(self._store))
        return len(batch)

    def _put(self, new: T) -> str:
        key = object_key(new.metadata)
        old = self._store.get(key)
        if old is not None and old.metadata.uid != new.metadata.uid:
            self._remove(key)
            old = None
        if old is None or old.metadata.resource_version != new.metadata.resource_version:
            self._store.put(key, new)
            for listener in self._listeners:
                listener(old, new)
        return key

    def _remove(self, key: str) -> None:
        old = self._store.remove(key)
        if old is not None:
            for listener in self._listeners:
                listener(old, None)

    def _heard(self) -> None:
        if self._last_contact is None:  # there is no series before, rather than one that says 1970
            self._contact_gauge.labels(self._name).set_function(self._last_contact_time)
        self._last_contact = self._clock()
        self._last_error = None

    def _last_contact_time(self) -> float:
        """In seconds since 1970; computed for a scrape, not for each event."""
        return time.time() - self.contact_age

    def _report(self, outcome: Outcome, verdict: Verdict) -> None:
        facts = {"seconds": round(outcome.lived, 1), "events": outcome.events, "next": verdict.step.value}
        if not verdict.delay:
            self._log.debug("watch ended", **facts)
            return
        fault = outcome.fault or EmptyWatchError(f"the watch ended after {outcome.lived:.1f} s")
        self._last_error = fault
        self._failures.labels(self._name, type(fault).__name__).inc()
        # An expired place is the API server's daily business, and an optional kind may never be served; anything else
        # somebody should see.
        report = self._log.warning
        if isinstance(fault, GoneError):
            report = self._log.info
        elif self._optional and is_unserved(fault):
            report = self._log.info if self._watch_backoff.failures == 1 else self._log.debug
        report(
            "interrupted",
            error=str(fault),
            delay=round(verdict.delay, 2),
            failures=self._watch_backoff.failures,
            **facts,
        )
