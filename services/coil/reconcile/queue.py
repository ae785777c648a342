"""The keys that need attention, between the informers that notice and the workers that act.

A key is `namespace/name` or `name`; the queue never carries what changed, because a worker must look at
the present state anyway. Everything is synchronous and single-threaded (one event loop) except `get`,
which is the synchronous `get_nowait` and a wait.

Invariants:
* a key is handed to one worker at a time; added while in work, it is handed out once more after `done`;
* a key waits once, however often it was added, and keys are handed out in the order they became ready;
* of several delays for one key the earliest wins, and being ready is earlier than any delay;
* the queue knows at most `limit` distinct keys (waiting, delayed, in work or counted as failing).
"""

import asyncio
import heapq
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from coil.reconcile.backoff import Backoff
from coil.reconcile.metric import ReconcileMetrics

# client-go's spread: a conflict is retried at once, a broken dependency every few minutes.
RETRY_BACKOFF = Backoff(base=0.05, cap=300.0)

# Keys stand for objects that a cache already holds, at a kilobyte and more each; the queue's own 200
# bytes a key never are what fills the memory first. The limit catches a producer that invents keys.
KEY_LIMIT = 1_000_000

_STALE_ENTRIES = 64


class QueueEmptyError(Exception):
    """No key is ready now."""


class QueueClosedError(Exception):
    """The queue was closed and every key that was ready has been handed out."""


class QueueFullError(Exception):
    """A new key would be one more than the limit; known keys are still accepted."""


@dataclass(slots=True)
class _Entry:
    """What is known of one key. An entry in which nothing is set is dropped."""

    ready: bool = False  # waits for a worker, or will as soon as `working` ends
    working: bool = False
    due: float | None = None  # when a delay makes it ready
    failures: int = 0
    since: float = 0.0  # when it became ready; while only working, when the work began

    @property
    def idle(self) -> bool:
        return not (self.ready or self.working or self.failures) and self.due is None


class WorkQueue:
    """See the module. `clock` is monotonic seconds and `random` gives [0, 1), both for tests to replace.

    `name` labels the metrics. Bound to the event loop in which `get` waits.
    """

    def __init__(
        self,
        name: str,
        *,
        metrics: ReconcileMetrics,
        backoff: Backoff = RETRY_BACKOFF,
        limit: int = KEY_LIMIT,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self._backoff = backoff
        self._limit = limit
        self._clock = clock
        self._random = random
        self._entries: dict[str, _Entry] = {}
        self._ready: deque[str] = deque()
        self._delayed: list[tuple[float, str]] = []  # a heap; an entry that no longer matches is skipped
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._depth = metrics.depth.labels(name)
        self._adds = metrics.adds.labels(name)
        self._retries = metrics.retries.labels(name)
        self._wait_seconds = metrics.wait_seconds.labels(name)
        self._work_seconds = metrics.work_seconds.labels(name)

    def __len__(self) -> int:
        """Keys that are ready now and not in work; delayed keys are not counted."""
        return len(self._ready)

    def add(self, key: str) -> None:
        """Make `key` ready now; a delay that was pending is over. Ignored after `close`.

        Raises QueueFullError for a new key beyond the limit, and then nothing has changed.
        """
        if not self._closed:
            self._promote()
            self._make_ready(key, self._entry(key))

    def add_after(self, key: str, delay: float) -> None:
        """Make `key` ready in `delay` seconds unless it is, or becomes, ready earlier.

        The delay runs on while the key is in work. Errors and closing as for `add`.
        """
        if self._closed:
            return
        if delay <= 0:
            self.add(key)
            return
        entry = self._entry(key)
        due = self._clock() + delay
        if entry.ready or (entry.due is not None and entry.due <= due):
            return
        entry.due = due
        heapq.heappush(self._delayed, (due, key))
        self._arm()

    def retry(self, key: str) -> float:
        """Count a failure of `key` and add it after its backoff; returns that delay in seconds.

        A key that changes meanwhile is added by the event and does not wait for the backoff.
        """
        entry = self._entry(key)
        delay = self._backoff.delay(entry.failures, self._random)
        entry.failures += 1
        self._retries.inc()
        self.add_after(key, delay)
        return delay

    def forget(self, key: str) -> None:
        """Reset the failures of `key`: its next backoff starts small. Does not remove it from the queue."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.failures = 0
            self._drop_if_idle(key, entry)

    def failures(self, key: str) -> int:
        """How often `key` was retried since it was last forgotten."""
        entry = self._entries.get(key)
        return entry.failures if entry is not None else 0

    def get_nowait(self) -> str:
        """The key that has been ready longest; it is in work until `done`.

        Raises QueueEmptyError, or QueueClosedError once a closed queue has been drained.
        """
        self._promote()
        if not self._ready:
            raise QueueClosedError if self._closed and not self._unfinished() else QueueEmptyError
        key = self._ready.popleft()
        entry = self._entries[key]
        now = self._clock()
        self._wait_seconds.observe(now - entry.since)
        self._depth.set(len(self._ready))
        entry.ready = False
        entry.working = True
        entry.since = now
        return key

    async def get(self) -> str:
        """`get_nowait`, waiting for a key. Raises QueueClosedError when a closed queue is drained.

        Cancellation takes no key: one that was about to be handed out goes to another waiter.
        """
        while True:
            try:
                return self.get_nowait()
            except QueueEmptyError:
                pass
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._arm()
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._wake_one()  # it was our wake-up; the key must not wait for the next event
                elif waiter in self._waiters:
                    self._waiters.remove(waiter)
                raise

    def done(self, key: str) -> None:
        """The work on `key`, begun by `get`, has ended, well or not. Added meanwhile, it is ready again.

        Raises ValueError when `key` is not in work.
        """
        entry = self._entries.get(key)
        if entry is None or not entry.working:
            raise ValueError(f"{key!r} is not in work in queue {self.name!r}")
        self._promote()
        now = self._clock()
        self._work_seconds.observe(now - entry.since)
        entry.working = False
        entry.since = now
        if entry.ready:
            self._enqueue(key)
        else:
            self._drop_if_idle(key, entry)
        if self._closed and not self._unfinished():
            self._wake_all()

    def close(self) -> None:
        """Accept nothing more and forget the delays; what is ready is still handed out, then `get` raises.

        A key that was added while in work counts as ready. Idempotent.
        """
        self._closed = True
        self._delayed.clear()
        for key, entry in list(self._entries.items()):
            entry.due = None
            self._drop_if_idle(key, entry)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_all()

    def _entry(self, key: str) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self._limit:
                raise QueueFullError(f"queue {self.name!r} knows {self._limit} keys and refuses {key!r}")
            entry = self._entries[key] = _Entry()
        return entry

    def _drop_if_idle(self, key: str, entry: _Entry) -> None:
        if entry.idle:
            del self._entries[key]

    def _unfinished(self) -> bool:
        """True while a key is ready, or will be because it was added while in work."""
        return bool(self._ready) or any(entry.ready for entry in self._entries.values())

    def _make_ready(self, key: str, entry: _Entry) -> None:
        entry.due = None
        if entry.ready:
            return
        entry.ready = True
        if not entry.working:
            entry.since = self._clock()
            self._enqueue(key)

    def _enqueue(self, key: str) -> None:
        self._ready.append(key)
        self._adds.inc()
        self._depth.set(len(self._ready))
        self._wake_one()

    def _promote(self) -> None:
        """Make every key ready whose delay is over."""
        now = self._clock()
        while (due := self._next_due()) is not None and due <= now:
            _, key = heapq.heappop(self._delayed)
            self._make_ready(key, self._entries[key])

    def _next_due(self) -> float | None:
        """The earliest delay, after dropping heap entries that an earlier wish has overtaken."""
        if len(self._delayed) > 2 * len(self._entries) + _STALE_ENTRIES:
            # An object that is resynced hourly and changes each second would leave an entry a second.
            self._delayed = [(e.due, key) for key, e in self._entries.items() if e.due is not None]
            heapq.heapify(self._delayed)
        while self._delayed:
            due, key = self._delayed[0]
            entry = self._entries.get(key)
            if entry is not None and entry.due == due:
                return due
            heapq.heappop(self._delayed)
        return None

    def _arm(self) -> None:
        """Have somebody look again when the earliest delay ends; nobody waits, nobody needs it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._next_due()
        if due is not None and self._waiters:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_due)

    def _on_due(self) -> None:
        self._timer = None
        self._promote()
        self._arm()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake_one()
