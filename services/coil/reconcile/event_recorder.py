"""Tells people, by Events, what they must act upon. Nothing else ever waits for it, fails by it or reads it.

In the flow: a reconciler or a pod's ADD calls `warn` or `note` and carries on; `event_series` gathers; one task,
`run`, writes one Event at a time.

Why it makes no storm, whatever happens: equal occurrences are one Event with a count, written at most every 30 s;
one object begins few Events (see `event_series`); all writes together keep a pace; after a failure of the API
server everything waits, longer each time. What finds no room is dropped and counted: an Event is a courtesy, the
state of the objects is the truth.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter
from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import EVENTS, MESSAGE_BYTES, Event, EventSource, EventType, ObjectReference
from coil.crd.meta import ObjectMeta
from coil.kube.api_client import ApiClient
from coil.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NamespaceTerminatingError,
    NotFoundError,
)
from coil.reconcile.backoff import Backoff
from coil.reconcile.event_series import REPEAT_SECONDS, Drop, EventLedger, EventSubject, Series, Statement


class EventMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter(
            "event_recorder_writes",
            "Kubernetes Events written, by verb: create is a new one, patch a higher count.",
            ["verb"],
            registry=registry,
        )
        self.drops = Counter(
            "event_recorder_drops",
            "Occurrences that were not reported as an Event, by reason: full, rate_limited, refused, given_up.",
            ["reason"],
            registry=registry,
        )


__all__ = ["EventRecorder", "EventSubject", "Recorder"]

WRITE_PACE = 0.1
"""Seconds between two writes."""
RETRY_BACKOFF = Backoff(base=1.0, cap=60.0)
ATTEMPTS = 12
_LONGEST_RETRY_AFTER = 60.0
_NAME_LENGTH = 253


class Recorder(Protocol):
    """What those who have something to tell depend on. Neither call waits or raises."""

    def warn(self, subject: EventSubject, *, reason: str, message: str) -> None:
        """Somebody has to act. `reason` is one CamelCase word; `message` a sentence that is the same each time."""
        ...

    def note(self, subject: EventSubject, *, reason: str, message: str) -> None:
        """Good to know."""
        ...


class EventRecorder:
    """A `Recorder`. Run `run()` in one task.

    `component` is the program's name, `host` the node it runs on. `now` is the wall clock in UTC, `clock` monotonic
    seconds, `random` gives [0, 1).
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        component: str,
        log: FilteringBoundLogger,
        metrics: EventMetrics,
        host: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._source = EventSource(component=component, host=host)
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._random = random
        # The API keeps whole seconds.
        self._ledger = EventLedger(now=lambda: now().replace(microsecond=0), clock=clock)
        self._heard = asyncio.Event()
        self._failures = 0

    def warn(self, subject: EventSubject, *, reason: str, message: str) -> None:
        self._observe(Statement(subject, EventType.WARNING, reason, _fit(message)))

    def note(self, subject: EventSubject, *, reason: str, message: str) -> None:
        self._observe(Statement(subject, EventType.NORMAL, reason, _fit(message)))

    async def run(self) -> None:
        """Write until cancelled; what is not written by then is lost."""
        while True:
            series = self._ledger.next_series()
            if series is None:
                await self._listen(None)
            elif (wait := series.due - self._clock()) > 0:
                await self._listen(wait)
            else:
                await asyncio.sleep(await self._write(series))

    def _observe(self, statement: Statement) -> None:
        drop = self._ledger.observe(statement)
        if drop is not None:
            self._drop(drop, statement)
        self._heard.set()

    async def _listen(self, timeout: float | None) -> None:
        """Until something happens, at most that long."""
        self._heard.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._heard.wait()

    async def _write(self, series: Series) -> float:
        """One attempt to bring the Event up to date; returns the seconds to leave the API server alone after it."""
        count = series.count
        try:
            await (self._repeat(series) if series.written else self._begin(series))
        except (NotFoundError, ForbiddenError, InvalidError, ConflictError) as error:
            self._refused(series, error)
        except ApiError as error:
            return self._failed(series, error)
        else:
            series.written = count
            series.attempts = 0
            series.due = self._clock() + REPEAT_SECONDS
        self._failures = 0
        return WRITE_PACE

    async def _repeat(self, series: Series) -> None:
        patch = {"count": series.count, "lastTimestamp": series.last.isoformat()}
        namespace = series.statement.subject.event_namespace
        try:
            await self._client.patch(EVENTS, series.name, patch, namespace=namespace)
        except NotFoundError:
            # It has expired, or somebody has deleted it.
            series.name = ""
            await self._begin(series)
        else:
            self._metrics.writes.labels("patch").inc()

    async def _begin(self, series: Series) -> None:
        # Named once, so that a creation that is repeated because its answer was lost makes no second Event.
        series.name = series.name or self._name_event(series.statement.subject.name)
        namespace = series.statement.subject.event_namespace
        with suppress(AlreadyExistsError):
            await self._client.create(EVENTS, self._render(series), namespace=namespace)
        self._metrics.writes.labels("create").inc()

    def _render(self, series: Series) -> Event:
        said = series.statement
        subject = said.subject
        return Event(
            metadata=ObjectMeta(name=series.name, namespace=subject.event_namespace),
            involved_object=ObjectReference(
                api_version=subject.api_version,
                kind=subject.kind,
                name=subject.name,
                namespace=subject.namespace,
                uid=subject.uid,
            ),
            type=said.type,
            reason=said.reason,
            message=said.message,
            source=self._source,
            first_timestamp=series.first,
            last_timestamp=series.last,
            count=series.count,
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
        )

    def _name_event(self, subject: str) -> str:
        suffix = f"{int(self._random() * 2**52):013x}"
        return f"{subject[: _NAME_LENGTH - 1 - len(suffix)].rstrip('-.')}.{suffix}"

    def _refused(self, series: Series, error: ApiError) -> None:
        """Nothing that a repetition could change: the namespace has gone or goes, or the role is too narrow."""
        expected = isinstance(error, NotFoundError | NamespaceTerminatingError)
        report = self._log.debug if expected else self._log.warning
        report("event refused", error=error.message, reason=series.statement.reason)
        self._ledger.forget(series)
        self._drop(Drop.REFUSED, series.statement)

    def _failed(self, series: Series, error: ApiError) -> float:
        series.attempts += 1
        pause = RETRY_BACKOFF.delay(self._failures, self._random)
        if error.retry_after is not None:
            pause = max(pause, min(error.retry_after, _LONGEST_RETRY_AFTER))
        self._failures += 1
        # Behind the others, so that one that cannot be written does not hold them up.
        series.due = self._clock() + pause
        if series.attempts >= ATTEMPTS:
            self._log.warning("event given up", error=error.message, reason=series.statement.reason)
            self._ledger.forget(series)
            self._drop(Drop.GIVEN_UP, series.statement)
        return pause

    def _drop(self, drop: Drop, statement: Statement) -> None:
        self._metrics.drops.labels(drop.value).inc()
        self._log.debug("event dropped", dropped=drop.value, reason=statement.reason, subject=statement.subject.name)


def _fit(message: str) -> str:
    """The message within the API's limit, which counts bytes, and without what JSON cannot carry."""
    data = message.encode(errors="replace")
    if len(data) <= MESSAGE_BYTES:
        return data.decode()
    mark = "…"
    return data[: MESSAGE_BYTES - len(mark.encode())].decode(errors="ignore") + mark
