"""Servers in pods that say their pod's name to whoever connects, and the client's side of it."""

import selectors
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from coil.kernel.family import IPAddress
from integration.netns.netns import call_inside
from integration.side_thread import SideThread

PORT: Final = 8080
_SECONDS: Final = 10.0
_TICK: Final = 0.2


class Greeter(SideThread):
    """A context manager: until its end, each of `pods` answers at its addresses, TCP port 8080. By their names."""

    def __init__(self, pods: Mapping[str, tuple[Path, Sequence[str]]]) -> None:
        super().__init__("greeter")
        self._stack = ExitStack()
        self._listeners = {
            self._stack.enter_context(_listen(netns, ip_address(address))): name
            for name, (netns, addresses) in pods.items()
            for address in addresses
        }

    def work(self) -> None:
        """See `SideThread`."""
        with self._stack, selectors.DefaultSelector() as ready:
            for listener, name in self._listeners.items():
                ready.register(listener, selectors.EVENT_READ, name)
            while not self.stopped.is_set():
                for key, _ in ready.select(_TICK):
                    accepted, _peer = key.fileobj.accept()  # type: ignore[union-attr]
                    with accepted:
                        accepted.sendall(key.data.encode())


def _make(address: IPAddress) -> socket.socket:
    return socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)


def greet(netns: Path, address: IPAddress, port: int) -> str:
    """Who answers a client in that namespace. Raises OSError, and TimeoutError after some seconds."""
    with call_inside(netns, partial(_make, address)) as connection:
        connection.settimeout(_SECONDS)
        connection.connect((str(address), port))
        return connection.recv(256).decode()


def _listen(netns: Path, address: IPAddress) -> socket.socket:
    listener = call_inside(netns, partial(_make, address))
    listener.bind((str(address), PORT))
    listener.listen()
    return listener
