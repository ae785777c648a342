"""What pods and the host outside say to each other: single questions, a conversation without a pause, and transfers.

Over UDP nothing is repeated, so one lost packet is a failure. The host tells whom its sockets saw.
"""

import secrets
import socket
import zlib
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from integration.egress.external_host import family_of
from integration.egress.pod import SECONDS
from integration.egress.station import PATIENCE
from integration.netns.netns import call_inside
from integration.patience import wait_until
from integration.side_thread import SideThread
from integration.udp_conversation import UdpConversation

DISCARD_PORT = 9

_CHUNK = 1 << 16
_INTERVAL = 0.02


class Asker(Protocol):
    """A pod, whoever made it."""

    def socket(self, kind: socket.SocketKind, address: str) -> socket.socket:
        """A socket of the pod's namespace, of that address's family."""
        ...


class Answerer(Protocol):
    """A host that has the addresses which are asked."""

    @property
    def netns(self) -> Path: ...


def ask(client: Asker, external: Answerer, address: str, *, patience: float = SECONDS) -> str:
    """One question to an address of the host, and its answer; returns the address that the host saw it come from.

    Raises TimeoutError when a packet was lost.
    """
    with _bound(external, address, socket.SOCK_DGRAM) as server, client.socket(socket.SOCK_DGRAM, address) as asking:
        for end in (server, asking):
            end.settimeout(patience)
        question = secrets.token_bytes(8)
        asking.sendto(question, (address, server.getsockname()[1]))
        heard, peer = server.recvfrom(64)
        assert heard == question
        server.sendto(b"answer to " + question, peer)
        assert asking.recv(64) == b"answer to " + question
        return str(peer[0])


def sees(client: Asker, external: Answerer, address: str, whom: str) -> bool:
    """Whether an address of the host sees what the client sends come from `whom`; a lost packet is no."""
    try:
        return ask(client, external, address, patience=5.0) == whom
    except TimeoutError:
        return False


class Conversation(UdpConversation):
    """From a pod to the host."""

    def __init__(self, client: Asker, external: Answerer, address: str, *, may_lose: int = 0) -> None:
        asking = client.socket(socket.SOCK_DGRAM, address)
        super().__init__(asking, _bound(external, address, socket.SOCK_DGRAM), may_lose=may_lose)

    def goes_on(self) -> None:
        """Return when it has had ten more answers; at once when it has failed, which leaving the context tells."""
        before = self.count
        wait_until(
            lambda: self.failed.is_set() or self.count > before + 10, what="the conversation goes on", timeout=PATIENCE
        )


@dataclass(slots=True)
class _Received:
    size: int = 0
    checksum: int = 0

    def take(self, data: bytes) -> None:
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)


class DatagramSender(SideThread):
    """Sends datagrams to each address, one after another and whatever becomes of them, while the context is open.

    `refusals` counts the errors of the pod's kernel, by address and errno, `attempts` what was sent and what was not.
    """

    def __init__(self, client: Asker, *addresses: str) -> None:
        super().__init__("datagram-sender")
        self._sockets = {address: client.socket(socket.SOCK_DGRAM, address) for address in addresses}
        self.attempts: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.refusals: Counter[tuple[str, int | None]] = Counter()

    def work(self) -> None:
        with ExitStack() as stack:
            for each in self._sockets.values():
                stack.enter_context(each)
            while not self.stopped.wait(_INTERVAL):
                for address, sending in self._sockets.items():
                    self.attempts[address] += 1
                    try:
                        sending.sendto(b"whose address is this?", (address, DISCARD_PORT))
                        self.sent[address] += 1
                    except OSError as error:
                        self.refusals[address, error.errno] += 1


class Transfer(SideThread):
    """One TCP connection from a pod to the host, over which `size` bytes go each way, one direction after the other."""

    def __init__(self, client: Asker, external: Answerer, address: str, *, size: int) -> None:
        super().__init__("transfer")
        self._size = size
        self._listener = _bound(external, address, socket.SOCK_STREAM)
        self._listener.listen()
        self._connection = client.socket(socket.SOCK_STREAM, address)
        self._content = secrets.token_bytes(_CHUNK)
        self.progress = 0
        """Bytes that have arrived, in both directions together."""
        self.seen = ""

    def work(self) -> None:
        with self._listener as listener, self._connection as connection:
            connection.connect(listener.getsockname())
            accepted, peer = listener.accept()
            self.seen = str(peer[0])
            with accepted:
                accepted.settimeout(SECONDS)
                for source, target in ((connection, accepted), (accepted, connection)):
                    with _Sender(source, self._content, self._size) as sender:
                        received = _Received()
                        while received.size < self._size:
                            data = target.recv(_CHUNK)
                            assert data, f"the connection ended after {received.size} bytes"
                            received.take(data)
                            self.progress += len(data)
                    assert received == sender.sent

    def wait(self) -> None:
        """Until it is whole. Raises what went wrong."""
        self._thread.join()
        self.__exit__()


class _Sender(SideThread):
    def __init__(self, target: socket.socket, content: bytes, size: int) -> None:
        super().__init__("sender")
        self._target = target
        self._content = content
        self._size = size
        self.sent = _Received()

    def work(self) -> None:
        while self.sent.size < self._size:
            piece = self._content[: self._size - self.sent.size]
            self._target.sendall(piece)
            self.sent.take(piece)


def _bound(external: Answerer, address: str, kind: socket.SocketKind) -> socket.socket:
    made = call_inside(external.netns, lambda: socket.socket(family_of(address), kind))
    made.settimeout(SECONDS)
    made.bind((address, 0))
    return made
