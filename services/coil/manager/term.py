"""One term: controllers, indexes and runnables that are made together, work together and end together.

A leader's term lasts from its election until the lease is lost or the process stops; without an election there is one
term, as long as the process. The state of a term is made by the setups that `Manager.each_term` was given, anew each
time, because state from an earlier term is out of date: other replicas have written since.

    setup(term)      synchronous; declares everything, nothing works yet
    term.run()       controllers whose caches are synced are opened, then all of it works until cancelled
    end              every task is awaited, then queues close, listeners are unsubscribed, `on_end` callbacks run

Order, within a term:
* a derived index (`Term.subscribe`) is subscribed during the setup, synced cache or not; so it has heard of every
  event before any controller's watch hears of it;
* a controller is opened once each cache that it watches or needs is synced, but for optional ones. A kind that is not
  served holds up the controllers that need it and nobody else;
* opened, its watches hear of all objects that are there, as (None, new), then its workers begin;
* all controllers that can be opened at the beginning are, before the first worker of any of them runs;
* what arrives by a channel, or by `enqueue`, before a controller is opened waits in its queue.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import Cache, Listener, wait_synced
from coil.reconcile.controller import RECONCILE_TIMEOUT, Controller, Reconcile
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import RETRY_BACKOFF, WorkQueue

T = TypeVar("T")


class Channel(Generic[T]):
    """Events of one type, from any number of senders to the controllers that watch it (`TermController.watch_channel`).

    controller-runtime's `source.Channel`, without the goroutine: `send` is synchronous, so what was sent is in the
    receiver's queue before the sender goes on. The sender knows neither the receivers nor their keys.

    Nothing is stored: an event that is sent before anybody watches goes nowhere. Make a channel in the same setup of a
    term as its senders and receivers; it ends with them.
    """

    def __init__(self) -> None:
        self._receivers: list[Callable[[T], None]] = []

    def subscribe(self, receiver: Callable[[T], None], /) -> None:
        """Call `receiver` with every event from now on. It must be quick and must not raise."""
        self._receivers.append(receiver)

    def send(self, event: T) -> None:
        """Hand `event` to every receiver, in the order of their subscription, before this returns."""
        for receiver in self._receivers:
            receiver(event)


KeysOf: TypeAlias = Callable[[T | None, T | None], Iterable[str]]
"""The keys that a change concerns; the arguments are those of a cache's listener."""
Run: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_KEYS_PER_TURN = 100


class Term:
    """What a setup declares its part of a term on. Made and run by the manager."""

    def __init__(
        self,
        stack: ExitStack,
        *,
        metrics: ReconcileMetrics,
        log: FilteringBoundLogger,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._stack = stack
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._random = random
        self._controllers: list[TermController] = []
        self._runnables: dict[str, tuple[Run, tuple[Cache[Any], ...]]] = {}

    def subscribe(self, cache: Cache[T], listener: Listener[T]) -> None:
        """Call `listener` for each object and change of `cache` until the term ends: for a derived index of this term.

        At once, also while the cache is not synced. (An index that lives as long as the process subscribes itself to
        the cache.)
        """
        # First, as subscribing calls the listener, which may raise.
        self._stack.callback(_unsubscribe, cache, listener)
        cache.subscribe(listener)

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` when everything of the term has ended; the last one registered is called first."""
        self._stack.callback(callback)

    def controller(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        workers: int = 1,
        timeout: float = RECONCILE_TIMEOUT,
        backoff: Backoff = RETRY_BACKOFF,
        expected_errors: tuple[type[Exception], ...] = (),
    ) -> "TermController":
        """A controller of that name, which labels its metrics; see `coil.reconcile.controller` for its contract.

        `timeout` is in seconds for one reconcile. `expected_errors` are retried like any other, and logged without a
        traceback. Raises ValueError for a name that is taken.
        """
        if any(other.name == name for other in self._controllers):
            raise ValueError(f"there is a controller named {name!r} already")
        queue = WorkQueue(name, metrics=self._metrics, backoff=backoff, clock=self._clock, random=self._random)
        self._stack.callback(queue.close)
        engine = Controller(
            name,
            reconcile,
            queue=queue,
            metrics=self._metrics,
            log=self._log,
            workers=workers,
            timeout=timeout,
            expected_errors=expected_errors,
        )
        controller = TermController(self, engine, log=self._log.bind(controller=name))
        self._controllers.append(controller)
        return controller

    def add_runnable(self, name: str, run: Run, *, after: Iterable[Cache[Any]] = ()) -> None:
        """Run `run()` beside the controllers, once the caches `after` are synced, until the term ends.

        It must not return before it is cancelled, and let the cancellation through. Raises ValueError for a name that
        is taken.
        """
        if name in self._runnables:
            raise ValueError(f"there is a runnable named {name!r} already")
        self._runnables[name] = run, tuple(after)

    async def run(self) -> None:
        """Work until cancelled; no task is left then. What one of them raises ends all and is raised as a group."""
        for controller in self._controllers:
            controller.open_if_synced()
        async with asyncio.TaskGroup() as group:
            for controller in self._controllers:
                group.create_task(controller.run(), name=controller.name)
            for name, (run, after) in self._runnables.items():
                group.create_task(self._run(name, run, after), name=name)
            await asyncio.get_running_loop().create_future()  # a term without tasks lasts, too

    async def _run(self, name: str, run: Run, after: Iterable[Cache[Any]]) -> None:
        await wait_synced(after, log=self._log.bind(runnable=name))
        await run()
        raise RuntimeError(f"the runnable {name!r} ended, though it was to run until the end of the term")


class TermController:
    """A controller of a term: what it watches and when it looks at everything again. Declared beside `reconcile`:

    def setup(self, term: Term) -> None:
        controller = term.controller("blockrequest", self.reconcile, workers=16)
        controller.watch(self._requests, new_requests)
        controller.resync(self.dangling_requests, every=3600)
    """

    def __init__(self, term: Term, engine: Controller, *, log: FilteringBoundLogger) -> None:
        self.name = engine.name
        self._term = term
        self._engine = engine
        self._log = log
        self._needed: list[Cache[Any]] = []
        self._watches: list[_Watch[Any]] = []
        self._resyncs: list[_Resync] = []
        self._opened = False

    def watch(self, cache: Cache[T], keys_of: KeysOf[T], *, batch_window: float = 0.0, optional: bool = False) -> None:
        """Reconcile the keys that `keys_of(old, new)` names for each change, present objects included.

        With `batch_window`, that many seconds after the first of several changes. See `Controller.watch`. An `optional`
        cache does not hold up the controller: `reconcile` may find it not synced, and has to look.
        """
        self._watches.append(_Watch(cache, keys_of, batch_window))
        if not optional:
            self.needs(cache)

    def needs(self, *caches: Cache[Any]) -> None:
        """Do not open before these are synced: caches that `reconcile`, or an index that it uses, reads unwatched."""
        self._needed.extend(caches)

    def watch_channel(
        self, channel: Channel[T], keys_of: Callable[[T], Iterable[str]], *, batch_window: float = 0.0
    ) -> None:
        """Reconcile the keys that `keys_of(event)` names for each event that is sent from now on."""

        def receive(event: T) -> None:
            for key in keys_of(event):
                self._engine.enqueue(key, delay=batch_window)

        channel.subscribe(receive)

    def enqueue(self, key: str, *, delay: float = 0.0) -> None:
        """Reconcile `key` in `delay` seconds, unless something makes it due earlier."""
        self._engine.enqueue(key, delay=delay)

    def resync(
        self, keys: Callable[[], Iterable[str] | AsyncIterable[str]], *, every: float, at_start: bool = False
    ) -> None:
        """Reconcile all of `keys()` every so many seconds: what no event tells of, or an event was missed for.

        With `at_start` also when the controller is opened. The keys may be an async iterable, which hands control back
        to the event loop while it looks for them.
        """
        self._resyncs.append(_Resync(keys, every, at_start))

    def open_if_synced(self) -> None:
        """Let the watches hear of what is there, if every needed cache is synced. Idempotent."""
        if self._opened or not all(cache.synced for cache in self._needed):
            return
        self._opened = True
        for watch in self._watches:
            watch.open(self._term, self._engine)

    async def run(self) -> None:
        """Wait until the controller can be opened, then work until cancelled."""
        await wait_synced(self._needed, log=self._log)
        self.open_if_synced()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._engine.run(), name=f"{self.name}-workers")
            for resync in self._resyncs:
                group.create_task(self._repeat(resync), name=f"{self.name}-resync")

    async def _repeat(self, resync: "_Resync") -> None:
        if not resync.at_start:
            await asyncio.sleep(resync.every)
        while True:
            count = 0
            async for key in _each(resync.keys()):
                self._engine.enqueue(key)
                count += 1
                if count % _KEYS_PER_TURN == 0:
                    await asyncio.sleep(0)
            self._log.info("resync", keys=count)
            await asyncio.sleep(resync.every)


@dataclass(frozen=True, slots=True)
class _Watch(Generic[T]):
    cache: Cache[T]
    keys_of: KeysOf[T]
    batch_window: float

    def open(self, term: Term, engine: Controller) -> None:
        listener = engine.listener(self.keys_of, batch_window=self.batch_window)
        term.subscribe(self.cache, listener)


@dataclass(frozen=True, slots=True)
class _Resync:
    keys: Callable[[], Iterable[str] | AsyncIterable[str]]
    every: float
    at_start: bool


def _unsubscribe(cache: Cache[T], listener: Listener[T]) -> None:
    with suppress(ValueError):  # the listener raised while it was being subscribed
        cache.unsubscribe(listener)


async def _each(keys: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[str]:
    if isinstance(keys, AsyncIterable):
        async for key in keys:
            yield key
    else:
        for key in keys:
            yield key
