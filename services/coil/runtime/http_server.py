"""A small HTTP server of a process: probes and metrics are pages on one each.

Bound when the context is entered, so that a port that is taken ends the process at its start and not its
first probe. Requests are small and few: everything about them is bounded.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Middleware

from coil.runtime.endpoint import Endpoint

Page = Callable[[web.Request], Awaitable[web.Response]]

_SHUTDOWN_SECONDS = 1.0


class ListenError(Exception):
    """The endpoint cannot be bound to; the text says which and why."""


@asynccontextmanager
async def serve_pages(
    endpoint: Endpoint, pages: Mapping[str, Page], *, middlewares: Sequence[Middleware] = ()
) -> AsyncIterator[Endpoint]:
    """Serve GET and HEAD of the paths in `pages`; yields the endpoint with the port that was bound.

    `middlewares` stand before every page and every refusal, the first one outermost.

    Left, also by cancellation: no new connection, a second for running requests, then all are closed.
    Raises ListenError.
    """
    application = web.Application(client_max_size=0, middlewares=middlewares)
    for path, page in pages.items():
        application.router.add_get(path, page)
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        keepalive_timeout=30.0,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, endpoint.host, endpoint.port)
        try:
            await site.start()
        except OSError as error:
            raise ListenError(f"cannot listen on {endpoint}: {error.strerror or error}") from error
        host, port = runner.addresses[0][:2]
        yield Endpoint(host, port)
    finally:
        await runner.cleanup()
