"""Reads v1's keys from etcd. Never writes: this module knows of no request that does.

etcd's JSON gateway is used (etcd's documentation, "gRPC gateway"), over the same port as gRPC: keys and values are in
base64, 64-bit numbers are text. A read is of one revision, however many answers it takes.
"""

import base64
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from coil.kube.transport import client_context
from coil.runtime.log import describe_error

Answer = TypeVar("Answer")

PAGE = 500
"""Keys in one answer."""
MAX_ANSWER = 64 * 1024 * 1024
"""Bytes. The free list of the largest network that v1 could hold in one key is a fraction of that."""
ATTEMPTS = 3
CALL_SECONDS = 30.0

_GATEWAYS = ("/v3", "/v3beta", "/v3alpha")
"""Since etcd 3.4, in 3.3 and in 3.2."""


class EtcdError(Exception):
    """etcd cannot be read. The message says what to look at."""


class _CompactedError(Exception):
    """The revision of a read that had begun is no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAccess:
    """Where etcd is and who asks. `connect_timeout` in seconds; an empty `username` is for an etcd without users."""

    endpoints: tuple[str, ...]
    connect_timeout: float = 2.0
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    username: str = ""
    password: str = ""


class _KeyValue(msgspec.Struct, frozen=True):
    """The gateway leaves out what is empty."""

    key: bytes = b""
    value: bytes = b""


class _Header(msgspec.Struct, frozen=True):
    revision: str = "0"


class _Range(msgspec.Struct, frozen=True):
    header: _Header = _Header()
    kvs: tuple[_KeyValue, ...] = ()
    more: bool = False


class _Token(msgspec.Struct, frozen=True):
    token: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""
    message: str = ""


class EtcdReader:
    """Use as an asynchronous context manager. Endpoints are tried in their order; the first that answers is kept."""

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._endpoints: Sequence[str] = access.endpoints
        self._headers: dict[str, str] = {}
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "EtcdReader":
        """Raises EtcdError for files that are no certificates. Nothing is sent yet."""
        connector = aiohttp.TCPConnector(ssl=_tls_context(self._access))
        bounds = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=self._access.connect_timeout)
        self._session = aiohttp.ClientSession(connector=connector, timeout=bounds, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def read(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All keys that begin with `prefix`, which is not empty, in their order, and their values; the prefix is cut
        off. Raises EtcdError.
        """
        if self._access.username and not self._headers:
            self._headers = {"Authorization": await self._authenticate()}
        for _ in range(ATTEMPTS):
            try:
                return [(key.removeprefix(prefix), value) for key, value in await self._read_revision(prefix)]
            except _CompactedError:
                continue
        raise EtcdError("etcd is compacted faster than it can be read; try again when less is going on")

    async def _read_revision(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        start, end, revision = prefix, _range_end(prefix), "0"
        while True:
            question = {"key": _text(start), "range_end": _text(end), "limit": PAGE, "revision": revision}
            answer = await self._call("/kv/range", question, _Range)
            found += [(item.key, item.value) for item in answer.kvs]
            if not answer.more or not answer.kvs:
                return found
            revision = answer.header.revision
            start = answer.kvs[-1].key + b"\0"

    async def _authenticate(self) -> str:
        access = self._access
        answer = await self._call("/auth/authenticate", {"name": access.username, "password": access.password}, _Token)
        return answer.token

    async def _call(self, path: str, question: dict[str, Any], kind: type[Answer]) -> Answer:
        silent: list[str] = []
        for endpoint in self._endpoints:
            try:
                body = await self._post(endpoint, path, question)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                silent.append(f"{endpoint}: {describe_error(error)}")
                continue
            # The others may be another cluster's, or behind: one read is one member's.
            self._endpoints = (endpoint,)
            try:
                return msgspec.json.decode(body, type=kind)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise EtcdError(f"{endpoint} does not answer as etcd does: {error}") from error
        raise EtcdError(
            f"etcd does not answer: {'; '.join(silent)}; check --etcd-endpoints and, for https, the --etcd-tls flags"
        )

    async def _post(self, endpoint: str, path: str, question: dict[str, Any]) -> bytes:
        body = b""
        for gateway in _GATEWAYS:
            url = f"{endpoint}{gateway}{path}"
            async with self._session.post(url, json=question, headers=self._headers) as response:
                body = await _read_limited(response)
                if response.status == 200:
                    return body
                if response.status != 404:
                    raise _refusal(endpoint, response.status, body)
        raise EtcdError(f"{endpoint} has no JSON gateway: it is no etcd of version 3.2 or newer, or it is switched off")


def _refusal(endpoint: str, status: int, body: bytes) -> Exception:
    try:
        said = msgspec.json.decode(body, type=_Refusal)
        words = said.message or said.error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        words = body[:200].decode(errors="replace").strip()
    if "compacted" in words:
        return _CompactedError(words)
    hint = ""
    if any(word in words for word in ("user name is empty", "permission denied", "authentication failed")):
        hint = "; give a user who may read with --etcd-username and the variable ETCD_PASSWORD"
    return EtcdError(f"{endpoint} refuses ({status}): {words}{hint}")


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        size += len(piece)
        if size > MAX_ANSWER:
            raise EtcdError(f"{response.url.origin()} answers with more than {MAX_ANSWER} bytes; is this v1's etcd?")
        pieces.append(piece)
    return b"".join(pieces)


def _tls_context(access: EtcdAccess) -> ssl.SSLContext:
    try:
        context = client_context(access.ca)
        if access.certificate is not None:
            context.load_cert_chain(access.certificate, access.key)
    except OSError as error:  # ssl.SSLError is one
        raise EtcdError(f"the files of the --etcd-tls flags cannot be used: {error}") from error
    return context


def _range_end(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix; a zero byte, etcd's word for the end, if there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
