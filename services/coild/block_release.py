"""Gives blocks back that no pod uses any more.

Driven by a work queue of block names. A block first rests for a while, so that a pod that is replaced finds it still
there; and none of a pool goes while another of it is asked for: it may be the very one. Then, in this order: out of the
books (no address of it can be given), the route withdrawn, the object deleted, its finalizer removed. Each step may be
repeated, and a crash between two of them is finished by the next process, which finds the block without a pod.

The UID of the object that left the books goes with each call as a precondition, so a block of the same name made since
is left alone; the conflict is raised to be retried, until the informer has told the books who has the name now.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.names import FINALIZER, BlockName, PoolName
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.reconcile.controller import DONE, After, Result
from coild.block_store import BlockStore

SHORTEST_PAUSE = 0.01
"""Seconds: the rounding of clocks must not leave a rest too short to pass."""

REQUESTED_PAUSE = 1.0
"""Seconds after which a block that was kept for an outstanding request is looked at again."""


@dataclass(frozen=True, slots=True)
class BlockRelease:
    """`withdraw` makes the exported routes agree with the books; `rest` is in seconds.

    `requested` says whether a block of the pool is asked for at the moment.
    """

    client: ApiClient
    store: BlockStore
    withdraw: Callable[[], Awaitable[None]]
    requested: Callable[[PoolName], bool]
    rest: float
    log: FilteringBoundLogger

    async def reconcile(self, key: str) -> Result:
        """Release the block named `key` if nobody uses it. Idempotent; raises to be retried."""
        name = BlockName(key)
        idle = self.store.idle_for(name)
        if idle is not None and idle < self.rest:
            return After(max(self.rest - idle, SHORTEST_PAUSE))
        if idle is not None and idle < math.inf and self.requested(self.store.pool_of(name)):
            return After(REQUESTED_PAUSE)
        departure = self.store.depart(name)
        if departure is None:
            return DONE
        await self.withdraw()
        finalizers = [finalizer for finalizer in departure.finalizers if finalizer != FINALIZER]
        try:
            await self.client.delete(ADDRESS_BLOCKS, name, uid=departure.uid)
            patch = {"metadata": {"uid": departure.uid, "finalizers": finalizers}}
            await self.client.patch(ADDRESS_BLOCKS, name, patch)
        except NotFoundError:
            pass
        self.log.info("block released", block=name)
        return DONE
