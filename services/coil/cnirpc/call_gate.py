"""A call's way through the server: how many are worked on at once, until when their callers wait, and what of that
Prometheus is told.

Invariant: at most `running` calls are inside `run` past the slot, at most `running + queued` inside it at all.
What comes on top, or after `close`, is refused at once with TRY_AGAIN_LATER: the runtime asks again.

`call_deadline` is when the caller of the call that is being served stops listening: its gRPC deadline, which
`coil.cnirpc.server` sets around each call. A service reads it to answer, with a reason, before that moment. Later
nobody listens any more, and the caller knows only that the time is over.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from grpclib import GRPCError, Status
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coil.cnirpc.error import CniError, CniErrorCode

OK = "ok"
CANCELLED = "cancelled"
"""The caller had gone, or what it had sent was no call."""

_UNARY = "unary"
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Refusal(StrEnum):
    """Why a call was sent away with TRY_AGAIN_LATER by the server itself, not by the service."""

    BUSY = "busy"
    STOPPING = "stopping"
    LATE = "late"
    """It was let in, and not done in time."""


@dataclass(slots=True)
class MeasuredCall:
    """`outcome` is `OK`, `CANCELLED`, or the name of the CNI error code; `error` says why it failed, where that is
    known. When the call has ended, `code` is that of gRPC, and `seconds` is how long it took.
    """

    outcome: str = OK
    error: str = ""
    code: str = ""
    seconds: float = 0.0


class CallMetrics:
    """How long calls take and how they end, measured around everything that is done for a call: admission, the service,
    the writing of the answer.

    One per registry. Labels take few values: operations, codes and refusals are enumerations. Calls are counted once
    more under the names and labels of Coil in Go, which are those of go-grpc-prometheus.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "coil_cni_operation_duration_seconds",
            "Duration of a CNI operation, by outcome: ok, the name of the CNI error code, or cancelled by the caller.",
            ["operation", "outcome"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._in_flight = Gauge(
            "coil_cni_operations_in_flight", "CNI operations under way now.", ["operation"], registry=registry
        )
        self._refusals = Counter(
            "coil_cni_refused_operations",
            "CNI operations that coild rejected: busy, stopping, or late.",
            ["reason"],
            registry=registry,
        )
        for refusal in Refusal:
            self._refusals.labels(refusal.value)
        self._started = Counter(
            "grpc_server_started",
            "Calls that coild has begun to answer.",
            ["grpc_type", "grpc_service", "grpc_method"],
            registry=registry,
        )
        self._handled = Counter(
            "grpc_server_handled",
            "Calls that coild has answered, by the code of gRPC.",
            ["grpc_type", "grpc_service", "grpc_method", "grpc_code"],
            registry=registry,
        )

    def expect(self, methods: Iterable[str]) -> None:
        """Have a series for each method before its first call."""
        for method in methods:
            self._seconds.labels(operation_of(method), OK)
            self._in_flight.labels(operation_of(method))
            self._started.labels(_UNARY, *split_method(method))
            self._handled.labels(_UNARY, *split_method(method), "OK")

    @contextmanager
    def measure(self, method: str, call: MeasuredCall) -> Iterator[None]:
        """Measure the block. An exception is a cancellation unless the outcome says otherwise."""
        status = Status.OK
        operation = operation_of(method)
        in_flight = self._in_flight.labels(operation)
        in_flight.inc()
        self._started.labels(_UNARY, *split_method(method)).inc()
        began = time.perf_counter()
        try:
            yield
        except BaseException as error:
            status = error.status if isinstance(error, GRPCError) else Status.CANCELLED
            if call.outcome == OK:
                call.outcome = CANCELLED
            raise
        finally:
            call.code, call.seconds = _code_of(status), time.perf_counter() - began
            in_flight.dec()
            self._handled.labels(_UNARY, *split_method(method), call.code).inc()
            self._seconds.labels(operation, call.outcome).observe(call.seconds)

    def refused(self, refusal: Refusal) -> None:
        self._refusals.labels(refusal.value).inc()


def operation_of(method: str) -> str:
    """The CNI specification's name: the method /pkg.cnirpc.CNI/Add is the operation ADD."""
    return method.rpartition("/")[2].upper()


def split_method(method: str) -> tuple[str, str]:
    """Service and name: /pkg.cnirpc.CNI/Add is Add of pkg.cnirpc.CNI."""
    service, _, name = method.lstrip("/").partition("/")
    return service, name


def _code_of(status: Status) -> str:
    """As Go's package codes writes it."""
    match status:
        case Status.OK:
            return "OK"
        case Status.CANCELLED:
            return "Canceled"
        case _:
            return status.name.title().replace("_", "")


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """`seconds` bounds a call that came without a deadline, or with a longer one; it includes the queue.

    Beyond `connections`, the oldest are closed on which nothing is asked: a client that forgets its own would take all
    the files that the process may open.
    """

    running: int = 64
    queued: int = 256
    seconds: float = 60.0
    connections: int = 640


class CallRefusedError(CniError):
    """The gate's own answer: TRY_AGAIN_LATER."""

    def __init__(self, refusal: Refusal, msg: str) -> None:
        super().__init__(CniErrorCode.TRY_AGAIN_LATER, msg)
        self.refusal = refusal


class CallGate:
    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.running)
        self._inside: set[asyncio.Timeout] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Refuse calls from now on; those inside go on."""
        self._closed = True

    def expire(self) -> None:
        """The time of every call that is inside is up, at once."""
        now = asyncio.get_running_loop().time()
        for timer in self._inside:
            if not timer.expired():
                timer.reschedule(now)

    async def run(self, call: Callable[[], Awaitable[None]]) -> None:
        """Await `call` when a slot is free. Raises CallRefusedError when refused or out of time.

        A cancellation (the caller's deadline, or its disconnection) cancels the call as well.
        """
        if self._closed:
            raise self._late()
        if len(self._inside) >= self._limits.running + self._limits.queued:
            raise CallRefusedError(Refusal.BUSY, f"coild has {len(self._inside)} calls to answer already")
        timer = asyncio.timeout(self._limits.seconds)
        try:
            async with timer:
                self._inside.add(timer)
                self._empty.clear()
                async with self._slots:
                    await call()
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise self._late() from error
        finally:
            self._inside.discard(timer)
            if not self._inside:
                self._empty.set()

    async def wait_empty(self, seconds: float) -> int:
        """Wait until no call is inside, for `seconds` at most; returns how many still are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        return len(self._inside)

    def _late(self) -> CallRefusedError:
        if self._closed:
            return CallRefusedError(Refusal.STOPPING, "coild is stopping")
        return CallRefusedError(Refusal.LATE, f"coild did not finish within {self._limits.seconds:g} s")


_DEADLINE: ContextVar[float] = ContextVar("deadline of the call", default=math.inf)


def call_deadline() -> float:
    """The moment, by the event loop's clock; infinity outside a call, or for a caller that waits for ever."""
    return _DEADLINE.get()


@contextmanager
def answered_within(seconds: float) -> Iterator[None]:
    """Work inside is for a caller that waits that long from now on."""
    token = _DEADLINE.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _DEADLINE.reset(token)
