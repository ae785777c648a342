"""The watchdog of a leader: ends the process when its lease is about to expire unrenewed.

The leader election stops its work in time, but it lives on the event loop, and something else may sit on
that loop: a system call that does not return, a loop in pure Python. Then neither the renewal nor the
cancellation runs, and the work would carry on, under another leader's eyes, as soon as the loop is free.
So a thread watches the deadline, and what it does about it needs no loop.
"""

import os
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

# sysexits.h EX_TEMPFAIL: nothing is wrong with the configuration; start again.
EXIT_LEASE_EXPIRED = 75

# The clock may run on while timers stand still (suspend), so the deadline is looked at this often.
_LOOK_SECONDS = 0.5


class Watchdog(Protocol):
    """`arm` sets, and moves, the moment at which the process ends; `disarm` calls it off."""

    def arm(self, deadline: float, /) -> None: ...

    def disarm(self) -> None: ...


def exit_now(reason: str) -> NoReturn:
    """End the process at once: no handlers, no buffers, no waiting for a work that does not stop."""
    os.write(2, f"coil: fatal: {reason}\n".encode())
    os._exit(EXIT_LEASE_EXPIRED)


class WatchdogThread:
    """A thread, started with the first `arm`, that calls `fatal` when `clock()` passes the deadline.

    `clock` must be the one that the deadlines were computed with. The thread is a daemon: it never holds
    up the process, and `close` ends it.
    """

    def __init__(self, *, clock: Callable[[], float], fatal: Callable[[str], object] = exit_now) -> None:
        self._clock = clock
        self._fatal = fatal
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def arm(self, deadline: float, /) -> None:
        with self._changed:
            self._deadline = deadline
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="lease-watchdog", daemon=True)
                self._thread.start()

    def disarm(self) -> None:
        with self._changed:
            self._deadline = None
            self._changed.notify()

    def close(self) -> None:
        """Disarm and end the thread. Idempotent."""
        with self._changed:
            self._deadline = None
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=5 * _LOOK_SECONDS)

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                if self._deadline is None:
                    self._changed.wait()
                    continue
                left = self._deadline - self._clock()
                if left <= 0:
                    self._deadline = None
                    self._fatal("the lease expires and the event loop has not stopped its leader's work")
                else:
                    self._changed.wait(min(left, _LOOK_SECONDS))
