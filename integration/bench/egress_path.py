"""A path from one namespace to another, and how it is measured: sockets of the one, which `egress_server` answers in
the other.

Nothing but the kernel's path differs between two of them: the same program, buffers and sizes. Over a path with a link,
all packets have to go by that link in both directions, or nothing arrives: sockets are bound to it (socket(7)).
"""

import select
import socket
import struct
import time
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from integration.bench.egress_server import COUNT, DISCARD, ECHO, GENERATE, PIECE
from integration.netns.netns import call_inside

_QUESTION = bytes(64)
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPath:
    """From the namespace at `netns` to `target`, by `link` if it is not empty."""

    name: str
    netns: Path
    target: IPv4Address
    link: str = ""

    def upload(self, pieces: int) -> float:
        """Seconds from the first byte that is sent until the host says that it has them all."""
        piece = bytes(PIECE)
        with self._connect(DISCARD) as connection:
            began = time.perf_counter()
            for _ in range(pieces):
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            (taken,) = COUNT.unpack(connection.recv(COUNT.size, socket.MSG_WAITALL))
            seconds = time.perf_counter() - began
        _expect_whole(taken, pieces)
        return seconds

    def download(self, pieces: int) -> float:
        """Seconds from the request until the last byte is there."""
        buffer = bytearray(PIECE)
        taken = 0
        with self._connect(GENERATE) as connection:
            began = time.perf_counter()
            connection.sendall(COUNT.pack(pieces * PIECE))
            while count := connection.recv_into(buffer):
                taken += count
            seconds = time.perf_counter() - began
        _expect_whole(taken, pieces)
        return seconds

    def round_trips(self, count: int) -> list[float]:
        """Seconds of that many datagrams of 64 bytes there and back, one after the other. Raises OSError for a loss."""
        taken = []
        with self.ask(_PATIENCE_SECONDS) as asking:
            for _ in range(count):
                began = time.perf_counter()
                asking.send(_QUESTION)
                asking.recv(len(_QUESTION))
                taken.append(time.perf_counter() - began)
        return taken

    def answered(self, *, within: float, pause: float) -> bool:
        """Ask every `pause` seconds until there is an answer; whether there was one `within` seconds."""
        deadline = time.perf_counter() + within
        with self.ask(_PATIENCE_SECONDS) as asking:
            # Not by the socket's timeout, which the kernel counts in its ticks: 4 ms become up to 8.
            answers = select.poll()
            answers.register(asking, select.POLLIN)
            while time.perf_counter() < deadline:
                asking.send(_QUESTION)
                if answers.poll(pause * 1000):
                    asking.recv(len(_QUESTION))
                    return True
        return False

    def ask(self, patience: float) -> socket.socket:
        """A UDP socket to the host's echo, whose reads fail with BlockingIOError after `patience` seconds."""
        asking = self._socket(socket.SOCK_DGRAM, patience)
        asking.connect((str(self.target), ECHO))
        return asking

    def _connect(self, port: int) -> socket.socket:
        connection = self._socket(socket.SOCK_STREAM, _PATIENCE_SECONDS)
        connection.connect((str(self.target), port))
        return connection

    def _socket(self, kind: socket.SocketKind, patience: float) -> socket.socket:
        made = call_inside(self.netns, lambda: socket.socket(socket.AF_INET, kind))
        if self.link:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.link.encode())
        # The kernel's own timeouts: Python's would ask for readiness before each call.
        limit = struct.pack("@ll", int(patience), int(patience % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            made.setsockopt(socket.SOL_SOCKET, option, limit)
        return made


def _expect_whole(taken: int, pieces: int) -> None:
    if taken != pieces * PIECE:
        raise OSError(f"{taken} of {pieces * PIECE} bytes arrived")
