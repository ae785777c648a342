"""Has a pod's policies hold before the pod starts: coild tells of its addresses, and waits for the answer.

    coild ─► Unix socket ─► PodStarts ─► NodePods ─► a round ─► PodHold: entered ─► the answer

The pod's labels come from the API server, so the answer waits until the agent has been told of the pod.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from coil.cnirpc.listener import BACKLOG, Listener
from coil.eip.pod_start import LARGEST, PATH, PodStart
from coil_egress_agent.eip.node_assignment import parse_address
from coil_egress_agent.eip.node_pods import NodePods
from coil_egress_agent.eip.pod_hold import PodHold

ENTER_SECONDS: Final = 10.0
"""How long an answer takes at most."""
_DECODER: Final = msgspec.json.Decoder(PodStart)


class PodRefusedError(Exception):
    """The pod's policies do not hold; the text says why."""


class PodStarts:
    """One per process, of the event loop's thread. `seconds` bound an answer."""

    def __init__(self, pods: NodePods, hold: PodHold, *, seconds: float = ENTER_SECONDS) -> None:
        self._pods = pods
        self._hold = hold
        self._seconds = seconds
        self._changed = asyncio.Event()
        pods.on_change(self._note)

    async def enter(self, start: PodStart) -> None:
        """Return once the kernel has the pod with these addresses, or no policy selects it. Idempotent.

        Raises ValueError for what is no address, and PodRefusedError. Cancelled, the addresses count nevertheless.
        """
        addresses = frozenset(address for text in start.addresses if (address := parse_address(text)) is not None)
        if len(addresses) != len(start.addresses):
            raise ValueError(f"not addresses: {', '.join(start.addresses)}")
        what = f"the API server has not told of pod {start.key}"
        try:
            async with asyncio.timeout(self._seconds):
                while not self._pods.knows(start.key, start.uid):
                    changed = self._changed
                    await changed.wait()
                what = "the kernel does not have its addresses"
                if (version := self._pods.tell(start.key, addresses)) is not None:
                    await self._hold.wait_entered(version)
        except TimeoutError:
            raise PodRefusedError(f"{what} within {self._seconds:g} s") from None

    def _note(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@asynccontextmanager
async def serve_pod_starts(enter: Callable[[PodStart], Awaitable[None]], path: Path) -> AsyncIterator[None]:
    """Answer at the Unix socket, which is root's only, with what `PodStarts.enter` says.

    Raises `coil.cnirpc.listener.ListenError`.
    """

    async def answer(request: web.Request) -> web.Response:
        try:
            await enter(_DECODER.decode(await request.read()))
        except (msgspec.MsgspecError, ValueError) as error:
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=str(error))
        except PodRefusedError as error:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=str(error))
        return web.Response(status=HTTPStatus.NO_CONTENT)

    application = web.Application(client_max_size=LARGEST)
    application.router.add_post(PATH, answer)
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    with Listener(path) as listener:
        await runner.setup()
        try:
            await web.SockSite(runner, listener.socket, backlog=BACKLOG).start()
            yield
        finally:
            listener.withdraw()
            await runner.cleanup()
