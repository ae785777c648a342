"""Workers that bring the world in line with the wishes, one key at a time.

In the flow: informers tell a controller that an object changed, the controller's queue keeps the key, and
a worker calls the service's `reconcile(key)`, which reads the caches, plans with pure code and applies.

The retry contract, stated here once:
* `reconcile` gets a key and nothing else. It looks at the present state, whatever happened before, and may
  be called at any time, again, and after a crash in its middle: it must be idempotent. The object may be
  gone; that, too, is a state to bring about.
* Returning `DONE`: nothing to do until the next event. The key's failures are forgotten.
* Returning `RequeueAfter(seconds)`: look again after that time, or at the next event if that is earlier. Failures
  are forgotten; use it for what is expected to take time, not for errors.
* Raising anything: logged with the key, retried with a per-key exponential backoff for as long as it fails.
  There is no last attempt. A conflict (HTTP 409) is normal and needs no treatment but to be raised.
* Taking longer than the timeout: cancelled, then as if it had raised.
* A key is never in two workers at once. An event during the work leads to one more call after it.

Cancellation: `reconcile` sees CancelledError at its current await, from the timeout or because the
controller stops. It must let it through, in bounded time; a step that must not be torn in two is the
reconciler's to shield. A controller that stops waits for its workers and leaves no task behind.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.kube.errors import ApiError, ConflictError
from coil.reconcile.cache import Cache
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import QueueClosedError, QueueFullError, WorkQueue

T = TypeVar("T")

RECONCILE_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to do until the next event."""


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Look again in `seconds`, or earlier if something happens."""

    seconds: float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a pause before the next look must be positive, not {self.seconds}")


DONE = Done()
Result: TypeAlias = Done | RequeueAfter
Reconcile: TypeAlias = Callable[[str], Awaitable[Result]]


class _Outcome(Enum):
    SUCCESS = "success"
    REQUEUE_AFTER = "requeue_after"
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class Controller:
    """`workers` concurrent calls of `reconcile` at most, each bounded by `timeout` seconds.

    `expected_errors`, and those of the API server, are logged without a traceback; they are retried like any other.
    The queue belongs to the controller: nobody else gets from it. Others may add.
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        queue: WorkQueue,
        metrics: ReconcileMetrics,
        log: FilteringBoundLogger,
        workers: int = 1,
        timeout: float = RECONCILE_TIMEOUT,
        expected_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        if workers < 1:
            raise ValueError(f"controller {name!r} needs a worker, not {workers}")
        self.name = name
        self._reconcile = reconcile
        self._queue = queue
        self._workers = workers
        self._timeout = timeout
        self._expected: tuple[type[Exception], ...] = (ApiError, *expected_errors)
        self._log = log.bind(controller=name)
        self._metrics = metrics
        self._seconds = metrics.reconcile_seconds.labels(name)
        self._busy = metrics.busy_workers.labels(name)
        self._overflow: QueueFullError | None = None

    def watch(
        self, cache: Cache[T], keys_of: Callable[[T | None, T | None], Iterable[str]], *, batch_window: float = 0.0
    ) -> None:
        """Subscribe a `listener` to `cache`, present objects included."""
        cache.subscribe(self.listener(keys_of, batch_window=batch_window))

    def listener(
        self, keys_of: Callable[[T | None, T | None], Iterable[str]], *, batch_window: float = 0.0
    ) -> Callable[[T | None, T | None], None]:
        """A listener that queues the keys which `keys_of(old, new)` names for each change.

        With `batch_window`, that many seconds after the first change: all changes meanwhile lead to one call, which
        bounds the calls for what changes all the time. (A window that each change extended would starve busy keys.)

        `old` is None for a new object, `new` for a deleted one. For a child that points at its owner name
        the keys of both versions, so that the owner it has left is looked at as well.
        """

        def on_change(old: T | None, new: T | None) -> None:
            for key in keys_of(old, new):
                self.enqueue(key, delay=batch_window)

        return on_change

    def enqueue(self, key: str, *, delay: float = 0.0) -> None:
        """Queue `key` in `delay` seconds, unless something makes it due earlier.

        A queue that is full loses a key, and a lost key is a state that nobody looks at: the controller's `run` then
        ends with QueueFullError rather than carry on.
        """
        try:
            self._queue.add_after(key, delay)
        except QueueFullError as error:
            self._overflow = error
            self._queue.close()

    async def run(self) -> None:
        """Work until cancelled, or until the queue was closed and is drained.

        Cancelled: every worker is cancelled in its reconcile and awaited. Raises QueueFullError, see `enqueue`.
        """
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")
        if self._overflow is not None:
            raise self._overflow

    async def _work(self) -> None:
        while True:
            # Neither `get` nor a reconcile that finds nothing to do need ever wait: without this a backlog
            # of ten thousand such keys would keep everything else off the event loop.
            await asyncio.sleep(0)
            try:
                key = await self._queue.get()
            except QueueClosedError:
                return
            try:
                await self._handle(key)
            finally:
                self._queue.done(key)

    async def _handle(self, key: str) -> None:
        """One call and its consequences; raises only when the worker itself is cancelled."""
        outcome = _Outcome.CANCELLED
        limit = asyncio.timeout(self._timeout)
        try:
            with self._busy.track_inprogress(), self._seconds.time():
                async with limit:
                    result = await self._reconcile(key)
        except TimeoutError as error:
            outcome = _Outcome.TIMEOUT if limit.expired() else _Outcome.ERROR
            self._retry(key, error, reason=f"no result after {self._timeout:g} s" if limit.expired() else "")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not ours: something inside was cancelled and its awaiter passed it on. Passing it on further
            # would end this worker in silence, because a cancelled child is no failure for a TaskGroup.
            outcome = _Outcome.ERROR
            self._retry(key, error, reason="something it awaited was cancelled")
        except Exception as error:
            outcome = _Outcome.ERROR
            self._retry(key, error, reason="")
        else:
            self._queue.forget(key)
            match result:
                case RequeueAfter(seconds):
                    outcome = _Outcome.REQUEUE_AFTER
                    self._queue.add_after(key, seconds)
                case Done():
                    outcome = _Outcome.SUCCESS
        finally:
            self._metrics.reconciles.labels(self.name, outcome.value).inc()

    def _retry(self, key: str, error: BaseException, *, reason: str) -> None:
        failures = self._queue.failures(key) + 1
        delay = self._queue.retry(key)
        log = self._log.bind(
            key=key, error=reason or f"{type(error).__name__}: {error}", failures=failures, retry_in=round(delay, 3)
        )
        if isinstance(error, ConflictError):
            log.info("reconcile met a newer version")
        elif isinstance(error, self._expected) or reason:
            log.warning("reconcile failed")
        else:
            log.error("reconcile failed", exc_info=error)
