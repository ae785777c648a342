"""Gives blocks back that no pod uses any more.

Driven by a work queue of block names. A block first rests, as long as its addresses do: another node might give them to
its pods. One that is kept as a spare, or may be the very one that was asked for, stays. Then, in this order: out of the
books (no address of it can be given), the route withdrawn, the request that it answers retracted should it still stand
(its answer may be under way), the object deleted, its finalizer removed. Each step may be
repeated, and a crash between two of them is finished by the next process, which finds the block without a pod.

The UID of the object that left the books goes with each call as a precondition, so a block of the same name made since
is left alone; the conflict is raised to be retried, until the informer has told the books who has the name now.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.names import FINALIZER, BlockName, RequestUid
from coil.ipam.block import Block, BlockUse
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coild.addresses.block_store import BlockStore

SHORTEST_PAUSE = 0.01
"""Seconds: the rounding of clocks must not leave a rest too short to pass."""


@dataclass(frozen=True, slots=True)
class BlockRelease:
    """`withdraw` makes the exported routes agree with the books, `retract` is the requester's.

    `stay` says for how many seconds a block has to stay at least though no pod uses it; 0 if it may go.
    """

    client: ApiClient
    store: BlockStore
    withdraw: Callable[[], Awaitable[None]]
    retract: Callable[[RequestUid], Awaitable[None]]
    stay: Callable[[Block], float]
    log: FilteringBoundLogger

    async def reconcile(self, key: str) -> Result:
        """Release the block named `key` if nobody uses it. Idempotent; raises to be retried."""
        name = BlockName(key)
        block, pause = self.store.block(name), self.store.rest_left(name)
        if block is not None and pause is not None:
            if pause == 0 and block.use is BlockUse.OPEN:
                pause = self.stay(block)
            if pause > 0:
                return RequeueAfter(max(pause, SHORTEST_PAUSE))
        departure = self.store.depart(name)
        if departure is None:
            return DONE
        await self.withdraw()
        await self.retract(departure.request)
        finalizers = [finalizer for finalizer in departure.finalizers if finalizer != FINALIZER]
        try:
            await self.client.delete(ADDRESS_BLOCKS, name, uid=departure.uid)
            patch = {"metadata": {"uid": departure.uid, "finalizers": finalizers}}
            await self.client.patch(ADDRESS_BLOCKS, name, patch)
        except NotFoundError:
            pass
        self.log.info("block released", block=name)
        return DONE
