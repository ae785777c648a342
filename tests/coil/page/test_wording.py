"""Numbers and times in words."""

from datetime import UTC, datetime, timedelta

import pytest

from coil.page.wording import age_text, clock_text, count_text, noun, percent_text, span_text, stamp

TIMES = "\N{MULTIPLICATION SIGN}"
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (9_999_999, "9,999,999"), (10**7, f"1.0{TIMES}10⁷"), (2**64, f"1.8{TIMES}10¹⁹")]
)
def test_counts(number: int, text: str) -> None:
    assert count_text(number) == text


def test_nouns() -> None:
    assert [noun(number, "block") for number in (0, 1, 2)] == ["0 blocks", "1 block", "2 blocks"]
    assert noun(3, "address", "addresses") == "3 addresses"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 10, "0 %"), (1, 1000, "< 1 %"), (1, 3, "33 %"), (999, 1000, "99 %"), (10, 10, "100 %"), (0, 0, "0 %")],
)
def test_percents(part: int, whole: int, text: str) -> None:
    assert percent_text(part, whole) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "< 1 min"), (59, "< 1 min"), (60, "1 min"), (7199, "1 h"), (200_000, "2 d")]
)
def test_ages(seconds: int, text: str) -> None:
    assert age_text(NOW - timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize(("seconds", "text"), [(3600.0, "1 h"), (5400.0, "90 min"), (45.0, "45 s"), (0.0, "0 s")])
def test_spans(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_moments_are_told_in_utc() -> None:
    there = datetime.fromisoformat("2030-01-01T14:00:07+02:00")
    assert stamp(there) == "2030-01-01T12:00:07Z"
    assert clock_text(there) == "2030-01-01 12:00:07 UTC"
