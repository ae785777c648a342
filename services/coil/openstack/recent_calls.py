"""The calls to OpenStack of the last minutes, for people: how many, how long, and what was refused. Bounded."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from coil.openstack.error import OpenStackError

SPAN: Final = 300.0
"""Seconds that are remembered."""
STEP: Final = 10.0
"""Seconds that are remembered, and forgotten, together."""
ERRORS: Final = 20
"""Errors that are remembered in their own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    """A call that was refused or not answered. `code` is the type of the error in the service's words."""

    at: datetime
    call: str
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTotals:
    """Of the calls of one name. `seconds` is their duration in all."""

    count: int
    errors: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsSnapshot:
    """The calls that ended in the last `span` seconds, by their names, and the last errors, the newest first."""

    span: float
    calls: dict[str, CallTotals]
    errors: tuple[CallError, ...]


@dataclass(slots=True)
class _Step:
    """The calls that ended in `STEP` seconds from `start` on."""

    start: float
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)


class RecentCalls:
    """One for each process. `clock` is in monotonic seconds, `now` the wall clock in UTC.

    What it keeps is `SPAN / STEP` sums for each name of a call, of which there are some thirty.
    """

    def __init__(self, *, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._clock = clock
        self._now = now
        self._born = clock()
        self._steps: deque[_Step] = deque()
        self._errors: deque[CallError] = deque(maxlen=ERRORS)

    def observe(self, call: str, seconds: float, error: OpenStackError | None) -> None:
        """A call is over."""
        step = self._step()
        step.counts[call] += 1
        step.seconds[call] = step.seconds.get(call, 0.0) + seconds
        if error is not None:
            step.errors[call] += 1
            self._errors.appendleft(CallError(at=self._now(), call=call, code=error.code, message=error.message))

    def read(self) -> CallsSnapshot:
        """The calls up to now."""
        self._forget()
        counts: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        seconds: dict[str, float] = {}
        for step in self._steps:
            counts.update(step.counts)
            errors.update(step.errors)
            for call, duration in step.seconds.items():
                seconds[call] = seconds.get(call, 0.0) + duration
        totals = {
            call: CallTotals(count=count, errors=errors[call], seconds=seconds[call]) for call, count in counts.items()
        }
        span = min(SPAN, max(self._clock() - self._born, STEP))
        return CallsSnapshot(span=span, calls=totals, errors=tuple(self._errors))

    def _step(self) -> _Step:
        self._forget()
        now = self._clock()
        if not self._steps or now - self._steps[-1].start >= STEP:
            self._steps.append(_Step(now))
        return self._steps[-1]

    def _forget(self) -> None:
        oldest = self._clock() - SPAN
        while self._steps and self._steps[0].start < oldest:
            self._steps.popleft()
