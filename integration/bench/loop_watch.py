"""How long the event loop of a real process was away, and why: measured in the process, asked for from outside.

    coild (`watched_coild`): LoopWatch.run, a task that wakes every millisecond ─► the longest delay, with its parts
    the bench:               ask_stalls ── Unix socket ──► that delay; the next one begins at zero

The kernel says of the loop's thread how long it ran and how long it waited for a processor (proc(5), schedstat). What
is left of a delay was spent asleep: for the interpreter's lock, which a worker's thread held, or one of the kernel's.
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

_PERIOD_SECONDS = 0.001
_ASK_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the clocks say of a thread, in seconds: the time, how long it has run, and has waited for a processor."""

    time: float
    ran: float
    queued: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A delay and its parts, in milliseconds. `ran` may include what the loop did within its period."""

    late_ms: float = 0.0
    ran_ms: float = 0.0
    queued_ms: float = 0.0

    def __str__(self) -> str:
        asleep = max(0.0, self.late_ms - self.ran_ms - self.queued_ms)
        return (
            f"{self.late_ms:.1f} ms: {self.ran_ms:.1f} at work, {self.queued_ms:.1f} waiting for a processor, "
            f"{asleep:.1f} for a lock"
        )


def stall_between(before: Moment, after: Moment, *, period: float = _PERIOD_SECONDS) -> Stall:
    """Between two wakes that should be a period apart."""
    return Stall(
        late_ms=(after.time - before.time - period) * 1000,
        ran_ms=(after.ran - before.ran) * 1000,
        queued_ms=(after.queued - before.queued) * 1000,
    )


def look_at_thread() -> Moment:
    """At the calling one."""
    # A thousand times a second: without the ceremony of a file object.
    statistics = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        ran, queued, _ = os.read(statistics, 64).split()
    finally:
        os.close(statistics)
    return Moment(time=time.perf_counter(), ran=int(ran) / 1e9, queued=int(queued) / 1e9)


class LoopWatch:
    """One for the running loop; `path` is where it is asked. `look` says how its thread is."""

    def __init__(self, path: Path, *, look: Callable[[], Moment] = look_at_thread) -> None:
        self._path = path
        self._look = look
        self._longest = self._busiest = Stall()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with await asyncio.start_unix_server(self._answer, self._path):
            before = self._look()
            while True:
                await asyncio.sleep(_PERIOD_SECONDS)
                now = self._look()
                stall = stall_between(before, now)
                self._longest = max(self._longest, stall, key=lambda known: known.late_ms)
                self._busiest = max(self._busiest, stall, key=lambda known: known.ran_ms)
                before = now

    async def _answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps([asdict(self._longest), asdict(self._busiest)]).encode())
        self._longest = self._busiest = Stall()
        writer.close()
        await writer.wait_closed()


def ask_stalls(path: Path) -> tuple[Stall, Stall]:
    """The longest delay since it was asked before, and the one with the most work in it. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ASK_SECONDS)
        connection.connect(str(path))
        with connection.makefile("rb") as answer:
            longest, busiest = json.loads(answer.read())
    return Stall(**longest), Stall(**busiest)
