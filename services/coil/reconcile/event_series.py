"""What has happened, gathered so that it can be written down in few words. Pure bookkeeping for `event_recorder`.

Occurrences that say the same of the same object are one series, whose Event counts them. Invariants:
* at most `limit` series are known; of those with nothing left to write the one that was seen longest ago makes
  room, and if all have, the new one is dropped;
* a series is not due before its pause is over, so it costs a write a `REPEAT_SECONDS`, however often it happens;
* an object begins at most `SUBJECT_BURST` series at once and then one a `SUBJECT_REFILL_SECONDS`, so that messages
  which differ each time make no storm either.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from coil.crd.builtin import CLUSTER_EVENT_NAMESPACE, EventType
from coil.crd.meta import ObjectMeta
from coil.crd.resource import Resource

WINDOW_SECONDS = 600.0
"""A series that was silent for longer is over: the next occurrence begins another Event."""
REPEAT_SECONDS = 30.0
SUBJECT_BURST = 10
SUBJECT_REFILL_SECONDS = 60.0
SERIES_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class EventSubject:
    """The object that an Event is about. `namespace` is "" for a cluster kind, `uid` "" when nobody told it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    @classmethod
    def of(cls, resource: Resource[Any], metadata: ObjectMeta) -> "EventSubject":
        return cls(resource.api_version, resource.kind, metadata.name, metadata.namespace, metadata.uid)

    @property
    def event_namespace(self) -> str:
        """Where its Events are kept."""
        return self.namespace or CLUSTER_EVENT_NAMESPACE


class Drop(Enum):
    """Why an occurrence, or what is left of its series, is not written."""

    FULL = "full"
    RATE_LIMITED = "rate_limited"
    REFUSED = "refused"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class Statement:
    """What is said of a subject: what two occurrences must share to be one series."""

    subject: EventSubject
    type: EventType
    reason: str
    message: str


@dataclass(slots=True)
class Series:
    """One Event and what has happened since it was last written. `due` is monotonic."""

    statement: Statement
    first: datetime
    last: datetime
    seen: float
    due: float
    count: int = 1
    written: int = 0  # the count that the Event shows
    name: str = ""  # of the Event, "" until it is written for the first time
    attempts: int = 0  # failures in a row

    @property
    def pending(self) -> bool:
        return self.count > self.written


@dataclass(slots=True)
class _Allowance:
    """A subject's token bucket."""

    tokens: float
    since: float


@dataclass
class EventLedger:
    """Synchronous, single-threaded. `clock` is monotonic seconds, `now` the wall clock in UTC."""

    now: Callable[[], datetime]
    clock: Callable[[], float]
    limit: int = SERIES_LIMIT
    _series: OrderedDict[Statement, Series] = field(default_factory=OrderedDict)
    _allowances: OrderedDict[EventSubject, _Allowance] = field(default_factory=OrderedDict)

    def observe(self, statement: Statement) -> Drop | None:
        """Count one occurrence. Returns why it was dropped, None when it was not."""
        now = self.clock()
        known = self._series.get(statement)
        if known is not None and (known.pending or now - known.seen <= WINDOW_SECONDS):
            known.count += 1
            known.last = self.now()
            known.seen = now
            self._series.move_to_end(statement)
            return None
        if known is None and not self._make_room():
            return Drop.FULL
        if not self._spend(statement.subject):
            return Drop.RATE_LIMITED
        wall = self.now()
        self._series[statement] = Series(statement, first=wall, last=wall, seen=now, due=now)
        self._series.move_to_end(statement)
        return None

    def next_series(self) -> Series | None:
        """The one of those with something to write that is due first; it may be due later than now."""
        return min((series for series in self._series.values() if series.pending), key=lambda s: s.due, default=None)

    def forget(self, series: Series) -> None:
        """It is not written any more: the next occurrence begins another."""
        self._series.pop(series.statement, None)

    def _make_room(self) -> bool:
        if len(self._series) < self.limit:
            return True
        idle = next((statement for statement, series in self._series.items() if not series.pending), None)
        if idle is None:
            return False
        del self._series[idle]
        return True

    def _spend(self, subject: EventSubject) -> bool:
        now = self.clock()
        allowance = self._allowances.get(subject)
        if allowance is None:
            if len(self._allowances) >= self.limit:
                self._allowances.popitem(last=False)
            allowance = self._allowances[subject] = _Allowance(SUBJECT_BURST, now)
        refilled = allowance.tokens + (now - allowance.since) / SUBJECT_REFILL_SECONDS
        allowance.tokens, allowance.since = min(SUBJECT_BURST, refilled), now
        self._allowances.move_to_end(subject)
        if allowance.tokens < 1:
            return False
        allowance.tokens -= 1
        return True
