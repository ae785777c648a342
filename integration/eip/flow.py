"""A flow that never pauses, from a pod to the host outside and back, over UDP or over one TCP connection."""

import secrets
import selectors
import socket
import struct
import time
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Final

from integration.egress.conversation import Answerer, Asker
from integration.egress.external_host import family_of
from integration.egress.pod import SECONDS
from integration.netns.netns import call_inside
from integration.patience import TIMEOUT, wait_until
from integration.side_thread import SideThread

SPACING: Final = 0.01
_PIECE: Final = 1000
_NUMBER: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Answer:
    """When an answer was heard, in seconds of the monotonic clock, to which question, and whom the host had seen."""

    at: float
    number: int
    seen: str


class Flow(SideThread):
    """A context manager: one question every 10 ms, always from the same port, whether or not answers come."""

    def __init__(self, pod: Asker, server: Answerer, address: str) -> None:
        super().__init__("flow")
        self._asking = pod.socket(socket.SOCK_DGRAM, address)
        self._answering = call_inside(server.netns, lambda: socket.socket(family_of(address), socket.SOCK_DGRAM))
        self._answering.bind((address, 0))
        self._answering.setblocking(False)
        self._target = self._answering.getsockname()[:2]
        self._asking.setblocking(False)
        self.port = int(self._target[1])
        """The server's, which is this flow's alone."""
        self._seen: dict[int, str] = {}
        self.asked = 0
        self.answers: list[Answer] = []

    def work(self) -> None:
        with self._asking as asking, self._answering as answering, selectors.DefaultSelector() as ready:
            ready.register(asking, selectors.EVENT_READ, self._hear)
            ready.register(answering, selectors.EVENT_READ, self._answer)
            due = time.monotonic()
            while not self.stopped.is_set():
                if (now := time.monotonic()) >= due:
                    self.asked += 1
                    asking.sendto(_NUMBER.pack(self.asked), self._target)
                    due = max(due + SPACING, now)
                for key, _ in ready.select(max(0.0, due - time.monotonic())):
                    key.data()

    def outage(self, *, since: float) -> float:
        """The longest time without an answer that ended after `since`, in seconds."""
        times = [answer.at for answer in list(self.answers)]
        gaps = [after - before for before, after in pairwise(times) if after >= since]
        return max(gaps, default=0.0)

    def heard_after(self, moment: float) -> bool:
        """Whether an answer has come since then."""
        return bool(self.answers) and self.answers[-1].at > moment

    def await_answer(self, *, timeout: float = TIMEOUT) -> None:
        """Until an answer comes from now on."""
        now = time.monotonic()
        wait_until(lambda: self.heard_after(now), what="the flow is answered", timeout=timeout)

    def _answer(self) -> None:
        data, peer = self._answering.recvfrom(64)
        self._seen[_NUMBER.unpack(data)[0]] = str(peer[0])
        self._answering.sendto(data, peer)

    def _hear(self) -> None:
        number = _NUMBER.unpack(self._asking.recv(64))[0]
        self.answers.append(Answer(time.monotonic(), number, self._seen[number]))


class Dialogue(SideThread):
    """A context manager: one TCP connection, on which every question awaits its answer. `rounds` counts them."""

    def __init__(self, pod: Asker, server: Answerer, address: str) -> None:
        super().__init__("dialogue")
        self._listener = call_inside(server.netns, lambda: socket.socket(family_of(address), socket.SOCK_STREAM))
        self._listener.settimeout(SECONDS)
        self._listener.bind((address, 0))
        self._listener.listen()
        self._asking = pod.socket(socket.SOCK_STREAM, address)
        self.seen = ""
        self.rounds = 0

    def await_rounds(self, number: int, *, after: int = 0, timeout: float = TIMEOUT) -> None:
        """Until it has had so many more than `after`."""
        wait_until(lambda: self.rounds >= after + number, what="questions are answered over TCP", timeout=timeout)

    def work(self) -> None:
        with self._listener as listener, self._asking as asking:
            asking.connect(listener.getsockname()[:2])
            answering, peer = listener.accept()
            self.seen = str(peer[0])
            with answering:
                answering.settimeout(SECONDS)
                while not self.stopped.wait(SPACING):
                    question = _NUMBER.pack(self.rounds)
                    asking.sendall(question)
                    assert answering.recv(64) == question
                    answering.sendall(question)
                    assert asking.recv(64) == question
                    self.rounds += 1


class Download(SideThread):
    """A context manager: one TCP connection on which the pod merely listens, and the host sends, as long as the block
    lasts, something every 10 ms. At the end both have the same.
    """

    def __init__(self, pod: Asker, server: Answerer, address: str) -> None:
        super().__init__("download")
        self._listener = call_inside(server.netns, lambda: socket.socket(family_of(address), socket.SOCK_STREAM))
        self._listener.settimeout(SECONDS)
        self._listener.bind((address, 0))
        self._listener.listen()
        self._hearing = pod.socket(socket.SOCK_STREAM, address)
        self.seen = ""
        self._arrivals: list[float] = []

    def work(self) -> None:
        sent, heard = sha256(), sha256()
        with self._listener as listener, self._hearing as hearing, selectors.DefaultSelector() as ready:
            hearing.connect(listener.getsockname()[:2])
            sending, peer = listener.accept()
            self.seen = str(peer[0])
            with sending:
                sending.setblocking(False)
                ready.register(hearing, selectors.EVENT_READ)
                due = time.monotonic()
                while not self.stopped.is_set():
                    if (now := time.monotonic()) >= due:
                        sent.update(_say(sending))
                        due = max(due + SPACING, now)
                    if ready.select(max(0.0, due - time.monotonic())):
                        heard.update(hearing.recv(1 << 16))
                        self._arrivals.append(time.monotonic())
                sending.shutdown(socket.SHUT_WR)
                while rest := hearing.recv(1 << 16):
                    heard.update(rest)
        assert heard.digest() == sent.digest(), "what was heard is not what was said"

    def pause(self, *, since: float) -> float:
        """The longest time in which nothing came that ended after `since`, in seconds."""
        gaps = [after - before for before, after in pairwise(list(self._arrivals)) if after >= since]
        return max(gaps, default=0.0)

    def await_more(self, *, timeout: float = TIMEOUT) -> None:
        """Until something comes that comes from now on."""
        now = time.monotonic()
        wait_until(lambda: self._arrivals and self._arrivals[-1] > now, what="the pod hears more", timeout=timeout)


def _say(sending: socket.socket) -> bytes:
    """As much of a piece as there is room for."""
    piece = secrets.token_bytes(_PIECE)
    try:
        return piece[: sending.send(piece)]
    except BlockingIOError:
        return b""
