"""Where tasks and threads hang: file and line, for the last words of a process that cannot stop.

Read from a thread of its own while the others run on, so an answer is a snapshot and never exact.
"""

import asyncio
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, CoroutineType
from typing import Any

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
