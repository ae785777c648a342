"""A node of the soak: the bare node, the plugin and coild on it, and what its workers must know about both.

`Outage` says whether coild may have been away while an operation ran: only then may the operation of a pod that is up
fail. `Gate` is for draining a node before it is deleted, as an administrator does it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from integration.apiserver.bare_node import BareNode
from integration.apiserver.runtime import Runtime
from integration.service import Service
from integration.soak.history import History

START_TIMEOUT = 90.0
"""Seconds until a coild that was started answers; it may have to wait for the API server."""

DRAIN_TIMEOUT = 150.0
_LOOK = 0.02  # seconds


class AbortedError(Exception):
    """Another thread has failed; there is nothing more to wait for."""


class Outage:
    """Thread-safe. Begins before a coild is ended, ends when its successor answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0
        self._over = True

    def begin(self) -> int:
        """Returns the number of this outage."""
        with self._lock:
            self._begun += 1
            self._over = False
            return self._begun

    def end(self, number: int) -> None:
        """It is over, unless another has begun meanwhile."""
        with self._lock:
            self._over = number == self._begun

    def mark(self) -> int | None:
        """To be given to `excuses` later; None in an outage."""
        with self._lock:
            return self._begun if self._over else None

    def excuses(self, mark: int | None) -> bool:
        """Whether there was an outage at any time since the mark."""
        with self._lock:
            return mark is None or mark != self._begun

    @property
    def latest(self) -> int:
        with self._lock:
            return self._begun


class Gate:
    """Lets a node's workers pass while it is open."""

    def __init__(self, aborted: threading.Event) -> None:
        self._aborted = aborted
        self._changed = threading.Condition()
        self._closed = False
        self._waiting = 0

    @property
    def closed(self) -> bool:
        with self._changed:
            return self._closed

    def close(self, workers: int) -> None:
        """Return when so many workers wait, each without a pod. Raises AbortedError."""
        with self._changed:
            self._closed = True
            self._wait(lambda: self._waiting == workers, timeout=DRAIN_TIMEOUT)

    def open(self) -> None:
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def wait(self) -> None:
        """Until it is open. Raises AbortedError."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                self._wait(lambda: not self._closed, timeout=2 * DRAIN_TIMEOUT)
            finally:
                self._waiting -= 1

    def _wait(self, holds: Callable[[], bool], *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not holds():
            if self._aborted.is_set():
                raise AbortedError
            assert time.monotonic() < deadline, f"a node was not drained within {timeout:.0f} s"
            self._changed.wait(0.2)


@dataclass(slots=True, kw_only=True)
class Station:
    """One of the nodes."""

    node: BareNode
    runtime: Runtime
    coild: Service
    gate: Gate
    history: History
    outage: Outage

    @property
    def name(self) -> str:
        return self.node.name

    def end_coild(self, *, kill: bool) -> None:
        """kill -9, or SIGTERM and wait. Raises ServiceError when it had ended by itself."""
        self.outage.begin()
        if kill:
            self.coild.kill()
        else:
            self.coild.process.terminate()
            self.coild.process.wait(START_TIMEOUT)

    def start_coild(self) -> None:
        """Start it again without waiting; the outage ends when it answers."""
        self.coild.start()
        number = self.outage.latest
        threading.Thread(target=self._await, args=[number], name=f"{self.name} comes back", daemon=True).start()

    def await_coild(self) -> None:
        """Return when no outage lasts. Raises ComponentError or AssertionError when coild does not come back."""
        deadline = time.monotonic() + START_TIMEOUT
        while self.outage.mark() is None:
            if (code := self.coild.process.poll()) is not None:
                raise self.coild.process.failure(f"ended by itself, with code {code}")
            assert time.monotonic() < deadline, f"coild on {self.name} does not come back"
            time.sleep(_LOOK)

    def _await(self, number: int) -> None:
        process = self.coild.process
        deadline = time.monotonic() + START_TIMEOUT
        while self.outage.latest == number and process.poll() is None and time.monotonic() < deadline:
            if self.node.is_served():
                self.history.note(self.name, f"coild answers, as process {process.pid}")
                self.outage.end(number)
                return
            time.sleep(_LOOK)
