"""Asks targets, all at once, each within a bound."""

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from coil.page.probe_answer import ProbeAnswer, Scheme

_LONGEST: Final = 64
"""Bytes of an address."""
_REPEAT_SECONDS: Final = 1.0


class TargetError(ValueError):
    """It is no URL of a target; says what is."""


async def ask_all(targets: Sequence[str], *, seconds: float) -> list[ProbeAnswer]:
    """In their order; each may take so long. Raises TargetError."""
    waiting = [_ask(target, *_parse(target), seconds=seconds) for target in targets]
    return list(await asyncio.gather(*waiting))


def _parse(target: str) -> tuple[Scheme, str, int]:
    try:
        url = urlsplit(target)
        scheme, host, port = Scheme(url.scheme), url.hostname, url.port or 0
    except ValueError:
        raise TargetError(f"{target!r} is no target, such as tcp://192.0.2.1:80 or name://example.com") from None
    if not host or bool(port) is (scheme is Scheme.NAME):
        raise TargetError(f"{target!r} has no host, or lacks a port")
    return scheme, host, port


async def _ask(target: str, scheme: Scheme, host: str, port: int, *, seconds: float) -> ProbeAnswer:
    started, answer, error = time.monotonic(), "", ""
    try:
        async with asyncio.timeout(seconds):
            answer = await _WAYS[scheme](host, port)
    except TimeoutError:
        error = errno.errorcode[errno.ETIMEDOUT]
    except socket.gaierror as failure:
        error = str(failure)
    except OSError as failure:
        error = errno.errorcode.get(failure.errno or 0, str(failure))
    return ProbeAnswer(target=target, answer=answer, error=error, seconds=round(time.monotonic() - started, 4))


async def _by_tcp(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        return (await reader.read(_LONGEST)).decode(errors="replace")
    finally:
        writer.close()


async def _connect(host: str, port: int) -> str:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    return ""


async def _by_udp(host: str, port: int) -> str:
    loop = asyncio.get_running_loop()
    [(family, *_, place)] = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        await loop.sock_connect(asking, place)
        while True:
            await loop.sock_sendall(asking, b"?")
            try:
                async with asyncio.timeout(_REPEAT_SECONDS):
                    return (await loop.sock_recv(asking, _LONGEST)).decode(errors="replace")
            except TimeoutError:
                continue


async def _look_up(host: str, port: int) -> str:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return ",".join(sorted({str(place[0]) for *_, place in found}))


_WAYS: Final[dict[Scheme, Callable[[str, int], Awaitable[str]]]] = {
    Scheme.TCP: _by_tcp,
    Scheme.UDP: _by_udp,
    Scheme.CONNECT: _connect,
    Scheme.NAME: _look_up,
}
