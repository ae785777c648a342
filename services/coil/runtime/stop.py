"""The way out of a process: signals ask for a stop, and a deadline sees to it that the stop ends.

SIGTERM and SIGINT ask once; a second one, and the deadline, end the process where it stands, saying what
had not stopped. The signal handler is Python's own and the deadline is a thread: neither needs an event
loop that still turns. Where tasks and threads hang is read from that thread while the others run on, so it is a
snapshot and never exact.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Any, NoReturn

_ASYNCIO = str(Path(asyncio.__file__).parent)


def task_position(task: asyncio.Task[Any]) -> str:
    """The innermost await of `task` that is not asyncio's own code."""
    steps = []
    inner: object = task.get_coro()
    while isinstance(inner, CoroutineType):
        if inner.cr_frame is not None:
            steps.append((inner.cr_frame.f_code, inner.cr_frame.f_lineno))
        inner = inner.cr_await
    return _innermost(steps)


def thread_positions() -> list[str]:
    """The threads that keep an interpreter from exiting: all but daemons and the main one."""
    frames = sys._current_frames()
    found = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread.daemon or thread is threading.main_thread() or frame is None:
            continue
        steps = []
        while frame is not None:
            steps.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        found.append(f"thread {thread.name} at {_innermost(reversed(steps))}")
    return found


def _innermost(steps: Iterable[tuple[CodeType, int]]) -> str:
    """`file:line` of the last of `steps`, outermost first, that somebody outside asyncio wrote."""
    position = "its end"
    for code, line in steps:
        path = Path(code.co_filename)
        if str(path.parent) != _ASYNCIO or position == "its end":
            position = f"{path.parent.name}/{path.name}:{line}"
    return position


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
