"""Keeps an AddressPool until its last block is released.

Adds the finalizer to every pool, and removes it from a pool that is being deleted once no block of it is left. A pool
that was deleted too early could be replaced by another one with the same addresses, which would be given to a second
pod.
"""

from collections.abc import Iterable

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.block_request import Refused
from coil.crd.meta import plan_add_finalizer, plan_remove_finalizer
from coil.crd.names import LABEL_POOL
from coil.ipam.index_set import IndexSet
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.manager.term import Term
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil_ipam_controller.caches import BY_POOL, Caches
from coil_ipam_controller.pool_assessment import check_pool

CREATION_WAIT = 1.0
"""Seconds to the next look at a pool that is being deleted and for which a block is just being created."""
WORKERS = 2


class AddressPoolReconciler:
    """The keys are names of pools. `index` follows the blocks of `caches`."""

    def __init__(
        self,
        *,
        client: ApiClient,
        caches: Caches,
        index: IndexSet,
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._caches = caches
        self._index = index
        self._log = log

    def setup(self, term: Term) -> None:
        controller = term.controller("addresspool", self.reconcile, workers=WORKERS)
        controller.watch(self._caches.pools, _present_pool)
        controller.watch(self._caches.blocks, _pool_of_deleted_block)

    async def reconcile(self, name: str) -> Result:
        """Bring the finalizer of the pool of that name in line with its state."""
        pool = self._caches.pools.get(name)
        if pool is None:
            return DONE
        try:
            if pool.metadata.deleting:
                return await self._let_go(pool)
            await self._protect(pool)
        except NotFoundError:
            self._log.debug("pool was deleted in the meantime", pool=name)
        return DONE

    async def _protect(self, pool: AddressPool) -> None:
        outcome = check_pool(pool, self._caches.pools.items())
        if isinstance(outcome, Refused):
            self._log.warning("pool gives no blocks", pool=pool.name, reason=outcome.message)
        if (patch := plan_add_finalizer(pool.metadata)) is not None:
            await self._client.patch(ADDRESS_POOLS, pool.name, patch)

    async def _let_go(self, pool: AddressPool) -> Result:
        patch = plan_remove_finalizer(pool.metadata)
        if patch is None or self._caches.blocks.by_index(BY_POOL, pool.name):
            return DONE
        # Once the cache shows the deletion no further creation begins, as the other controller reads the same cache.
        # Those that began before are waited for; what the cache does not show yet is found by asking the API server.
        if self._index.creating(pool.name):
            return RequeueAfter(CREATION_WAIT)
        blocks = await self._client.list(ADDRESS_BLOCKS, labels=f"{LABEL_POOL}={pool.name}")
        if not blocks:
            await self._client.patch(ADDRESS_POOLS, pool.name, patch)
            self._log.info("pool released", pool=pool.name)
        return DONE if not blocks else RequeueAfter(CREATION_WAIT)


def _present_pool(_old: AddressPool | None, new: AddressPool | None) -> Iterable[str]:
    if new is not None:
        yield new.metadata.name


def _pool_of_deleted_block(old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
    if new is None and old is not None and old.pool:
        yield old.pool
