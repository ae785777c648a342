"""Single questions between hosts, over UDP: nothing is repeated, so a lost packet is silence; and TCP."""

import socket
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from integration.aws.vpc import RESOLVER_PORT, Host

PATIENCE: Final = 60.0
"""Seconds that only a failure takes."""
SILENCE: Final = 0.4
"""Seconds of silence after which nothing comes any more: an answer takes milliseconds."""

Address = IPv4Address | IPv6Address | str


def ask(client: Host, server: Host, address: Address, *, source: Address = "", patience: float = PATIENCE) -> str:
    """One question and its answer; the address that the server saw it come from. Raises TimeoutError."""
    address = str(address)
    with ExitStack() as stack:
        asking, answering = (stack.enter_context(each.socket(socket.SOCK_DGRAM, address)) for each in (client, server))
        for end in (asking, answering):
            end.settimeout(patience)
        answering.bind((address, 0))
        if source:
            asking.bind((str(source), 0))
        asking.sendto(b"question", answering.getsockname())
        heard, peer = answering.recvfrom(64)
        assert heard == b"question"
        answering.sendto(b"answer", peer)
        assert asking.recv(64) == b"answer"
        return str(peer[0])


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
