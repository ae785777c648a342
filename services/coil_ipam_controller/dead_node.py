"""Dead nodes that still exist and hold blocks: only an admin can tell whether they come back.

Their blocks are not collected, as their pods may still run, cut off by a network failure. An Event reports it once for
each time that a node dies, and metrics show how much of each pool such nodes hold.

A node is dead when its condition Ready has been False or Unknown for `after` seconds. A node without that condition is
not: no kubelet has run there. Heartbeats do not change the condition, so they lead to no work.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.builtin import NODES, Node
from coil.manager.term import Term
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil_ipam_controller.caches import BY_NODE, Caches

SHORTEST_PAUSE = 1.0
"""Seconds: a condition's time has no fractions."""
WORKERS = 2


def unready_since(node: Node) -> datetime | None:
    """When the node ceased to be ready; None if it is ready, or no kubelet has reported yet."""
    condition = node.ready_condition
    return None if condition is None or node.ready else condition.last_transition_time


class DeadNodeReconciler:
    """The keys are names of nodes. `after` and `resync` are in seconds, `now` is the wall clock, in UTC."""

    def __init__(
        self,
        *,
        caches: Caches,
        recorder: Recorder,
        after: float,
        resync: float,
        now: Callable[[], datetime],
        log: FilteringBoundLogger,
    ) -> None:
        self._caches = caches
        self._recorder = recorder
        self._after = after
        self._resync = resync
        self._now = now
        self._log = log
        # The death that was reported last, by node.
        self._reported: dict[str, tuple[str, datetime]] = {}

    def setup(self, term: Term) -> None:
        controller = term.controller("deadnode", self.reconcile, workers=WORKERS)
        controller.watch(self._caches.nodes, self.changed_nodes)
        controller.watch(self._caches.blocks, self.holders)
        controller.resync(self.unready_nodes, every=self._resync, at_start=True)

    async def reconcile(self, name: str) -> Result:
        """Report the node of that name once it is dead and holds blocks."""
        node = self._caches.nodes.get(name)
        since = None if node is None else unready_since(node)
        blocks = held_blocks(self._caches, name)
        if node is None or since is None or not blocks:
            if self._reported.pop(name, None) is not None:
                self._log.info("dead node holds no blocks any more", node=name)
            return DONE
        left = self._after - (self._now() - since).total_seconds()
        if left > 0:
            return RequeueAfter(max(left, SHORTEST_PAUSE))
        death = node.metadata.uid, since
        if self._reported.get(name) != death:
            self._reported[name] = death
            self._report(node, since, blocks)
        return DONE

    def unready_nodes(self) -> list[str]:
        """Names of nodes that are not ready, for however long."""
        return [node.metadata.name for node in self._caches.nodes.items() if unready_since(node) is not None]

    def changed_nodes(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """The node of this change, if it began or ceased to be ready."""
        before = None if old is None else unready_since(old)
        after = None if new is None else unready_since(new)
        node = new or old
        if before != after and node is not None:
            yield node.metadata.name

    def holders(self, old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
        """The node that begins or ceases to hold that block, if it is not ready."""
        for block in (old, new):
            if block is not None and block.node and (old is None or new is None or old.node != new.node):
                node = self._caches.nodes.get(block.node)
                if node is not None and unready_since(node) is not None:
                    yield block.node

    def _report(self, node: Node, since: datetime, blocks: list[AddressBlock]) -> None:
        name = node.metadata.name
        pools = ", ".join(f"{pool} ({count})" for pool, count in sorted(Counter(b.pool for b in blocks).items()))
        message = (
            f"not ready since {since:%Y-%m-%d %H:%M:%S} UTC, and holds blocks that no other node can use, of the pools "
            f"{pools}. If it does not come back, delete the Node object to get them back"
        )
        self._recorder.warn(EventSubject.of(NODES, node.metadata), reason="HoldsBlocks", message=message)
        self._log.warning("dead node holds blocks", node=name, since=since.isoformat(), blocks=len(blocks), pools=pools)


def held_blocks(caches: Caches, node: str) -> list[AddressBlock]:
    """The blocks that are collected when the node is deleted."""
    return [block for block in caches.blocks.by_index(BY_NODE, node) if not block.reserved]


class DeadNodeCollector(Collector):
    """How much of each pool dead nodes hold, read from the caches at the moment of a scrape.

    Every replica reports it, leader or not; take the `max by (pool)`. `after` is in seconds, `now` is in UTC.
    """

    def __init__(
        self, caches: Caches, registry: CollectorRegistry, *, after: float, now: Callable[[], datetime]
    ) -> None:
        self._caches = caches
        self._after = after
        self._now = now
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        nodes, blocks = self._families()
        now = self._now()
        dead = 0
        held: Counter[str] = Counter({pool.name: 0 for pool in self._caches.pools.items()})
        for node in self._caches.nodes.items():
            since = unready_since(node)
            if since is None or (now - since).total_seconds() < self._after:
                continue
            found = held_blocks(self._caches, node.metadata.name)
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
            GaugeMetricFamily("coil_controller_dead_nodes", "Dead nodes that are not deleted and own blocks."),
            GaugeMetricFamily(
                "coil_controller_dead_node_blocks", "Blocks of the pool that dead nodes own.", labels=["pool"]
            ),
        )
