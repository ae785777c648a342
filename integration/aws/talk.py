"""Single questions between hosts, over UDP, and TCP.

A question is asked again after a second, as resolvers do it: a busy machine may lose one, such as while neighbor
discovery takes too long. Silence is shorter than that, so it is asked for once.
"""

import socket
import time
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from integration.aws.vpc import RESOLVER_PORT, Host

PATIENCE: Final = 60.0
"""Seconds that only a failure takes."""
SILENCE: Final = 0.4
"""Seconds of silence after which nothing comes any more: an answer takes milliseconds."""

AGAIN: Final = 1.0
"""Seconds to the next question."""

Address = IPv4Address | IPv6Address | str


def ask(client: Host, server: Host, address: Address, *, source: Address = "", patience: float = PATIENCE) -> str:
    """One question and its answer; the address that the server saw it come from. Raises TimeoutError."""
    address = str(address)
    with ExitStack() as stack:
        asking, answering = (stack.enter_context(each.socket(socket.SOCK_DGRAM, address)) for each in (client, server))
        asking.settimeout(patience)
        answering.bind((address, 0))
        if source:
            asking.bind((str(source), 0))
        peer = _hear(asking, answering, patience)
        answering.sendto(b"answer", peer)
        assert asking.recv(64) == b"answer"
        return str(peer[0])


def _hear(asking: socket.socket, answering: socket.socket, patience: float) -> tuple[str, int]:
    """Ask until the question is heard, and return where it came from. Raises TimeoutError."""
    ends = time.monotonic() + patience
    while (left := ends - time.monotonic()) > 0:
        asking.sendto(b"question", answering.getsockname())
        answering.settimeout(min(left, AGAIN))
        with suppress(TimeoutError):
            heard, peer = answering.recvfrom(64)
            assert heard == b"question"
            return str(peer[0]), int(peer[1])
    raise TimeoutError(f"no question was heard within {patience} s")


def is_silent(client: Host, server: Host, address: Address, *, source: Address = "") -> bool:
    """Whether nothing comes, not even an error: a VPC says nothing."""
    try:
        ask(client, server, address, source=source, patience=SILENCE)
    except TimeoutError:
        return True
    return False


def resolve(client: Host, resolver: Address, *, source: Address = "") -> str:
    """What the VPC's resolver answers: who has asked. Raises TimeoutError."""
    with client.socket(socket.SOCK_DGRAM, str(resolver)) as asking:
        asking.settimeout(PATIENCE)
        if source:
            asking.bind((str(source), 0))
        asking.sendto(b"name", (str(resolver), RESOLVER_PORT))
        return asking.recv(64).decode()


def shout(client: Host, address: Address, *, port: int = 9) -> None:
    """A packet to which nobody will answer."""
    with client.socket(socket.SOCK_DGRAM, str(address)) as sending:
        sending.sendto(b"anybody?", (str(address), port))


def connects(client: Host, address: str, port: int, *, patience: float = PATIENCE) -> bool:
    """Whether a TCP connection comes about within so many seconds."""
    with client.socket(socket.SOCK_STREAM, address) as connecting:
        connecting.settimeout(patience)
        try:
            connecting.connect((address, port))
        except OSError:
            return False
        return True
