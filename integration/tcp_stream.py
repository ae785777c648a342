"""One TCP connection between two network namespaces that is used all the time, and may not notice anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

_SECONDS = 60
"""How long a message may take; TCP sends anew at ever longer intervals while the network stands still."""

# Sends back whatever comes on the first connection, until that ends.
_SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 0), family=family) as server:
    server.settimeout(float(sys.argv[2]))
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
    while data := connection.recv(4096):
        connection.sendall(data)
"""
# Counts, and has each number sent back before the next. Tells the last one whenever it is asked, by an empty line; ends
# with standard input.
_CLIENT = """
import select, socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as connection:
    number = 0
    while True:
        number += 1
        message = number.to_bytes(8, "big")
        connection.sendall(message)
        answer = b""
        while len(answer) < len(message):
            piece = connection.recv(len(message) - len(answer))
            assert piece, "the connection was closed"
            answer += piece
        assert answer == message, (answer, message)
        if select.select([sys.stdin], [], [], 0.01)[0]:
            if not sys.stdin.readline():
                break
            print(number, flush=True)
"""


class TcpStream:
    """Made by `flow`."""

    def __init__(self, client: subprocess.Popen[str]) -> None:
        self._client = client

    def count(self) -> int:
        """How many messages have gone there and back. Raises AssertionError when the connection is no more."""
        stdin, stdout = cast(IO[str], self._client.stdin), cast(IO[str], self._client.stdout)
        try:
            stdin.write("\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        assert line, f"the connection is no more: {self._client.poll()}"
        return int(line)


@contextmanager
def flow(client: str, server: str, address: str, *, seconds: float = _SECONDS) -> Iterator[TcpStream]:
    """Connect from the namespace at the path `client` to `address`, which is in the one at `server`.

    The connection counts as broken when a message is not answered within so many seconds.
    """
    listen = ["nsenter", f"--net={server}", "--", sys.executable, "-IS", "-c", _SERVER, address, str(seconds)]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as listening:
        try:
            port = cast(IO[str], listening.stdout).readline().strip()
            connect = [
                "nsenter",
                f"--net={client}",
                "--",
                sys.executable,
                "-IS",
                "-c",
                _CLIENT,
                address,
                port,
                str(seconds),
            ]
            with subprocess.Popen(connect, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as connected:
                try:
                    stream = TcpStream(connected)
                    stream.count()  # it is there
                    yield stream
                finally:
                    connected.kill()
        finally:
            listening.kill()
