"""The API server as the commands read it: by kubernetes-asyncio's client, into the structs that Coil's programs use.

Of the library this takes the client without its models (decoding 10 000 pods takes them 8 s). What it lacks is added
here: each call has a bound, the answers 429 and 5xx are tried again as `Retry-After` says, lists come in pages, and a
limited number of calls is under way at a time. Proxies are found as by Coil's programs and kubectl: the library's
sessions, aiohttp's own, know no networks in NO_PROXY.
"""

import asyncio
import builtins
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

from coil.crd.builtin import PODS
from coil.crd.resource import HasMetadata, NamespacedName, Resource
from coil.kube.access import AccessError
from coil.kube.client_config import ClientConfig
from coil.kube.collection import PageDocument
from coil.kube.errors import (
    ApiError,
    GoneError,
    NotFoundError,
    Status,
    UnavailableError,
    error_of,
    excerpt,
    parse_error,
)
from coil.kube.light_import import without_models
from coil.kube.proxy import ProxyError
from coil.kube.transport import READ_BUFFER, network_errors, proxy_of, tls_context

with without_models():
    from kubernetes_asyncio.client.api_client import ApiClient
    from kubernetes_asyncio.client.configuration import Configuration
    from kubernetes_asyncio.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL, get_websocket_url

PAGE: Final = 500
CALLS: Final = 8
"""Calls under way at a time: a fraction of what API Priority and Fairness gives one user."""
ATTEMPTS: Final = 5
_LIST_ATTEMPTS: Final = 3
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 10.0

T = TypeVar("T", bound=HasMetadata)


class Reader(Protocol):
    """What commands ask of the API server. Methods raise `coil.kube.errors.ApiError`."""

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """The object as it is now. Raises NotFoundError."""
        ...

    async def list(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> builtins.list[T]:
        """The objects that match both selectors, in all namespaces unless one is given, as of one moment."""
        ...

    def now(self) -> datetime:
        """The API server's time, as far as it is known; times in objects are compared with it."""
        ...


class Writer(Protocol):
    """Who makes and deletes objects. Methods raise ApiError."""

    async def create(self, resource: Resource[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        """The object that the API server made of it. Raises AlreadyExistsError.

        Where no answer came, or it is cancelled, it may have been made.
        """
        ...

    async def delete(self, resource: Resource[T], name: str, *, namespace: str = "") -> None:
        """Have it deleted, which the API server may finish later. Idempotent."""
        ...


class Executor(Protocol):
    """Who runs commands in pods, which takes the rights to get and to create pods/exec."""

    async def execute(
        self, pod: NamespacedName, command: Sequence[str], *, container: str, seconds: float, limit: int
    ) -> bytes:
        """What the command writes to its standard output, of at most `limit` bytes. It has `seconds`, or as long as any
        call may take if that is longer.

        Cancelled, or when the time is over, it closes the connection, and the kubelet ends the command. Raises
        ApiError, and ExecError if the command failed, was not found, or wrote too much.
        """
        ...


class ExecError(Exception):
    """The command was not carried out, or not to its end. The message has what it wrote to standard error."""


@dataclass(slots=True)
class Cluster:
    """A `Reader`, `Writer` and `Executor` of one cluster. Made by `connect`."""

    _client: ApiClient
    _timeout: float
    _calls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS))
    _ahead: timedelta = timedelta()

    @classmethod
    @asynccontextmanager
    async def connect(cls, config: ClientConfig, *, timeout: float) -> AsyncIterator["Cluster"]:
        """`timeout` bounds each call, in seconds. No connection is made yet. Raises AccessError."""
        try:
            context, proxy = tls_context(config), proxy_of(config)
        except (OSError, ProxyError) as error:
            raise AccessError(f"the API server {config.server} cannot be asked: {error}") from error
        configuration = Configuration(
            host=config.server, api_key={"BearerToken": config.authorization} if config.authorization else None
        )
        configuration.tls_server_name = config.tls_server_name or None
        configuration.proxy = proxy
        client = ApiClient(configuration)
        # The library's own session looks up the environment's proxies by itself, and once more for each request.
        await client.rest_client.pool_manager.close()
        client.rest_client.pool_manager = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CALLS, ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
        )
        async with client:
            yield cls(client, timeout)

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        path = resource.path(namespace=namespace, name=name)
        found: T = _decode(await self.read_raw(path), resource.type, what=path)
        return found

    async def list(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> builtins.list[T]:
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        attempt = 1
        while True:
            try:
                return await self._list(resource, namespace=namespace, selectors=selectors)
            except GoneError:  # the pages' version has expired
                if attempt == _LIST_ATTEMPTS:
                    raise
                attempt += 1

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    async def create(self, resource: Resource[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        path = resource.path(namespace=namespace)
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        found: T = _decode(await self._call("POST", path, body=whole), resource.type, what=path)
        return found

    async def delete(self, resource: Resource[T], name: str, *, namespace: str = "") -> None:
        with suppress(NotFoundError):
            await self._call("DELETE", resource.path(namespace=namespace, name=name))

    async def execute(
        self, pod: NamespacedName, command: Sequence[str], *, container: str, seconds: float, limit: int
    ) -> bytes:
        path = PODS.path(namespace=pod.namespace, name=pod.name, subresource="exec")
        query = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        configuration = self._client.configuration
        url = get_websocket_url(f"{configuration.host}{path}?{urlencode(query)}")
        headers: dict[str, str] = {}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        with network_errors(f"GET {path}"):
            async with self._calls, asyncio.timeout(max(seconds, self._timeout)):
                try:
                    # The library's own client of this protocol knows neither the proxy nor the server's name.
                    connection = await self._client.rest_client.pool_manager.ws_connect(
                        URL(url, encoded=True),
                        headers=headers,
                        protocols=_PROTOCOLS,
                        proxy=configuration.proxy,
                        server_hostname=configuration.tls_server_name,
                        max_msg_size=limit + _MESSAGE,
                    )
                except aiohttp.WSServerHandshakeError as error:
                    raise _handshake_error(error, pod) from error
                async with connection:
                    return await _read_channels(connection, limit=limit)

    async def _list(self, resource: Resource[T], *, namespace: str, selectors: dict[str, str]) -> builtins.list[T]:
        path = resource.path(namespace=namespace)
        document: Any = PageDocument
        found: list[T] = []
        token = ""
        while True:
            query = {**selectors, "limit": str(PAGE), "continue": token}
            page: PageDocument[T] = _decode(await self.read_raw(path, query), document[resource.type], what=path)
            found += page.items or ()
            if not (token := page.metadata.continue_token):
                return found

    async def read_raw(self, path: str, query: dict[str, str] | None = None) -> bytes:
        """What the API server has at a path, as it is: logs, its version. Raises ApiError."""
        return await self._call("GET", path, query)

    async def _call(
        self, method: str, path: str, query: dict[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> bytes:
        """The body of a successful answer. Raises ApiError."""
        attempt = 1
        while True:
            try:
                async with self._calls:
                    return await self._call_once(method, path, query, body)
            except UnavailableError as error:
                # Without an answer, as kubectl, it tells at once; and so it does of a path that is not served.
                if error.status < HTTPStatus.TOO_MANY_REQUESTS or attempt == ATTEMPTS:
                    raise
                pause = error.retry_after or _FIRST_PAUSE * 2 ** (attempt - 1)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE) * random.uniform(1.0, 1.2))  # noqa: S311 - not a secret
            attempt += 1

    async def _call_once(
        self, method: str, path: str, query: dict[str, str] | None, body: Mapping[str, Any] | None
    ) -> bytes:
        what = f"{method} {path}"
        with network_errors(what):
            response: aiohttp.ClientResponse = await self._client.call_api(
                path,
                method,
                query_params=[pair for pair in (query or {}).items() if pair[1]],
                header_params={"Accept": "application/json, */*", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=aiohttp.ClientTimeout(total=self._timeout),
            )
            async with response:
                answer = await response.read()
        self._set_clock(response.headers.get("Date", ""))
        if response.status not in _SUCCESSES:
            raise parse_error(response.status, answer, what=what, retry_after=response.headers.get("Retry-After", ""))
        return answer

    def _set_clock(self, date: str) -> None:
        try:
            self._ahead = parsedate_to_datetime(date) - datetime.now(UTC)
        except (TypeError, ValueError):
            return


_SUCCESSES: Final = frozenset({HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED})
_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_MESSAGE: Final = 1 << 16
_COMPLAINT: Final = 4096
"""Bytes of standard error that are told."""


async def _read_channels(connection: aiohttp.ClientWebSocketResponse, *, limit: int) -> bytes:
    """Standard output to its end. A message's first byte is its channel (k8s.io/kubelet, pkg/cri/streaming)."""
    output, complaint = bytearray(), bytearray()
    async for message in connection:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDOUT_CHANNEL:
            output += data
            if len(output) > limit:
                raise ExecError(f"it wrote more than {limit} bytes")
        elif channel == STDERR_CHANNEL:
            complaint += data[: _COMPLAINT - len(complaint)]
        elif channel == ERROR_CHANNEL:
            status = _decode(data, Status, what="exec")
            if status.reason or status.code:
                said = " ".join(complaint.decode(errors="replace").split())
                raise ExecError(": ".join(filter(None, (status.message, said))))
            return bytes(output)
    raise ExecError("the connection was closed before the command had ended")


def _handshake_error(error: aiohttp.WSServerHandshakeError, pod: NamespacedName) -> ApiError:
    """Of a refusal only the status is told."""
    what = f"exec in the pod {pod}"
    status = Status(kind="Status", message=HTTPStatus(error.status).phrase)
    return error_of(status, code=error.status, what=what)


def _decode(body: bytes, type_: Any, *, what: str) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"GET {what}: unreadable answer: {error}: {excerpt(body)}") from error
