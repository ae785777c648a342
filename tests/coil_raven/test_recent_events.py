"""The last Events that were told."""

from datetime import UTC, datetime, timedelta

from coil.reconcile.event_series import EventSubject
from coil_raven.recent_events import MOST, RecentEvents
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def pod(name: str) -> EventSubject:
    return EventSubject("v1", "Pod", name, "default", f"uid-{name}")


def test_they_are_told_on_and_remembered_the_newest_first() -> None:
    recorder = MemoryRecorder()
    events = RecentEvents(recorder, now=Clock())
    events.warn(pod("a"), reason="NoPort", message="no")
    events.note(pod("b"), reason="Fine", message="yes")
    events.warn(pod("a"), reason="NoPort", message="no")
    assert [(told.type, told.name, told.reason) for told in recorder.told] == [
        ("Warning", "a", "NoPort"),
        ("Normal", "b", "Fine"),
        ("Warning", "a", "NoPort"),
    ]
    assert [(each.statement.subject.name, each.count, each.at - NOON) for each in events.read()] == [
        ("a", 2, timedelta(seconds=3)),
        ("b", 1, timedelta(seconds=2)),
    ]


def test_the_oldest_are_forgotten() -> None:
    events = RecentEvents(MemoryRecorder(), now=Clock())
    for number in range(MOST + 3):
        events.warn(pod(f"pod-{number}"), reason="NoPort", message="no")
    assert [each.statement.subject.name for each in events.read()] == [f"pod-{MOST + 2 - n}" for n in range(MOST)]
