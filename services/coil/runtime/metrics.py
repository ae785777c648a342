"""`/metrics`: what the process counts, from its own registry, in the format that the scraper asks for."""

from aiohttp import web
from aiohttp.hdrs import ACCEPT, CONTENT_TYPE
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder


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
    """The page of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def page(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get(ACCEPT, ""))
        return web.Response(body=encoder(self._registry), headers={CONTENT_TYPE: content_type})
