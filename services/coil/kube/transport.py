"""Authenticated HTTP to one API server, with every wait bounded: between the typed client and the library.

Two connection pools: ordinary calls share a bounded one (a burst of reconciles must not open a hundred
connections; the wait for a free one counts towards `connect`), watches have their own, with as many connections
as there are informers, so that neither can starve the other.

aiohttp's sessions are made here and not by the library, whose own look up the environment's proxies and ~/.netrc for
each request, in a thread: half of what a call costs. The environment of a process does not change, so it is asked once.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from coil.kube.access import Access, AccessError
from coil.kube.client_config import ClientConfig
from coil.kube.errors import UnavailableError, parse_error
from coil.kube.proxy import ProxyError, find_proxy

READ_BUFFER = 2**21
"""A list's page or a burst of events should not stop the reading."""


class _Connector(aiohttp.TCPConnector):
    """Cuts connections that are not used again. A farewell by TLS would wait for the server's, up to 30 s, and outlive
    the session: `close` waits for connections that are in use or kept, and not for these.
    """

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        if should_close or protocol.should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)


class Session:
    """A pool of connections; `limit` at most, 0 for as many as are wanted."""

    def __init__(self, config: ClientConfig, context: ssl.SSLContext, *, limit: int) -> None:
        """Raises ProxyError."""
        self._server = config.server
        self._options: dict[str, Any] = {
            "proxy": proxy_of(config),
            "server_hostname": config.tls_server_name or None,
        }
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=limit, ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
            trust_env=False,
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: bytes | None,
        bounds: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The response as soon as its headers are there, whatever its status. `path` is quoted, `query` plain."""
        suffix = f"?{urlencode(query)}" if query else ""
        # Quoted once: a continue token must come back as it was given, and quoting again takes time.
        url = URL(f"{self._server}{path}{suffix}", encoded=True)
        return await self._session.request(method, url, headers=headers, data=body, timeout=bounds, **self._options)

    async def close(self) -> None:
        """Close its connections, also those in use."""
        await self._session.close()


def client_context(authority: Path | None) -> ssl.SSLContext:
    """The context of a client that trusts `authority`, a file, or the system's authorities without one.

    Raises OSError (ssl.SSLError is one) when the file is no certificate.
    """
    context = ssl.create_default_context(cafile=authority)
    # From Python 3.13 on, servers whose certificates lack key identifiers are refused by default. Clusters have such
    # certificates, which client-go and etcd accept.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def tls_context(config: ClientConfig) -> ssl.SSLContext:
    """Raises OSError (ssl.SSLError is one) when the files are no certificates."""
    context = client_context(config.authority)
    if config.certificate is not None:
        context.load_cert_chain(config.certificate, keyfile=config.key)
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def proxy_of(config: ClientConfig) -> str | None:
    """The kubeconfig's own, else the environment's for this server. Raises ProxyError."""
    return config.proxy or find_proxy(config.server, os.environ)


CALL_CONNECTIONS = 32
ERROR_BODY_LIMIT = 64 * 1024
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `connect`: until there is a connection; `total`: a whole call, or the opening of a watch;
    `watch`: what the server is asked to end a watch after; `silence`: the longest pause within a watch."""

    connect: float = 10.0
    total: float = 30.0
    watch: float = 300.0
    silence: float = 330.0


DEFAULT_TIMEOUTS = Timeouts()


class _Pools:
    """The connections opened with one set of TLS files. Closed when retired and no longer in use."""

    def __init__(self, access: Access) -> None:
        """Raises AccessError when the TLS files are no certificates."""
        try:
            context = tls_context(access.config)
        except OSError as error:  # ssl.SSLError is one
            raise AccessError(f"the TLS configuration cannot be used: {error}") from error
        try:
            self.calls = Session(access.config, context, limit=CALL_CONNECTIONS)
            self.watches = Session(access.config, context, limit=0)
        except ProxyError as error:
            raise AccessError(str(error)) from error
        self.generation = access.tls_generation
        self._users = 0
        self._retired = False

    @asynccontextmanager
    async def used(self) -> AsyncIterator["_Pools"]:
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            if self._retired:
                await self.retire()

    async def retire(self) -> None:
        """New requests go elsewhere; what is under way (a watch, for minutes) ends undisturbed."""
        self._retired = True
        if self._users == 0:
            await self.close()

    async def close(self) -> None:
        await self.calls.close()
        await self.watches.close()


class Transport:
    """Sends requests, adds credentials, turns every failure into an ApiError. Use as a context manager."""

    def __init__(self, access: Access, *, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self._access = access
        self._pools: _Pools | None = None

    async def __aenter__(self) -> "Transport":
        """Raises AccessError when there is no usable configuration."""
        await self._access.read()
        self._pools = _Pools(self._access)
        return self

    async def __aexit__(self, *_: object) -> None:
        pools, self._pools = self._pools, None
        if pools is not None:
            await pools.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> bytes:
        """One request and the whole body of its successful answer. `path` is quoted, `query` is plain.

        Raises ApiError. A cancelled or timed-out write may have taken place.
        """
        async with self._usable_pools() as pools:
            with network_errors(f"{method} {path}"):
                bounds = aiohttp.ClientTimeout(total=self.timeouts.total, connect=self.timeouts.connect)
                response = await self._send(
                    pools.calls, method, path, query=query, body=body, content_type=content_type, bounds=bounds
                )
                async with response:
                    return await response.read()

    async def pour(self, path: str, into: Callable[[bytes], None], *, query: Mapping[str, str]) -> None:
        """One GET; the body of its successful answer is handed over piece by piece, with a turn of the loop between.

        For long answers: `timeouts.total` bounds each pause, `timeouts.watch` the whole. Raises ApiError, and whatever
        `into` raises; what has been handed over by then is only a part.
        """
        async with self._usable_pools() as pools:
            with network_errors(f"GET {path}"):
                timeouts = self.timeouts
                bounds = aiohttp.ClientTimeout(total=timeouts.watch, connect=timeouts.connect, sock_read=timeouts.total)
                response = await self._send(pools.calls, "GET", path, query=query, bounds=bounds)
                async with response:
                    while piece := await response.content.readany():
                        into(piece)
                        await asyncio.sleep(0)

    @asynccontextmanager
    async def stream(self, path: str, *, query: Mapping[str, str]) -> AsyncIterator[aiohttp.StreamReader]:
        """A GET whose answer is read piece by piece. Raises ApiError if it does not begin with success.

        Read it within `network_errors`: a pause of `timeouts.silence` seconds ends it. Leaving closes the
        connection.
        """
        async with self._usable_pools() as pools:
            with network_errors(f"GET {path}"):
                bounds = aiohttp.ClientTimeout(
                    total=None, connect=self.timeouts.connect, sock_read=self.timeouts.silence
                )
                async with asyncio.timeout(self.timeouts.total):
                    response = await self._send(pools.watches, "GET", path, query=query, bounds=bounds)
            try:
                if response.content_type != JSON:
                    raise UnavailableError(f"GET {path}: {response.content_type} instead of {JSON}")
                _probe_when_idle(response)
                yield response.content
            finally:
                response.close()

    async def _send(
        self,
        session: Session,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        bounds: aiohttp.ClientTimeout,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> aiohttp.ClientResponse:
        """A response whose status is a success; its body has not been read. A 401 is tried once again."""
        while True:
            authorization = self._access.authorization
            headers = {
                "Accept": JSON,
                # Compression costs the API server and us more than a cluster's network does.
                "Accept-Encoding": "identity",
                "Content-Type": content_type,
                "User-Agent": "coil",
            }
            if authorization:
                headers["Authorization"] = authorization
            response = await session.request(method, path, query=query, headers=headers, body=body, bounds=bounds)
            if response.status < HTTPStatus.MULTIPLE_CHOICES:
                return response
            async with response:
                refused = response.status == HTTPStatus.UNAUTHORIZED
                if refused and await self._access.renew(authorization):
                    continue
                what = f"{method} {path}"
                if refused and self._access.trouble:
                    what += f" ({self._access.trouble})"
                raise parse_error(
                    response.status,
                    await _read_beginning(response.content),
                    what=what,
                    retry_after=response.headers.get("Retry-After", ""),
                )

    @asynccontextmanager
    async def _usable_pools(self) -> AsyncIterator[_Pools]:
        await self._access.refresh()
        if self._pools is None:
            raise RuntimeError("the client is used outside its context")
        if self._pools.generation != self._access.tls_generation:
            await self._replace_pools(self._pools)
        async with self._pools.used() as pools:
            yield pools

    async def _replace_pools(self, old: _Pools) -> None:
        try:
            self._pools = _Pools(self._access)
        except AccessError as error:  # certificate and key of different age: the next request tries again
            self._access.trouble = str(error)
            return
        await old.retire()


@contextmanager
def network_errors(what: str) -> Iterator[None]:
    """Everything that the network, TLS, HTTP or a timeout can raise becomes an UnavailableError."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        said = f"{type(error).__name__}: {error}" if str(error) else "no answer in time"
        raise UnavailableError(f"{what}: {said}") from error


async def _read_beginning(content: aiohttp.StreamReader) -> bytes:
    """An error's body: a Status document is small, and of anything else only the beginning is of use."""
    body = bytearray()
    while len(body) < ERROR_BODY_LIMIT and (chunk := await content.readany()):
        body += chunk
    return bytes(body)


def _probe_when_idle(response: aiohttp.ClientResponse) -> None:
    """Have the kernel probe an idle connection: a vanished peer is noticed in 30 s, not after `silence`."""
    connection = response.connection
    if connection is None or connection.transport is None:
        return  # the whole answer has come already
    peer = connection.transport.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
