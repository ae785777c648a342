"""The calls of the last minutes."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from coil.openstack.error import OpenStackError, QuotaError
from coil.openstack.recent_calls import ERRORS, SPAN, STEP, CallTotals, RecentCalls

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
QUOTA = QuotaError("create port", "OverQuota", "no more ports")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_calls_are_counted_by_name() -> None:
    calls = RecentCalls(clock=Clock(), now=lambda: NOON)
    calls.observe("create port", 0.5, None)
    calls.observe("create port", 1.5, QUOTA)
    calls.observe("list ports", 0.25, None)
    found = calls.read()
    assert found.calls == {
        "create port": CallTotals(count=2, errors=1, seconds=2.0),
        "list ports": CallTotals(count=1, errors=0, seconds=0.25),
    }
    assert [(each.at, each.call, each.code, each.message) for each in found.errors] == [
        (NOON, "create port", "OverQuota", "no more ports")
    ]


def test_the_newest_errors_are_kept() -> None:
    calls = RecentCalls(clock=Clock(), now=lambda: NOON)
    for number in range(ERRORS + 5):
        calls.observe("list ports", 0.1, OpenStackError("list ports", str(number), "no"))
    assert [each.code for each in calls.read().errors] == [str(ERRORS + 4 - place) for place in range(ERRORS)]


def test_a_young_process_has_a_short_past() -> None:
    clock = Clock()
    calls = RecentCalls(clock=clock, now=lambda: NOON)
    assert calls.read().span == STEP
    clock.now += 60.0
    assert calls.read().span == 60.0
    clock.now += SPAN
    assert calls.read().span == SPAN


@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.sampled_from(["a", "b"]), st.booleans()), max_size=60))
def test_what_is_counted_is_what_ended_within_the_span(history: list[tuple[float, str, bool]]) -> None:
    clock = Clock()
    calls = RecentCalls(clock=clock, now=lambda: NOON)
    ended: list[tuple[float, str, bool]] = []
    for pause, call, failed in history:
        clock.now += pause
        ended.append((clock.now, call, failed))
        calls.observe(call, 1.0, QUOTA if failed else None)
    found = calls.read().calls
    for call in ("a", "b"):
        surely = [failed for at, name, failed in ended if name == call and at > clock.now - SPAN + STEP]
        perhaps = [failed for at, name, failed in ended if name == call and at >= clock.now - SPAN]
        total = found.get(call, CallTotals(count=0, errors=0, seconds=0.0))
        assert len(surely) <= total.count <= len(perhaps)
        assert sum(surely) <= total.errors <= sum(perhaps)
        assert total.seconds == total.count
