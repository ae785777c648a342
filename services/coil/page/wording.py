"""Numbers and times as people read them. English, UTC."""

from datetime import UTC, datetime

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_EXACT = 10**7
_PERIODS = ((86400, "d"), (3600, "h"), (60, "min"))


def count_text(number: int) -> str:
    """`12,345`; from ten millions on `1.8×10¹⁹`, since a pool may have 2^64 addresses and more."""
    if abs(number) < _EXACT:
        return f"{number:,}"
    digits = str(number)
    return f"{digits[0]}.{digits[1]}\N{MULTIPLICATION SIGN}10{str(len(digits) - 1).translate(_SUPERSCRIPTS)}"


def noun(number: int, singular: str, plural: str = "") -> str:
    """`1 block`, `2 blocks`; `plural` for words that do not just take an s."""
    return f"{count_text(number)} {singular if number == 1 else plural or singular + 's'}"


def percent_text(part: int, whole: int) -> str:
    """Whole percents, downwards: only all is 100 %, and only nothing 0 %."""
    if part <= 0 or whole <= 0:
        return "0 %"
    return f"{100 * part // whole} %" if 100 * part >= whole else "< 1 %"


def age_text(since: datetime, now: datetime) -> str:
    """`3 h`: in the largest unit that fits. No seconds, so that a page does not change for them alone."""
    seconds = int((now - since).total_seconds())
    for length, unit in _PERIODS:
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return "< 1 min"


def stamp(moment: datetime) -> str:
    """ISO 8601 in UTC to the second, with `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock_text(moment: datetime) -> str:
    """`2030-01-01 12:00:07 UTC`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span_text(seconds: float) -> str:
    """A length of time: `1 h`, `90 min`, `45 s`; in the largest unit that divides it."""
    whole = round(seconds)
    for length, unit in _PERIODS:
        if whole and whole % length == 0:
            return f"{whole // length} {unit}"
    return f"{whole} s"
