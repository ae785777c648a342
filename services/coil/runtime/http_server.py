"""A small HTTP server of a process, and the pages that every process serves on it: probes and metrics.

Bound when the context is entered, so that a port that is taken ends the process at its start and not its
first probe. Requests are small and few: everything about them is bounded.

`/healthz` and `/readyz` (is this process worth keeping, and worth sending work to) are sets of named checks. A check is
a synchronous look at what is known already: it answers None when all is well and otherwise a sentence saying what is
wrong; one that raises counts as wrong. That the answer comes at all shows that the event loop runs, since the pages are
served by it: the kubelet's probe timeout is the check for a stuck one.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TypeAlias

from aiohttp import web
from aiohttp.hdrs import ACCEPT, CONTENT_TYPE
from aiohttp.typedefs import Middleware
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from coil.runtime.flag import Endpoint

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


Check: TypeAlias = Callable[[], str | None]


class ProbeChecks:
    """The named checks of one page."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        """Raises ValueError when there is a check of that name."""
        if name in self._checks:
            raise ValueError(f"there is a check named {name!r} already")
        self._checks[name] = check

    def failing(self) -> Mapping[str, str]:
        """What is wrong, by the name of the check; empty when all is well."""
        wrong: dict[str, str] = {}
        for name, check in self._checks.items():
            try:
                reason = check()
            except Exception as error:
                reason = f"the check failed: {type(error).__name__}: {error}"
            if reason is not None:
                wrong[name] = reason
        return MappingProxyType(wrong)

    async def page(self, _request: web.Request) -> web.Response:
        """200 or 503, and a JSON body `{"status": "ok" | "failing", "checks": {name: "ok" | reason}}`."""
        wrong = self.failing()
        body = {
            "status": "failing" if wrong else "ok",
            "checks": {name: wrong.get(name, "ok") for name in self._checks},
        }
        return web.Response(
            status=503 if wrong else 200,
            text=json.dumps(body, ensure_ascii=False) + "\n",
            content_type="application/json",
            headers={"Cache-Control": "no-store"},
        )


def make_registry() -> CollectorRegistry:
    """A registry with what every process tells of itself: memory, CPU, descriptors, collections, versions."""
    # Of every counter the library would tell when it began, as one more series that nobody asks for.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class MetricsPage:
    """`/metrics`, of one registry: in the format that the scraper asks for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def page(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get(ACCEPT, ""))
        return web.Response(body=encoder(self._registry), headers={CONTENT_TYPE: content_type})
