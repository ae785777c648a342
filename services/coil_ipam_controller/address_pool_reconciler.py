"""Keeps an AddressPool from going while blocks of it exist.

Adds the finalizer to every pool, and takes it away from a pool that is being deleted once its last block has
gone. A pool that went too early could be followed by another one with the same addresses, and these would be
given to a second pod.
"""

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.block_request import Refused
from coil.crd.names import LABEL_POOL
from coil.ipam.index_set import IndexSet
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil_ipam_controller import finalizer
from coil_ipam_controller.cluster_view import BY_POOL, ClusterView
from coil_ipam_controller.pool_supply import judge_pool

CREATION_WAIT = 1.0
"""Seconds to the next look at a dying pool for which a block is just being created."""


class AddressPoolReconciler:
    """Wants to be told of pools, and of the pool of each block that goes."""

    def __init__(self, *, client: ApiClient, view: ClusterView, book: IndexSet, log: FilteringBoundLogger) -> None:
        self._client = client
        self._view = view
        self._book = book
        self._log = log

    async def reconcile(self, name: str) -> Result:
        """Bring the finalizer of the pool of that name in line with its state."""
        pool = self._view.pools.get(name)
        if pool is None:
            return DONE
        try:
            if pool.metadata.deleting:
                return await self._let_go(pool)
            await self._protect(pool)
        except NotFoundError:
            self._log.debug("pool went meanwhile", pool=name)
        return DONE

    async def _protect(self, pool: AddressPool) -> None:
        judgement = judge_pool(pool, self._view.pools.items())
        if isinstance(judgement, Refused):
            self._log.warning("pool gives no blocks", pool=pool.name, reason=judgement.message)
        if (patch := finalizer.plan_add(pool.metadata)) is not None:
            await self._client.patch(ADDRESS_POOLS, pool.name, patch)

    async def _let_go(self, pool: AddressPool) -> Result:
        patch = finalizer.plan_remove(pool.metadata)
        if patch is None or self._view.blocks.by_index(BY_POOL, pool.name):
            return DONE
        # From the moment the cache shows the deletion no new creation begins, as the other controller reads the
        # same cache. Those that began before are waited for, and whatever the cache lags behind is asked for.
        if self._book.creating(pool.name):
            return RequeueAfter(CREATION_WAIT)
        blocks = await self._client.list(ADDRESS_BLOCKS, labels=f"{LABEL_POOL}={pool.name}")
        if not blocks:
            await self._client.patch(ADDRESS_POOLS, pool.name, patch)
            self._log.info("pool released", pool=pool.name)
        return DONE if not blocks else RequeueAfter(CREATION_WAIT)
