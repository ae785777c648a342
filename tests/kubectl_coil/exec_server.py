"""An API server that carries out nothing but `exec`: it sends the messages that a test gives it."""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiohttp import WSCloseCode, web

from coil.kube.client_config import ClientConfig

STDOUT: Final = b"\1"
STDERR: Final = b"\2"
STATUS: Final = b"\3"
DONE: Final = STATUS + b'{"kind":"Status","status":"Success"}'


@dataclass(slots=True)
class ExecServer:
    """`messages` are sent to whoever connects; with `refusal` nobody may. `asked` has path and query of each."""

    messages: Sequence[bytes] = ()
    refusal: int = 0
    stays: bool = False
    """The connection is kept when all is sent."""
    asked: list[str] = field(default_factory=list)
    authorization: str = ""
    url: str = ""

    @property
    def config(self) -> ClientConfig:
        return ClientConfig(server=self.url, authorization="Bearer secret")

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["ExecServer"]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            _, port = runner.addresses[0][:2]
            self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        self.authorization = request.headers.get("Authorization", "")
        if self.refusal:
            return web.Response(status=self.refusal)
        connection = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await connection.prepare(request)
        for message in self.messages:
            await connection.send_bytes(message)
        if self.stays:
            await connection.receive()
        await connection.close(code=WSCloseCode.OK)
        return connection
