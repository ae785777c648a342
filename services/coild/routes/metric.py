"""What the route synchronization of a node tells Prometheus. The first two are those of Coil's coil-router."""

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coil.crd.names import NodeName
from coil.podnet.node_route import RouteTrouble, TroubledNetwork

_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class RouteSyncMetrics:
    """One per registry. Every trouble has a series from the start, so that an alert may rely on its zero."""

    def __init__(self, registry: CollectorRegistry, *, node: NodeName) -> None:
        self.syncs = Counter(
            "coil_router_syncs",
            "Passes that have made the main table agree with the blocks of other nodes.",
            ["node"],
            registry=registry,
        ).labels(node)
        self.routes = Gauge(
            "coil_router_routes_synced", "Routes of the last such pass.", ["node"], registry=registry
        ).labels(node)
        self.failures = Counter(
            "coil_router_sync_failures", "Passes in which the kernel refused something.", registry=registry
        )
        self.seconds = Histogram(
            "coil_router_sync_duration_seconds", "Length of a pass.", registry=registry, buckets=_SECONDS
        )
        self._troubled = Gauge(
            "coil_router_troubled_networks",
            "Networks of blocks that are not routed as they should be, by trouble: "
            + ", ".join(trouble.value for trouble in RouteTrouble),
            ["trouble"],
            registry=registry,
        )
        self.set_troubled(())

    def set_troubled(self, troubled: Iterable[TroubledNetwork]) -> None:
        counts = Tally(network.trouble for network in troubled)
        for trouble in RouteTrouble:
            self._troubled.labels(trouble.value).set(counts[trouble])
