"""Waiting for something that will be so in a moment: by looking, with a bound that only a failure reaches."""

import time
from collections.abc import Callable

TIMEOUT = 60.0
_PAUSE = 0.05


def wait_until(holds: Callable[[], object], *, what: str, timeout: float = TIMEOUT, pause: float = _PAUSE) -> None:
    """Return when `holds` does. Raises AssertionError after `timeout` seconds.

    `pause` is to be longer where looking takes the time of those who are waited for.
    """
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s"
        time.sleep(pause)


def settle(find_faults: Callable[[], list[str]], *, after: str, timeout: float = TIMEOUT) -> None:
    """Return when no fault is found any more. Raises AssertionError with those that stay."""
    deadline = time.monotonic() + timeout
    while faults := find_faults():
        assert time.monotonic() < deadline, "\n".join([f"{after}, {timeout:.0f} s later:", *faults])
        time.sleep(_PAUSE)
