"""The last Events that this process has told, for people; told on to the recorder that writes them."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from coil.crd.builtin import EventType
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject, Statement

MOST: Final = 50
"""Events that are remembered; equal ones are one."""


@dataclass(frozen=True, slots=True)
class RecentEvent:
    """What was told `count` times; the last time at `at`."""

    statement: Statement
    at: datetime
    count: int = 1


class RecentEvents:
    """A `Recorder` in front of another. `now` is the wall clock in UTC. Bounded: `MOST` statements."""

    def __init__(self, recorder: Recorder, *, now: Callable[[], datetime]) -> None:
        self._recorder = recorder
        self._now = now
        self._events: OrderedDict[Statement, RecentEvent] = OrderedDict()

    def warn(self, subject: EventSubject, *, reason: str, message: str) -> None:
        """See `Recorder`."""
        self._remember(Statement(subject, EventType.WARNING, reason, message))
        self._recorder.warn(subject, reason=reason, message=message)

    def note(self, subject: EventSubject, *, reason: str, message: str) -> None:
        """See `Recorder`."""
        self._remember(Statement(subject, EventType.NORMAL, reason, message))
        self._recorder.note(subject, reason=reason, message=message)

    def read(self) -> tuple[RecentEvent, ...]:
        """The newest first."""
        return tuple(reversed(self._events.values()))

    def _remember(self, statement: Statement) -> None:
        known = self._events.pop(statement, None)
        now = self._now()
        self._events[statement] = (
            RecentEvent(statement, now) if known is None else replace(known, at=now, count=known.count + 1)
        )
        if len(self._events) > MOST:
            self._events.popitem(last=False)
