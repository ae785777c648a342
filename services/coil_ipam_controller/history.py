"""How many blocks each pool had over the last while, for people to look at. Lost with the process, and no loss.

Bounded: `POINTS` samples of each of `POOLS` pools at most, a few hundred kilobytes.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime

from coil.crd.names import PoolName
from coil_ipam_controller.cluster_description import HistorySnapshot
from coil_ipam_controller.cluster_view import BY_POOL, ClusterView

POINTS = 120
POOLS = 256


class BlockHistory:
    """The last `span` seconds of all pools. `now` is the wall clock, in UTC."""

    def __init__(self, view: ClusterView, *, span: float, now: Callable[[], datetime]) -> None:
        self._interval = span / POINTS
        self._view = view
        self._now = now
        self._samples: dict[PoolName, deque[int]] = {}
        self._last: datetime | None = None

    def read(self) -> HistorySnapshot:
        """What is noted, as it is now."""
        counts = {pool: tuple(samples) for pool, samples in self._samples.items()}
        return HistorySnapshot(self._interval, self._last, counts)

    def sample(self) -> None:
        """Note every pool's present count, and forget pools that are gone."""
        names = {pool.name for pool in self._view.pools.items()}
        for gone in self._samples.keys() - names:
            del self._samples[gone]
        # Those that are followed already stay; of the others, the first by name.
        for name in sorted(names, key=lambda name: (name not in self._samples, name))[:POOLS]:
            known = self._samples.setdefault(name, deque(maxlen=POINTS))
            known.append(len(self._view.blocks.by_index(BY_POOL, name)))
        self._last = self._now()

    async def run(self) -> None:
        """Sample for ever. The caches must be synced: empty ones would be noted as pools without blocks."""
        while True:
            self.sample()
            await asyncio.sleep(self._interval)
