"""A WebSocket (RFC 6455) from a pod to the host outside that is in use all the time; both ends are aiohttp's."""

import asyncio
import socket
from contextlib import suppress
from ipaddress import ip_address

from aiohttp import ClientError, ClientSession, TCPConnector, WSMsgType, web

from integration.cluster.family import host_in_url
from integration.egress.conversation import Answerer, Asker
from integration.egress.external_host import family_of
from integration.egress.pod import SECONDS
from integration.eip.flow import SPACING
from integration.netns.netns import call_inside
from integration.patience import TIMEOUT, wait_until
from integration.side_thread import SideThread

_PAUSE = 0.1
"""Seconds between two attempts to connect."""


class WebSocket(SideThread):
    """A context manager: every message is echoed before the next one. Where the connection ends, the pod opens another.

    The pod ends it itself when for `heartbeat` seconds nothing came, and no pong within half of that either.
    """

    def __init__(self, pod: Asker, server: Answerer, address: str, *, heartbeat: float) -> None:
        super().__init__("web-socket")
        self._pod = pod
        self._address = address
        self._heartbeat = heartbeat
        family = family_of(address)
        self._listener = call_inside(server.netns, lambda: socket.create_server((address, 0), family=family))
        self.port = int(self._listener.getsockname()[1])
        """The server's, which is these connections' alone."""
        self.peers: list[str | None] = []
        """As whom the server saw each connection."""
        self.rounds = 0

    def await_rounds(self, number: int, *, after: int = 0, timeout: float = TIMEOUT) -> None:
        """Until it has had so many more than `after`."""
        wait_until(lambda: self.rounds >= after + number, what="messages are echoed", timeout=timeout)

    def await_another(self, *, after: int, timeout: float = TIMEOUT) -> None:
        """Until it has had more connections than `after`."""
        wait_until(lambda: len(self.peers) > after, what="the pod connects again", timeout=timeout)

    def work(self) -> None:
        asyncio.run(self._serve_and_talk())

    async def _serve_and_talk(self) -> None:
        application = web.Application()
        application.add_routes([web.get("/", self._echo)])
        runner = web.AppRunner(application, shutdown_timeout=_PAUSE)
        await runner.setup()
        try:
            await web.SockSite(runner, self._listener).start()
            connector = TCPConnector(socket_factory=lambda _: self._pod.socket(socket.SOCK_STREAM, self._address))
            async with ClientSession(connector=connector) as session:
                while not self.stopped.is_set():
                    with suppress(ClientError, TimeoutError):
                        await self._talk(session)
                    await asyncio.sleep(_PAUSE)
        finally:
            await runner.cleanup()

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        answering = web.WebSocketResponse()
        await answering.prepare(request)
        self.peers.append(request.remote)
        async for message in answering:
            await answering.send_str(message.data)
        return answering

    async def _talk(self, session: ClientSession) -> None:
        async with asyncio.timeout(SECONDS):
            url = f"http://{host_in_url(ip_address(self._address))}:{self.port}/"
            asking = await session.ws_connect(url, heartbeat=self._heartbeat)
        try:
            while not self.stopped.is_set():
                question = str(self.rounds)
                await asking.send_str(question)
                message = await asking.receive(SECONDS)
                if message.type is not WSMsgType.TEXT:
                    return
                assert message.data == question
                self.rounds += 1
                await asyncio.sleep(SPACING)
        finally:
            await asking.close()
