"""How many addresses a block of each pool has: known from blocks, or asked of the API server. Part of `pool_demand`.

The size of a pool's blocks never changes, so it is remembered; a pool that was made anew with another corrects it with
its first block. Pools that namespaces name are asked about before a pod needs them: a burst of pods on a pool that is
new to the node then knows at once how many blocks to ask for.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.names import PoolName
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError

LARGEST_BITS = 127

RETRY_SECONDS = 30.0
"""A pool that could not be read is not tried again before."""

FORESEEN_POOLS = 256
"""Anybody who may annotate a namespace may name pools."""


@dataclass(slots=True)
class BlockSizes:
    """One per process. Set `learnt`: it is told of a pool when its size has become known."""

    client: ApiClient
    log: FilteringBoundLogger
    clock: Callable[[], float] = time.monotonic
    learnt: Callable[[PoolName], None] = lambda pool: None
    _sizes: dict[PoolName, int] = field(default_factory=dict)
    _failures: dict[PoolName, float] = field(default_factory=dict)
    """When a pool could not be read."""
    _reading: dict[PoolName, asyncio.Task[None]] = field(default_factory=dict)
    _foreseen: dict[PoolName, None] = field(default_factory=dict)
    """In the order in which they are read; those that were read stay."""
    _scout: asyncio.Task[None] | None = None

    def of(self, pool: PoolName) -> int | None:
        """The number of addresses of a block, if it is known."""
        return self._sizes.get(pool)

    def teach(self, pool: PoolName, size: int) -> None:
        """A block of the pool is here."""
        self._sizes[pool] = size

    def ask(self, pool: PoolName) -> None:
        """Find out now, in the background. Without an answer the pool's first block will tell."""
        failed = self._failures.get(pool, -math.inf)
        if pool not in self._sizes and pool not in self._reading and self.clock() >= failed + RETRY_SECONDS:
            task = asyncio.create_task(self._read(pool), name=f"block size of {pool}")
            self._reading[pool] = task
            task.add_done_callback(lambda _: self._reading.pop(pool, None))

    def foresee(self, pool: PoolName) -> None:
        """Find out at leisure, one pool after the other, and each once. Without an answer, `ask` is as before."""
        if pool in self._foreseen or len(self._foreseen) >= FORESEEN_POOLS:
            return
        self._foreseen[pool] = None
        if self._scout is None or self._scout.done():
            self._scout = asyncio.create_task(self._explore(pool), name="block sizes")

    async def close(self) -> None:
        """Cancel what is under way."""
        doomed = [*self._reading.values(), *([] if self._scout is None else [self._scout])]
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)

    async def _explore(self, first: PoolName) -> None:
        names = list(self._foreseen)
        position = names.index(first)
        while position < len(names):
            pool = names[position]
            if pool not in self._sizes:
                try:
                    await self._fetch(pool)
                except ApiError as error:
                    self.log.info("a pool that a namespace names could not be read", pool=pool, why=str(error))
            names, position = list(self._foreseen), position + 1

    async def _read(self, pool: PoolName) -> None:
        try:
            await self._fetch(pool)
        except ApiError as error:
            self._failures[pool] = self.clock()
            self.log.info("blocks are asked for one at a time", pool=pool, why=str(error))

    async def _fetch(self, pool: PoolName) -> None:
        """Raises ApiError."""
        document = await self.client.get(ADDRESS_POOLS, pool)
        bits = document.spec.block_size_bits
        if 0 <= bits <= LARGEST_BITS:  # what is stored was not necessarily validated
            self._sizes.setdefault(pool, 1 << bits)
            self._failures.pop(pool, None)
            self.learnt(pool)
