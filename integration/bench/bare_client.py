"""HTTP to an API server and nothing else: prepared bytes go out, the answer's bytes come back unread.

The floor under every client in Python: what this one takes for the same writes is the API server, TLS and aiohttp. It
is the peer that the ipam-controller is measured against, and it fills the store for the measurements.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from coil.kube.transport import client_context

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
_CALL_SECONDS = 60.0
_EXCERPT = 300


class CallError(Exception):
    """The API server refused a prepared call; the message has what it said."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, ready to be sent; `path` has its query with it."""

    method: str
    path: str
    body: bytes | None = None
    content_type: str = JSON


class BareClient:
    """Speaks for the user of a kubeconfig's only context. `connections` at most, kept alive. A context manager."""

    def __init__(self, kubeconfig: Path, *, connections: int) -> None:
        document: dict[str, Any] = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self._context = client_context(Path(cluster["certificate-authority"]))
        if "client-certificate" in user:
            self._context.load_cert_chain(user["client-certificate"], user["client-key"])
        token = Path(user["tokenFile"]).read_text(encoding="ascii").strip() if "tokenFile" in user else ""
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._url: str = cluster["server"]
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=self._connections)
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, call: Call) -> bytes:
        """The answer's body. Raises CallError unless it is a success."""
        headers = {"Content-Type": call.content_type}
        async with self._http.request(call.method, self._url + call.path, data=call.body, headers=headers) as answer:
            body = await answer.read()
            if answer.status >= 300:
                said = body[:_EXCERPT].decode(errors="replace")
                raise CallError(f"{call.method} {call.path}: HTTP {answer.status}: {said}")
            return body

    async def send_chains(self, chains: Iterable[Sequence[Call]], *, width: int | None = None) -> None:
        """Each chain's calls one after the other; as many chains at a time as there are connections, if not fewer."""
        waiting = iter(chains)

        async def work() -> None:
            for chain in waiting:
                for call in chain:
                    await self.send(call)

        async with asyncio.TaskGroup() as group:
            for _ in range(width or self._connections):
                group.create_task(work())

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[aiohttp.StreamReader]:
        """The body of a GET that does not end, such as a watch. Raises CallError."""
        async with self._http.get(self._url + path, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            if answer.status >= 300:
                raise CallError(f"GET {path}: HTTP {answer.status}")
            yield answer.content

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        return self._session
