"""Accepts TLS connections for an HTTP server, and sees to it that those that only occupy room cost nobody else theirs.

    socket ─► ConnectionTable: who has to go for it ─► handshake ─► aiohttp's handler
                                                    5 s           5 s for a request to arrive, each time one begins

A connection is counted before its handshake: one that does not speak TLS occupies room as well.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from enum import StrEnum
from ipaddress import ip_address
from typing import Final

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from coil.admission.connection_table import ConnectionTable
from coil.kernel.family import IPAddress
from coil.runtime.flag import Endpoint
from coil.runtime.http_server import ListenError

_BACKLOG: Final = 512
_HANDSHAKE_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 2.0
_ACCEPT_PAUSE: Final = 0.5
"""After an accept that failed, as it does without free file descriptors."""


class Dropped(StrEnum):
    """Why a connection was closed from this side."""

    CROWDED = "crowded"
    """Too many are open, and this one was idle for longest, or its source has more than its share."""
    SLOW = "slow"
    """A request did not arrive in time."""


class Connection(asyncio.Protocol):
    """One connection, between its transport and the protocol of the HTTP server: passes everything on."""

    def __init__(
        self, source: IPAddress, inner: asyncio.Protocol, *, seconds: float, dropped: Callable[[Dropped], object]
    ) -> None:
        self.source = source
        self.idle_since: float | None = asyncio.get_running_loop().time()
        self.used = False
        self.closed = asyncio.Event()
        self._inner = inner
        self._seconds = seconds
        self._dropped = dropped
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def arrived(self) -> None:
        """A request is here: until it is `answered` the connection is not idle."""
        self._forget_deadline()
        self.idle_since = None
        self.used = True

    def answered(self) -> None:
        """The request is answered, whether or not all of it had arrived."""
        self._forget_deadline()
        self.idle_since = asyncio.get_running_loop().time()

    def end(self, reason: Dropped) -> None:
        """Close it at once. Idempotent."""
        if not self.closed.is_set():
            self._dropped(reason)
            self.abort()

    def abort(self) -> None:
        """Close it at once, for no fault of the peer's. Idempotent."""
        self.closed.set()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
        self._expect_request()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self.idle_since is not None:
            self._expect_request()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self._transport = None
        self.closed.set()
        self._inner.connection_lost(exc)

    def _expect_request(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(self._seconds, self.end, Dropped.SLOW)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Listener:
    """At most `limit` connections, `share` of one source, `seconds` for a request to arrive."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        *,
        limit: int,
        share: int,
        seconds: float,
        dropped: Callable[[Dropped], object],
        log: FilteringBoundLogger,
    ) -> None:
        self._tls = tls
        self._table: ConnectionTable[Connection] = ConnectionTable(limit, share)
        self._seconds = seconds
        self._dropped = dropped
        self._log = log
        self._by_handler: dict[asyncio.Protocol, Connection] = {}
        self._tasks: dict[Connection, asyncio.Task[None]] = {}

    def connection(self, request: web.BaseRequest) -> Connection | None:
        """The one that the request came by; None when it is closed already."""
        return self._by_handler.get(request.protocol)

    @asynccontextmanager
    async def listen(self, server: web.Server, endpoint: Endpoint) -> AsyncIterator[Endpoint]:
        """Hand connections to `server`; yields the endpoint with the port that was bound. At the end nothing is
        accepted any more, and connections stay until `close`. An empty host is every address of the machine.

        Raises ListenError.
        """
        with ExitStack() as stack:
            try:
                sockets = [stack.enter_context(each) for each in _bind(endpoint)]
            except OSError as error:
                raise ListenError(f"cannot listen on {endpoint}: {error.strerror or error}") from error
            tasks = [asyncio.create_task(self._accept(each, server)) for each in sockets]
            try:
                host, port = sockets[0].getsockname()[:2]
                yield Endpoint(host, port)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close what is still open."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _accept(self, listening: socket.socket, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                self._log.warning("no connection can be accepted", error=error.strerror or str(error))
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            self._admit(accepted, _source(address[0]), server())
            # A crowd that is there already is accepted without waiting for anything.
            await asyncio.sleep(0)

    def _admit(self, accepted: socket.socket, source: IPAddress, handler: web.RequestHandler) -> None:
        connection = Connection(source, handler, seconds=self._seconds, dropped=self._dropped)
        task = asyncio.create_task(self._serve(accepted, connection, handler))
        self._tasks[connection] = task
        victim = self._table.add(connection)
        if victim is not None:
            victim.end(Dropped.CROWDED)
            self._tasks[victim].cancel()

    async def _serve(self, accepted: socket.socket, connection: Connection, handler: web.RequestHandler) -> None:
        """From the handshake to the end, whoever ends it."""
        self._by_handler[handler] = connection
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_CLOSE_SECONDS,
            )
            await connection.closed.wait()
        except OSError as error:  # of TLS, too; what a client does wrong is not ours to tell
            self._log.debug("no connection", source=str(connection.source), error=str(error))
        finally:
            connection.abort()
            accepted.close()
            self._table.remove(connection)
            self._by_handler.pop(handler, None)
            self._tasks.pop(connection, None)


def _bind(endpoint: Endpoint) -> Iterator[socket.socket]:
    """Of an endpoint without a host, one socket for both families where the kernel has both."""
    if not endpoint.host:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        yield _listening(("", endpoint.port), family, dualstack_ipv6=both)
        return
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, _, _, _, address in dict.fromkeys(found):
        yield _listening((str(address[0]), endpoint.port), family)


def _listening(address: tuple[str, int], family: int, *, dualstack_ipv6: bool = False) -> socket.socket:
    made = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=dualstack_ipv6)
    made.setblocking(False)
    return made


def _source(text: str) -> IPAddress:
    """A peer's address; one of IPv4 on a socket for both families is told as such (RFC 4291, section 2.5.5.2)."""
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
