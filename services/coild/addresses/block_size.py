"""How many addresses a block of each pool has: known from its blocks, or read from the API server. Part of
`coild.addresses.pool_demand`.

The size of a pool's blocks never changes, so it is remembered; a pool that was re-created with another size corrects it
with its first block. Pools that namespaces name are read before a pod needs them: when a burst of pods uses a pool that
is new to the node, it is then known at once how many blocks to request.
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
from coild.addresses.pool_changes import PoolChanges

LARGEST_BITS = 127

RETRY_SECONDS = 30.0
"""A pool that could not be read is not read again earlier."""

FORESEEN_POOLS = 256
"""A bound, as anybody who may annotate a namespace may name pools."""


@dataclass(slots=True)
class BlockSizes:
    """One per process. A pool whose size was read is marked in `changes`."""

    client: ApiClient
    changes: PoolChanges
    log: FilteringBoundLogger
    clock: Callable[[], float] = time.monotonic
    _sizes: dict[PoolName, int] = field(default_factory=dict)
    _failures: dict[PoolName, float] = field(default_factory=dict)
    """When a pool could not be read."""
    _reading: dict[PoolName, asyncio.Task[None]] = field(default_factory=dict)
    _foreseen: dict[PoolName, None] = field(default_factory=dict)
    """In the order in which they are read; those that were read stay."""
    _reader: asyncio.Task[None] | None = None
    """Reads what is foreseen."""

    def of(self, pool: PoolName) -> int | None:
        """The number of addresses of a block, if it is known."""
        return self._sizes.get(pool)

    def teach(self, pool: PoolName, size: int) -> None:
        """A block of the pool is here."""
        self._sizes[pool] = size

    def ask(self, pool: PoolName) -> None:
        """Read the pool now, in the background. Without an answer the pool's first block will show its size."""
        failed = self._failures.get(pool, -math.inf)
        if pool not in self._sizes and pool not in self._reading and self.clock() >= failed + RETRY_SECONDS:
            task = asyncio.create_task(self._read(pool), name=f"block size of {pool}")
            self._reading[pool] = task
            task.add_done_callback(lambda _: self._reading.pop(pool, None))

    def foresee(self, pool: PoolName) -> None:
        """Read the pool when those named before have been read; each once. `ask` is not affected by a failure."""
        if pool in self._foreseen or len(self._foreseen) >= FORESEEN_POOLS:
            return
        self._foreseen[pool] = None
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_foreseen(pool), name="block sizes")

    async def close(self) -> None:
        """Cancel what is under way."""
        tasks = [*self._reading.values(), *([] if self._reader is None else [self._reader])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_foreseen(self, first: PoolName) -> None:
        names = list(self._foreseen)
        position = names.index(first)
        while position < len(names):
            pool = names[position]
            if pool not in self._sizes:
                try:
                    await self._fetch(pool)
                except ApiError as error:
                    self.log.info("a pool that a namespace names could not be read", pool=pool, error=str(error))
            names, position = list(self._foreseen), position + 1

    async def _read(self, pool: PoolName) -> None:
        try:
            await self._fetch(pool)
        except ApiError as error:
            self._failures[pool] = self.clock()
            self.log.info("blocks are asked for one at a time", pool=pool, error=str(error))

    async def _fetch(self, pool: PoolName) -> None:
        """Raises ApiError."""
        document = await self.client.get(ADDRESS_POOLS, pool)
        bits = document.spec.block_size_bits
        if 0 <= bits <= LARGEST_BITS:  # what is stored was not necessarily validated
            self._sizes.setdefault(pool, 1 << bits)
            self._failures.pop(pool, None)
            self.changes.mark(pool)
