"""An HTTP server on 127.0.0.1 that misbehaves as told, over real sockets.

A test scripts `Answer`s; each request takes the next one, and when the script is used up `otherwise`
answers. An answer drives its `Exchange` by hand, down to half a line and a TCP reset, so that what a
client meets is what a network and a crashing server really do.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from tests.coil.kube.certificate import Authority

GUARD_SECONDS = 60.0  # bounds a wait that only a failing test makes


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # still quoted, as it was sent
    query: dict[str, str]
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """One request and the means to answer it. Every write is flushed to the socket."""

    def __init__(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self.reusable = False  # whether the connection may carry another request
        self._reader = reader
        self._writer = writer

    @property
    def peer_certificate(self) -> Any:
        """What the client proved itself with, in the form of `SSLSocket.getpeercert`; None without TLS."""
        return self._writer.get_extra_info("peercert")

    async def answer(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """A complete answer."""
        await self._head(
            status,
            {"Content-Type": content_type, "Content-Length": str(len(body)), **(headers or {})},
        )
        await self._write(body)
        self.reusable = True

    async def begin(self, status: int = 200, *, content_type: str = "application/json") -> None:
        """The head of an answer that is sent in pieces, the last of this connection."""
        headers = {"Content-Type": content_type, "Transfer-Encoding": "chunked", "Connection": "close"}
        await self._head(status, headers)

    async def send(self, piece: bytes) -> None:
        await self._write(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def end(self) -> None:
        """The regular end of what `begin` began."""
        await self._write(b"0\r\n\r\n")

    def reset(self) -> None:
        """Cut the connection with a TCP RST, as a killed server's kernel does."""
        peer = self._writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def hold(self) -> None:
        """Say nothing more, keep the connection, until the client leaves or the server stops."""
        await self._reader.read()

    async def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
        await self._write("\r\n".join([*lines, "", ""]).encode())

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


Answer: TypeAlias = Callable[[Exchange], Awaitable[None]]


@cache
def _unverifiable_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as folder:
        context.load_cert_chain(*Authority("nobody's").issue("server").write(Path(folder), "server"))
    return context


class FaultyServer:
    """Use as a context manager. `requests` holds what has come in, in order."""

    def __init__(self, *, otherwise: Answer | None = None, tls: ssl.SSLContext | None = None) -> None:
        # May be replaced before a `start`. Nobody tells a server without TLS any credentials.
        self.tls = tls or _unverifiable_context()
        self.requests: list[Request] = []
        self.otherwise = otherwise or refuse
        self._script: deque[Answer] = deque()
        self._arrived = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    def script(self, *answers: Answer) -> None:
        """Add answers for the next requests, whatever they ask for."""
        self._script.extend(answers)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def write_kubeconfig(
        self,
        directory: Path,
        *,
        user: Mapping[str, Any] | None = None,
        cluster: Mapping[str, Any] | None = None,
    ) -> Path:
        """A kubeconfig in `directory` that leads here. (YAML is a superset of the JSON written.)"""
        path = directory / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [
                {"name": "test", "cluster": {"server": self.url, **(cluster or {"insecure-skip-tls-verify": True})}}
            ],
            "users": [{"name": "test", "user": dict(user or {"token": "first"})}],
        }
        path.write_text(json.dumps(document))
        return path

    async def received(self, number: int) -> list[Request]:
        """Wait for the request of that number, counted from 1; returns all that have come."""
        async with asyncio.timeout(GUARD_SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= number)
        return list(self.requests)

    async def start(self) -> None:
        """Listen; after `stop`, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut every connection, as a server that goes away does."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def __aenter__(self) -> "FaultyServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await _read_request(reader)) is not None:
                exchange = Exchange(request, reader, writer)
                answer = self._script.popleft() if self._script else self.otherwise
                async with self._arrived:
                    self.requests.append(request)
                    self._arrived.notify_all()
                await answer(exchange)
                if not exchange.reusable:
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or the server stops: both are ways for a connection to end
        finally:
            self._connections.discard(task)
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *rest = head.decode().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    return Request(method, url.path, dict(parse_qsl(url.query)), headers, body)


def status_document(code: int, *, reason: str = "", message: str = "") -> dict[str, Any]:
    """A Status as the API server writes it."""
    document: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return document | {"code": code, "reason": reason, "message": message}


def reply(document: Any, *, status: int = 200, **headers: str) -> Answer:
    """A JSON document. Header names are given with underscores: `Retry_After="3"`."""

    async def answer(exchange: Exchange) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await exchange.answer(status, json.dumps(document).encode(), headers=named)

    return answer


def fail(code: int, *, reason: str = "", message: str = "", **headers: str) -> Answer:
    """A Status document with that HTTP status."""
    return reply(status_document(code, reason=reason, message=message), status=code, **headers)


def page(status: int, body: bytes = b"<html><h1>Bad Gateway</h1></html>") -> Answer:
    """What a proxy says: HTML, with any status."""

    async def answer(exchange: Exchange) -> None:
        await exchange.answer(status, body, content_type="text/html")

    return answer


def stream(*pieces: bytes, then: Callable[[Exchange], Awaitable[None]]) -> Answer:
    """A 200 whose body comes in these pieces, and then `finish`, `reset` or `hold`."""

    async def answer(exchange: Exchange) -> None:
        await exchange.begin()
        for piece in pieces:
            await exchange.send(piece)
        await then(exchange)

    return answer


async def finish(exchange: Exchange) -> None:
    """End the answer as a server does that is done."""
    await exchange.end()


async def reset(exchange: Exchange) -> None:
    """Cut the connection. As an answer: without a word."""
    exchange.reset()


async def hold(exchange: Exchange) -> None:
    """Fall silent. As an answer: accept the request and never say anything."""
    await exchange.hold()


async def refuse(exchange: Exchange) -> None:
    """The answer to what a test did not expect."""
    await exchange.answer(500, b"not in the script", content_type="text/plain")
