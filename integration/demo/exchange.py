"""One TCP connection on which both ends send at a bounded rate, at the same time; every byte counted, timed, digested.

It takes as long as it is told to, and longer only where the network stands still: what is late is sent at once.
"""

import hashlib
import secrets
import selectors
import socket
import threading
import time
from itertools import pairwise
from typing import Final

from integration.demo.narration import DemoError
from integration.egress.conversation import Answerer, Asker
from integration.egress.external_host import family_of
from integration.egress.pod import SECONDS
from integration.netns.netns import call_inside
from integration.side_thread import SideThread

_CHUNK: Final = 1 << 14
_TICK: Final = 0.02
_SILENCE: Final = 30.0
"""Seconds without a single byte, after which nothing more is expected."""


class Direction:
    """One way of a connection: `size` random bytes, evenly over so many seconds."""

    def __init__(self, source: socket.socket, target: socket.socket, *, size: int, seconds: float) -> None:
        self._source = source
        self.target = target
        self.size = size
        self._seconds = seconds
        self._sent = hashlib.sha256()
        self._received = hashlib.sha256()
        self._times: list[float] = []
        self.sent = 0
        self.arrived = 0

    @property
    def complete(self) -> bool:
        """Whether as many bytes have arrived as there are."""
        return self.arrived >= self.size

    @property
    def digest(self) -> str:
        """SHA-256 of what has arrived. Raises DemoError when that is not what was sent."""
        if (arrived := self._received.hexdigest()) != self._sent.hexdigest():
            raise DemoError(f"of {self.sent} bytes sent, {self.arrived} have arrived, and they are not the same")
        return arrived

    def longest_gap(self) -> float:
        """The longest time in which nothing arrived, between two bytes that did, in seconds."""
        return max((after - before for before, after in pairwise(self._times)), default=0.0)

    def send(self, elapsed: float) -> None:
        """Send what is due by now, as far as it goes."""
        due = min(self.size, int(self.size * elapsed / self._seconds))
        while self.sent < due:
            piece = secrets.token_bytes(min(_CHUNK, due - self.sent))
            try:
                count = self._source.send(piece)
            except BlockingIOError:
                return
            self._sent.update(piece[:count])
            self.sent += count

    def receive(self) -> None:
        """Take what is there. Raises DemoError at the end of the connection."""
        if not (data := self.target.recv(1 << 16)):
            raise DemoError(f"the connection ended after {self.arrived} of {self.size} bytes")
        self._received.update(data)
        self._times.append(time.monotonic())
        self.arrived += len(data)


class Exchange(SideThread):
    """A context manager; it owns the two ends of the connection. `seen` is whom the server sees at the other end."""

    def __init__(
        self, pod: socket.socket, server: socket.socket, *, upload: int, download: int, seconds: float, seen: str = ""
    ) -> None:
        super().__init__("exchange")
        self.seen = seen
        self.upload = Direction(pod, server, size=upload, seconds=seconds)
        self.download = Direction(server, pod, size=download, seconds=seconds)
        self._ends = pod, server
        self._over = threading.Event()

    @property
    def directions(self) -> tuple[Direction, Direction]:
        return self.upload, self.download

    def finish(self, timeout: float) -> None:
        """Return when all has arrived as it was sent. Raises DemoError, or OSError of a connection that broke."""
        ended = self._over.wait(timeout)
        if self._failure is not None:
            raise self._failure
        if not ended:
            progress = " and ".join(f"{direction.arrived} of {direction.size} bytes" for direction in self.directions)
            raise DemoError(f"the transfer is not at its end after {timeout:.0f} s: {progress} have arrived")
        for direction in self.directions:
            assert direction.digest

    def work(self) -> None:
        try:
            with self._ends[0], self._ends[1], selectors.DefaultSelector() as ready:
                for direction in self.directions:
                    direction.target.setblocking(False)
                    ready.register(direction.target, selectors.EVENT_READ, direction)
                self._pump(ready)
        finally:
            self._over.set()

    def _pump(self, ready: selectors.BaseSelector) -> None:
        began = heard = time.monotonic()
        while not (self.stopped.is_set() or all(direction.complete for direction in self.directions)):
            for direction in self.directions:
                direction.send(time.monotonic() - began)
            for key, _ in ready.select(_TICK):
                key.data.receive()
                heard = time.monotonic()
            if time.monotonic() - heard > _SILENCE:
                raise DemoError(f"nothing has arrived on the connection for {_SILENCE:.0f} s")


def connect(pod: Asker, server: Answerer, address: str) -> tuple[socket.socket, socket.socket, str]:
    """A connection of the pod to that address of the server: both ends, and the pod's address as the server sees it.

    Nobody listens afterwards, so that there is never a second one in its place.
    """
    connecting = pod.socket(socket.SOCK_STREAM, address)
    with call_inside(server.netns, lambda: socket.socket(family_of(address), socket.SOCK_STREAM)) as listener:
        listener.settimeout(SECONDS)
        listener.bind((address, 0))
        listener.listen()
        try:
            connecting.connect(listener.getsockname()[:2])
            accepted, peer = listener.accept()
        except BaseException:
            connecting.close()
            raise
    return connecting, accepted, str(peer[0])
