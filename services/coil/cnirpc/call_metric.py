"""What the CNI server of a process tells Prometheus: how long its calls take and how they end.

Measured around everything that is done for a call: admission, the service, the writing of the answer. The cost of a
measurement is a few microseconds.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

OK = "ok"
CANCELLED = "cancelled"
"""The caller had gone, or what it had sent was no call."""

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Refusal(StrEnum):
    """Why a call was sent away with TRY_AGAIN_LATER by the server itself, not by the service."""

    BUSY = "busy"
    STOPPING = "stopping"
    LATE = "late"
    """It was let in, and not done in time."""


@dataclass(slots=True)
class MeasuredCall:
    """`outcome` is `OK`, `CANCELLED`, or the name of the CNI error code."""

    outcome: str = OK


class CallMetrics:
    """One per registry. Labels take few values: operations, codes and refusals are enumerations."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "coil_cni_operation_duration_seconds",
            "Length of a CNI operation, by outcome: ok, the name of the CNI error code, or cancelled by the caller.",
            ["operation", "outcome"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._in_flight = Gauge(
            "coil_cni_operations_in_flight", "CNI operations under way now.", ["operation"], registry=registry
        )
        self._refusals = Counter(
            "coil_cni_refused_operations",
            "CNI operations that the server sent away: busy, stopping, or late.",
            ["reason"],
            registry=registry,
        )
        for refusal in Refusal:
            self._refusals.labels(refusal.value)

    def expect(self, operations: Iterable[str]) -> None:
        """Have a series for each operation before its first call."""
        for operation in operations:
            self._seconds.labels(operation, OK)
            self._in_flight.labels(operation)

    @contextmanager
    def measure(self, operation: str) -> Iterator[MeasuredCall]:
        """Measure the block. An exception is a cancellation unless the outcome says otherwise."""
        call = MeasuredCall()
        in_flight = self._in_flight.labels(operation)
        in_flight.inc()
        began = time.perf_counter()
        try:
            yield call
        except BaseException:
            if call.outcome == OK:
                call.outcome = CANCELLED
            raise
        finally:
            in_flight.dec()
            self._seconds.labels(operation, call.outcome).observe(time.perf_counter() - began)

    def refused(self, refusal: Refusal) -> None:
        self._refusals.labels(refusal.value).inc()
