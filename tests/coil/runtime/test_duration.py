"""Durations in the spelling of Go, whose time.ParseDuration says what is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.runtime.duration import parse_duration, parse_period


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("1h0m0.5s", 3600.5),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        (".5m", 30.0),
        ("2.s", 2.0),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("7ns", 7e-9),
        ("90m", 5400.0),
    ],
)
def test_what_go_accepts(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "5", "5 m", "m", "5x", "-5m", "+5m", "5m ", " 5m", "1h30", "5M", "\u0665s", "1..5s", "inf"]
)
def test_what_it_does_not(text: str) -> None:
    with pytest.raises(ValueError, match='a length of time such as "500ms"'):
        parse_duration(text)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_go_prints_what_it_reads(hours: int, minutes: int, seconds: int, milliseconds: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s{milliseconds}ms"
    assert parse_duration(text) == pytest.approx(hours * 3600 + minutes * 60 + seconds + milliseconds / 1000)


@pytest.mark.parametrize("text", ["0", "0s", "0h0m"])
def test_a_period_is_longer_than_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="above zero"):
        parse_period(text)
