"""The inspection page of the cluster's blocks, from the caches, so that every replica can serve it, leader or not.

    Caches, BlockHistory, Election ─► look ─► coil_ipam_controller.cluster_description ─► coil.page

The API server is not asked: the page may lag behind as far as the caches do.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from coil.crd.names import PoolName
from coil.manager.election import Election
from coil.page.cluster_document import ClusterDocument
from coil.page.cluster_page import render_cluster_page
from coil.runtime.inspection import Inspection, start_inspection
from coil.runtime.process import Process
from coil_ipam_controller.caches import BY_POOL, Caches
from coil_ipam_controller.cluster_description import ClusterSnapshot, HistorySnapshot, describe_cluster
from coil_ipam_controller.eni.description import describe_interfaces
from coil_ipam_controller.eni.view import EniView
from coil_ipam_controller.settings import Settings

POINTS = 120
POOLS = 256


class BlockHistory:
    """How many blocks each pool had during the last `span` seconds. Lost with the process. `now` is in UTC.

    Bounded: `POINTS` samples of each of `POOLS` pools at most, a few hundred kilobytes.
    """

    def __init__(self, caches: Caches, *, span: float, now: Callable[[], datetime]) -> None:
        self._interval = span / POINTS
        self._caches = caches
        self._now = now
        self._samples: dict[PoolName, deque[int]] = {}
        self._last: datetime | None = None

    def read(self) -> HistorySnapshot:
        """The samples up to now."""
        counts = {pool: tuple(samples) for pool, samples in self._samples.items()}
        return HistorySnapshot(self._interval, self._last, counts)

    def sample(self) -> None:
        """Record every pool's present count, and forget pools that were deleted.

        Nothing while a cache is not synced, as where the kinds are not served: that would be a pool without blocks.
        """
        if not (self._caches.pools.synced and self._caches.blocks.synced):
            return
        names = {pool.name for pool in self._caches.pools.items()}
        for gone in self._samples.keys() - names:
            del self._samples[gone]
        # Those that have samples stay; of the others, the first by name.
        for name in sorted(names, key=lambda name: (name not in self._samples, name))[:POOLS]:
            known = self._samples.setdefault(name, deque(maxlen=POINTS))
            known.append(len(self._caches.blocks.by_index(BY_POOL, name)))
        self._last = self._now()

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(self._interval)


def start_cluster_inspection(
    settings: Settings,
    process: Process,
    *,
    caches: Caches,
    election: Election,
    history: BlockHistory,
    interfaces: EniView | None = None,
) -> None:
    """Serve the inspection page on the port of the settings until the process stops.

    `interfaces` is what the leader sees of EC2, where that is what gives pods their addresses.
    """

    def look() -> Callable[[], ClusterDocument]:
        snapshot = ClusterSnapshot(
            replica=election.identity,
            leads=election.holds_lease(),
            at=datetime.now(UTC),
            pools=caches.pools.items(),
            blocks=caches.blocks.items(),
            nodes=caches.nodes.items(),
            requests=caches.requests.items(),
            history=history.read(),
            interfaces=None if interfaces is None else describe_interfaces(interfaces),
        )
        return partial(describe_cluster, snapshot)

    inspection = Inspection(look, render_cluster_page)
    start_inspection(process, inspection, {"inspect": settings.inspect_addr}, log=process.log)
