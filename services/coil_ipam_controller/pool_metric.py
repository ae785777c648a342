"""The fill level of every pool, read from the caches at the moment of a scrape, so that it cannot be stale.

Every replica tells it, leader or not; take the `max by (pool)`.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coil.crd.block_request import Refused
from coil_ipam_controller.cluster_view import BY_POOL, ClusterView
from coil_ipam_controller.pool_supply import judge_pool


def doubtful_blocks(registry: CollectorRegistry) -> Gauge:
    """How many blocks the leader has told somebody to look at; 0 in every other replica."""
    return Gauge(
        "coil_controller_doubtful_blocks",
        "Blocks that contradict their pool, belong to nobody or do not go: an Event on each says why.",
        registry=registry,
    )


class PoolCollector(Collector):
    """A pool that gives no blocks has a maximum of 0. Pools that are gone are told no more."""

    def __init__(self, view: ClusterView, registry: CollectorRegistry) -> None:
        self._view = view
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape, and the caches may not be there yet.
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        most, allocated = self._families()
        pools = self._view.pools.items()
        for pool in pools:
            layout = judge_pool(pool, pools)
            most.add_metric([pool.name], 0 if isinstance(layout, Refused) else layout.size)
            allocated.add_metric([pool.name], len(self._view.blocks.by_index(BY_POOL, pool.name)))
        yield most
        yield allocated

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily("coil_controller_max_blocks", "Blocks that the pool can have.", labels=["pool"]),
            GaugeMetricFamily("coil_controller_allocated_blocks", "Blocks of the pool that exist.", labels=["pool"]),
        )
