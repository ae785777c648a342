"""Questions and answers of one flow by UDP, without a pause, while a test changes something below it."""

import socket
import struct
import threading
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from integration.netns.netns import call_inside
from integration.side_thread import SideThread

SECONDS: Final = 60.0
"""For an answer that is to come; emulated machines are slow."""
LOSS_SECONDS: Final = 20.0
"""The same where some may be lost, and are waited for."""


class UdpConversation(SideThread):
    """One question at a time, while the context is open. A lost packet is a failure, or, up to `may_lose` of them,
    followed by another question. `answering` is bound; both sockets are closed at the end.

    `count` has the questions that were answered, `seen` whom the other side saw; `failed` is set when it has failed,
    which leaving the context tells.
    """

    def __init__(self, asking: socket.socket, answering: socket.socket, *, may_lose: int = 0) -> None:
        self.failed = threading.Event()
        super().__init__("conversation", failed=self.failed.set)
        self._asking, self._answering = asking, answering
        self._may_lose = may_lose
        self.count = 0
        self.seen: set[str] = set()
        for end in (asking, answering):
            end.settimeout(LOSS_SECONDS if may_lose else SECONDS)

    def work(self) -> None:
        number = lost = 0
        with self._asking, self._answering:
            while not self.stopped.is_set():
                number += 1
                try:
                    self._exchange(struct.pack("!I", number))
                except TimeoutError:
                    lost += 1
                    if lost > self._may_lose:
                        raise
                else:
                    self.count += 1

    def _exchange(self, question: bytes) -> None:
        self._asking.sendto(question, self._answering.getsockname())
        heard, peer = self._answering.recvfrom(64)
        assert heard == question, "a packet was lost or came twice"
        self.seen.add(str(peer[0]))
        self._answering.sendto(heard, peer)
        assert self._asking.recv(64) == question


def converse_by_udp(asking: str, answering: str, address: str) -> UdpConversation:
    """Between the network namespaces at these paths, the second of which has the address. No packet may be lost."""
    family = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6
    ends = [call_inside(Path(path), lambda: socket.socket(family, socket.SOCK_DGRAM)) for path in (asking, answering)]
    ends[1].bind((address, 0))
    return UdpConversation(*ends)
