"""A server that tells whoever asks its own name and whom it sees ("web 10.1.2.3"), and the client's side of it."""

import socket
import threading
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from coil.podnet.host_port import Protocol
from integration.netns.netns import call_inside

KINDS: Final = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


class Greeter:
    """Answers until `close`, on port 80 or another, by TCP and UDP. The address `::` is that of both families."""

    def __init__(self, netns: Path, name: str, port: int = 80, address: str = "::") -> None:
        self._name = name
        self._sockets = call_inside(netns, lambda: [self._open(kind, address, port) for kind in KINDS.values()])
        stream, datagrams = self._sockets
        self._threads = [
            threading.Thread(target=self._accept, args=(stream,)),
            threading.Thread(target=self._answer, args=(datagrams,)),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _open(kind: int, address: str, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        if kind == socket.SOCK_STREAM:
            made.listen()
        return made

    def _text(self, peer: str) -> bytes:
        return f"{self._name} {peer.removeprefix('::ffff:')}".encode()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, peer = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(self._text(peer[0]))

    def _answer(self, datagrams: socket.socket) -> None:
        while True:
            try:
                said, peer = datagrams.recvfrom(64)
                if not said:  # nobody asks: it was shut down
                    return
                datagrams.sendto(self._text(peer[0]), peer)
            except OSError:
                return

    def close(self) -> None:
        """End it. For once."""
        for made, thread in zip(self._sockets, self._threads, strict=True):
            made.settimeout(0)
            with suppress(OSError):  # of one that is not connected; the thread that waits there is woken nevertheless
                made.shutdown(socket.SHUT_RDWR)
            thread.join()
            made.close()


def ask(
    client: Path,
    address: str,
    protocol: Protocol = Protocol.TCP,
    *,
    port: int,
    source: str = "",
    seconds: float = 5,
) -> str:
    """What a client in that namespace is told: who answers, and whom it sees. Raises OSError if nobody answers."""
    parsed = ip_address(address)
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    with call_inside(client, lambda: socket.socket(family, KINDS[protocol])) as asking:
        asking.settimeout(seconds)
        if source:
            asking.bind((source, 0))
        asking.connect((address, port))
        if protocol is Protocol.UDP:
            asking.send(b"?")
        return asking.recv(64).decode()
