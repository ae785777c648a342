"""What has changed since the pools were last reviewed. This takes the place of callbacks between the parts of a pool.

    BlockStore, BlockRequester, BlockSizes, timers, waiting pods ─► PoolChanges ─► PoolDemand.run: one review per pool

A state change is synchronous, completes, and leaves a mark here; it never calls the part that reacts to it. So a review
cannot start inside another one, or see a half-made change. Marks are idempotent: any number of changes to a pool before
the next turn of the event loop cost one review.

A block that ran empty is marked as well, and offered for release only after the review: a pod that waits comes first.
"""

import asyncio

from coil.crd.names import BlockName, PoolName


class PoolChanges:
    """One per process. Marks are kept until they are taken, also while nobody waits for them."""

    def __init__(self) -> None:
        self._pools: dict[PoolName, None] = {}
        self._emptied: dict[BlockName, None] = {}
        self._marked = asyncio.Event()

    def mark(self, pool: PoolName) -> None:
        """The pool has to be reviewed: it may have more, fewer or other addresses to give, or more pods that wait."""
        self._pools[pool] = None
        self._marked.set()

    def mark_emptied(self, block: BlockName) -> None:
        """No pod uses the block any more, or its release is still to be finished."""
        self._emptied[block] = None
        self._marked.set()

    async def wait(self) -> None:
        """Return once there is a mark to take. Cancellation takes none."""
        await self._marked.wait()

    def take(self) -> tuple[list[PoolName], list[BlockName]]:
        """The marked pools and the emptied blocks, in the order in which they were marked; each is handed out once."""
        pools, emptied = list(self._pools), list(self._emptied)
        self._pools.clear()
        self._emptied.clear()
        self._marked.clear()
        return pools, emptied
