"""Waiting for something that will be so in a moment: by looking, with a bound that only a failure reaches."""

import time
from collections.abc import Callable

TIMEOUT = 180.0
"""Seconds. No test may judge by it how fast something is: a machine may have one processor and much else to do."""
_PAUSE = 0.05
_LONGEST_PAUSE = 0.5


def wait_until(holds: Callable[[], object], *, what: str, timeout: float = TIMEOUT, pause: float = _PAUSE) -> None:
    """Return when `holds` does. Raises AssertionError after `timeout` seconds.

    Between two looks it waits for as long as the first has taken, but `pause` at least.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        if holds():
            return
        assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s"
        _pause_after_look(began, pause)


def wait_until_clean(find_faults: Callable[[], list[str]], *, after: str, timeout: float = TIMEOUT) -> None:
    """Return when no fault is found any more. Raises AssertionError with those that stay."""
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        if not (faults := find_faults()):
            return
        assert time.monotonic() < deadline, "\n".join([f"{after}, {timeout:.0f} s later:", *faults])
        _pause_after_look(began, _PAUSE)


def _pause_after_look(began: float, shortest: float) -> None:
    """To look takes time of those who are waited for; so it does no more than half of the time."""
    time.sleep(max(shortest, min(time.monotonic() - began, _LONGEST_PAUSE)))
