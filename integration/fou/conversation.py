"""Questions and answers through a tunnel without a pause, and the captured packets that carried them."""

import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from coil.kernel.family import Family
from integration.fou.end import ETH0, End
from integration.side_thread import SideThread

_SECONDS = 60.0  # for an answer that is to come; emulated machines are slow
_LOSS_SECONDS = 20.0  # the same where some may be lost, and are waited for
_BURST = 32
_ETH_P_ALL = 3
_UDP = 17
_HEADERS = {Family.IPV4: (0x0800, 14 + 20, 14 + 9), Family.IPV6: (0x86DD, 14 + 40, 14 + 6)}
"""Of each family: the EtherType, where UDP begins in a frame, and where the protocol is told."""


class Conversation(SideThread):
    """From `asking` to `answering` and back, by UDP: a lost packet is never repeated, and more than `may_lose` fail the
    test.
    """

    def __init__(self, asking: End, answering: End, family: Family, *, may_lose: int = 0) -> None:
        super().__init__("conversation")
        self._may_lose = may_lose
        self._asking = asking.udp_socket(family)
        self._answering = answering.udp_socket(family)
        for end in (self._asking, self._answering):
            end.settimeout(_LOSS_SECONDS if may_lose else _SECONDS)
        self.count = 0

    def work(self) -> None:
        lost = 0
        with self._asking as asking, self._answering as answering:
            while not self.stopped.is_set():
                # Many at once, so that at any instant some are under way.
                questions = [struct.pack("!II", self.count, number) for number in range(_BURST)]
                for question in questions:
                    asking.sendto(question, answering.getsockname())
                heard = list(_received(answering, questions))
                for question, peer in heard:
                    answering.sendto(question, peer)
                lost += len(questions) - len(list(_received(asking, [question for question, _ in heard])))
                assert lost <= self._may_lose, f"{lost} packets were lost"
                self.count += 1


def _received(end: socket.socket, awaited: Collection[bytes]) -> Iterator[tuple[bytes, Any]]:
    """Each datagram and its sender, until all that are awaited are there, or nothing comes any more."""
    missing = set(awaited)
    while missing:
        try:
            datagram, sender = end.recvfrom(64)
        except TimeoutError:
            return
        if datagram in missing:
            missing.remove(datagram)
            yield datagram, sender


@dataclass(frozen=True, slots=True)
class Datagram:
    """What was captured of a UDP packet on the wire."""

    source_port: int
    port: int
    ttl: int


class Capture:
    """All UDP packets of a family that arrive at an end's wire while the context is open."""

    def __init__(self, end: End, family: Family) -> None:
        self._family = family
        self._socket = end.netns.call(
            lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        )
        self._socket.bind((ETH0, _ETH_P_ALL))
        self._socket.settimeout(_SECONDS)

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def next(self) -> Datagram:
        """The next one that is received. Raises TimeoutError."""
        ether_type, start, protocol = _HEADERS[self._family]
        while True:
            frame, address = self._socket.recvfrom(1 << 16)
            if address[2] == socket.PACKET_OUTGOING or struct.unpack_from("!H", frame, 12)[0] != ether_type:
                continue
            if frame[protocol] == _UDP:
                source_port, port = struct.unpack_from("!HH", frame, start)
                ttl = frame[14 + 8] if self._family is Family.IPV4 else frame[14 + 7]
                return Datagram(source_port, port, ttl)
