"""Lengths of time as Go programs write them: `300ms`, `30s`, `5m`, `1h30m`. Pure; the unit is the second."""

import re

from coil.runtime.flag import kind

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)


@kind("DURATION")
def parse_duration(text: str) -> float:
    """Seconds, never negative. Raises ValueError saying what is expected.

    The grammar is that of Go's time.ParseDuration without a sign: every number has a unit, except "0".
    """
    if text == "0":
        return 0.0
    total, position = 0.0, 0
    while part := _PART.match(text, position):
        total += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    if position == 0 or position != len(text):
        raise ValueError('a length of time such as "500ms", "30s", "5m" or "1h30m"')
    return total


@kind("PERIOD")
def parse_period(text: str) -> float:
    """`parse_duration`, but longer than nothing: for what is repeated or waited for."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError('a length of time above zero, such as "30s" or "5m"')
    return seconds
