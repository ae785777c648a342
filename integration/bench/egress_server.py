"""The other end of a path, as a process in its namespace: `python -m integration.bench.egress_server ADDRESS`.

UDP port 7 gives back what it gets (RFC 862); TCP port 9 takes all until the end and answers how much it was (after
RFC 863); TCP port 19 gives as much as it is asked for (after RFC 864). One connection of a port at a time. Prints a
line when it can be reached.
"""

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

ECHO: Final = 7
DISCARD: Final = 9
GENERATE: Final = 19
COUNT: Final = struct.Struct("!Q")
PIECE: Final = 1 << 20
"""Bytes handed to the kernel at a time, on both sides."""

_SECONDS: Final = 60


@contextmanager
def serving_in(netns: Path, address: IPv4Address) -> Iterator[None]:
    """The program in the namespace at that path; it can be reached at its address inside the block."""
    command = [sys.executable, "-m", "integration.bench.egress_server", str(address)]
    with subprocess.Popen(
        ["nsenter", f"--net={netns}", "--", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout is not None
            if server.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the server at {address} ended with code {server.wait(_SECONDS)}")
            yield
        finally:
            server.kill()


def echo(serving: socket.socket) -> None:
    """Until the process ends."""
    while True:
        serving.sendto(*serving.recvfrom(2048))


def discard(serving: socket.socket) -> None:
    """Until the process ends."""
    buffer = bytearray(PIECE)
    while True:
        connection, _ = serving.accept()
        with connection:
            taken = 0
            while count := connection.recv_into(buffer):
                taken += count
            connection.sendall(COUNT.pack(taken))


def generate(serving: socket.socket) -> None:
    """Until the process ends."""
    piece = bytes(PIECE)
    while True:
        connection, _ = serving.accept()
        with connection:
            (wanted,) = COUNT.unpack(connection.recv(COUNT.size, socket.MSG_WAITALL))
            for _ in range(wanted // PIECE):
                connection.sendall(piece)


def main(address: str) -> None:
    asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asked.bind((address, ECHO))
    taking, giving = (socket.create_server((address, port)) for port in (DISCARD, GENERATE))
    for serve, serving in ((echo, asked), (generate, giving)):
        threading.Thread(target=serve, args=(serving,), daemon=True).start()
    print("ready", flush=True)
    discard(taking)


if __name__ == "__main__":
    main(sys.argv[1])
