"""How much of each pool is held by nodes that are dead, read from the caches at the moment of a scrape.

Every replica tells it, leader or not; take the `max by (pool)`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coil_ipam_controller.cluster_view import ClusterView
from coil_ipam_controller.dead_node import held_blocks, unready_since


class DeadNodeCollector(Collector):
    """`after` is in seconds, `now` the wall clock in UTC. Pools that are gone are told no more."""

    def __init__(
        self, view: ClusterView, registry: CollectorRegistry, *, after: float, now: Callable[[], datetime]
    ) -> None:
        self._view = view
        self._after = after
        self._now = now
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        nodes, blocks = self._families()
        now = self._now()
        dead = 0
        held: Counter[str] = Counter({pool.name: 0 for pool in self._view.pools.items()})
        for node in self._view.nodes.items():
            since = unready_since(node)
            if since is None or (now - since).total_seconds() < self._after:
                continue
            found = held_blocks(self._view, node.metadata.name)
            dead += bool(found)
            held.update(block.pool for block in found if block.pool in held)
        nodes.add_metric([], dead)
        for pool, count in held.items():
            blocks.add_metric([pool], count)
        yield nodes
        yield blocks

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily("coil_controller_dead_nodes", "Nodes that are dead, exist and hold blocks."),
            GaugeMetricFamily(
                "coil_controller_dead_node_blocks", "Blocks of the pool that dead nodes hold.", labels=["pool"]
            ),
        )
