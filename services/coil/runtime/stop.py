"""The way out of a process: signals ask for a stop, and a deadline sees to it that the stop ends.

SIGTERM and SIGINT ask once; a second one, and the deadline, end the process where it stands, saying what
had not stopped. The signal handler is Python's own and the deadline is a thread: neither needs an event
loop that still turns.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from types import FrameType
from typing import NoReturn


class ExitCode(IntEnum):
    """What a process tells its parent. 2 is argparse's, for settings that cannot be read."""

    STOPPED = 0
    FAILED = 1
    STUCK = 3


class StopDeadline:
    """Ends the process `timeout` seconds after `start` unless `cancel` comes first. Thread-safe.

    `unstopped` says what still runs; it is called from another thread than the one that is stuck.
    """

    def __init__(self, process: str, *, timeout: float, unstopped: Callable[[], list[str]]) -> None:
        self._process = process
        self._timeout = timeout
        self._unstopped = unstopped
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Idempotent: the first start counts."""
        if self._timer is None:
            self._timer = threading.Timer(
                self._timeout, self.exit, args=[f"the stop took longer than {self._timeout:g} s"]
            )
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """Idempotent; a deadline that has passed cannot be cancelled."""
        if self._timer is not None:
            self._timer.cancel()

    def exit(self, reason: str) -> NoReturn:
        """End the process now, with no handlers, no buffers and no waiting. From any thread or signal handler."""
        try:
            unstopped = self._unstopped()
        except Exception as error:  # a report that fails must not keep the process alive
            unstopped = [f"unknown: {type(error).__name__}: {error}"]
        words = {
            "event": "exiting at once",
            "reason": reason,
            "unstopped": unstopped,
            "process": self._process,
            "level": "critical",
            "timestamp": datetime.now(UTC).isoformat(),
        }
        # Not through the logger: the thread that is stuck may hold one of its locks.
        os.write(2, json.dumps(words, ensure_ascii=False).encode() + b"\n")
        os._exit(ExitCode.STUCK)


@contextmanager
def stop_signals(deadline: StopDeadline, ask: Callable[[str], None]) -> Iterator[None]:
    """While entered, SIGTERM and SIGINT start `deadline` and call `ask(name)`; the second one ends the process.

    `ask` is called inside a signal handler and must only schedule. Main thread only.
    """
    asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        name = signal.Signals(number).name
        if asked:
            deadline.exit(f"{name}, after having been asked to stop before")
        asked = True
        deadline.start()
        ask(name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
