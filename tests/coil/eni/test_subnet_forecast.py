"""When a subnet runs dry: exact where the past is even, silent where it is short."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.eni.subnet_forecast import MOST_LOOKS, SHORTEST_SPAN, WINDOW, FreeHistory, Look, seconds_until_dry

STEPS = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5000)), max_size=200)


def history(*looks: tuple[float, int]) -> FreeHistory:
    made = FreeHistory()
    for at, free in looks:
        made.note(Look(at, free))
    return made


@given(free=st.integers(1, 60_000), taken=st.integers(1, 60), minutes=st.integers(10, 30))
def test_an_even_consumption_is_carried_on(free: int, taken: int, minutes: int) -> None:
    looks = [(60.0 * minute, free + taken * (minutes - minute)) for minute in range(minutes + 1)]
    left = seconds_until_dry(free, history(*looks).consumption())
    assert left == pytest.approx(60.0 * free / taken)


@given(STEPS)
def test_only_the_window_counts(steps: list[tuple[int, int]]) -> None:
    known = FreeHistory()
    looks: list[Look] = []
    at = 0.0
    for passed, free in steps:
        at += passed
        looks.append(Look(at, free))
        known.note(looks[-1])
    inside = [look for look in looks[-MOST_LOOKS:] if at - look.at <= WINDOW]
    if not inside or at - inside[0].at < SHORTEST_SPAN:
        assert known.consumption() is None
    else:
        assert known.consumption() == pytest.approx((inside[0].free - inside[-1].free) / (at - inside[0].at))


@given(st.integers(-10, 60_000), st.none() | st.floats(-100, 100))
def test_an_estimate_is_never_in_the_past_and_none_only_where_nobody_knows(free: int, rate: float | None) -> None:
    left = seconds_until_dry(free, rate)
    if left is None:
        assert free > 0
        assert rate is None
    else:
        assert left >= 0
        assert (left == 0) == (free <= 0)


@given(st.integers(1, 60_000), st.integers(1, 60_000), st.floats(0.01, 100))
def test_more_addresses_do_for_longer(free: int, more: int, rate: float) -> None:
    fewer, larger = seconds_until_dry(free, rate), seconds_until_dry(free + more, rate)
    assert fewer is not None
    assert larger is not None
    assert fewer < larger


def test_a_short_past_says_nothing() -> None:
    known = history((0, 250), (60, 236), (SHORTEST_SPAN - 1, 222))
    assert known.consumption() is None
    assert seconds_until_dry(222, known.consumption()) is None
    assert FreeHistory().consumption() is None


def test_one_that_fills_up_or_rests_is_never_dry() -> None:
    assert seconds_until_dry(5, history((0, 5), (900, 5)).consumption()) == math.inf
    assert seconds_until_dry(50, history((0, 5), (900, 50)).consumption()) == math.inf


def test_one_without_an_address_is_dry_whatever_the_past_was() -> None:
    assert seconds_until_dry(0, None) == 0
    assert seconds_until_dry(0, history((0, 0), (900, 0)).consumption()) == 0
