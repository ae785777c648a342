"""Addresses from address pools: the first tenant of the seam in `coild.address_source`.

Which pool: the annotation of the pod's namespace. Which address: the books of `coild.block_store`. When they have none
left: a block from `coild.block_request`, shared with whoever else waits for that pool.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Namespace
from coil.crd.names import ANNOTATION_POOL, DEFAULT_POOL, PoolName
from coil.ipam.node_ledger import AttachmentKey, LedgerConflictError
from coild.address_source import AddressUnavailableError, HeldAddresses, PodAddresses, PodName
from coild.block_store import BlockStore


class BlockDemand(Protocol):
    """`coild.block_request` is one."""

    async def request(self, pool: PoolName) -> None:
        """Return when a block of the pool has arrived. Raises AddressUnavailableError with the reason if none will."""
        ...

    async def discard_stale(self) -> None:
        """Take back what was asked for and nobody waits for any more. Does not raise for a failure."""
        ...


class PoolAddressSource:
    """Implements `AddressSource`. `namespace_of` reads one Namespace, from a cache where it can."""

    def __init__(
        self,
        *,
        store: BlockStore,
        demand: BlockDemand,
        namespace_of: Callable[[str], Coroutine[Any, Any, Namespace]],
        log: FilteringBoundLogger,
    ) -> None:
        self._store = store
        self._demand = demand
        self._namespace_of = namespace_of
        self._log = log

    async def recover(self, held: Iterable[HeldAddresses]) -> None:
        """Adopt what the kernel holds, then offer the blocks without a pod for release.

        An attachment outside this node's blocks keeps its addresses: it is reported, and in no book.
        """
        for attachment in held:
            try:
                self._store.adopt(attachment)
            except LedgerConflictError as error:
                pool = attachment.addresses.pool
                self._log.error("a pod's address is in none of this node's blocks", pool=pool, why=str(error))
        self._store.end_rest()
        self._store.offer_unused()

    async def acquire(self, key: AttachmentKey, pod: PodName, *, timeout: float) -> PodAddresses:
        """See `AddressSource`. Waits for a block when none of the pool has a free address."""
        pool: PoolName | None = None
        try:
            async with asyncio.timeout(timeout):
                known = self._store.find(key)
                pool = known.pool if known is not None else await self._pool_of(pod)
                return await self._acquire(key, pool)
        except TimeoutError:
            raise AddressUnavailableError(
                f"no answer about the namespace {pod.namespace} within {timeout:.0f} s"
                if pool is None
                else f"no free address of pool {pool} on this node, and no block within {timeout:.0f} s; "
                "is coil-ipam-controller running?"
            ) from None

    def release(self, key: AttachmentKey) -> None:
        """See `AddressSource`."""
        self._store.release(key)

    def held(self) -> frozenset[AttachmentKey]:
        """See `AddressSource`."""
        return frozenset(allocation.key for allocation in self._store.allocations())

    async def collect(self) -> None:
        """Offer every block without a pod for release, and take back requests that nobody waits for."""
        self._store.offer_unused()
        await self._demand.discard_stale()

    async def _acquire(self, key: AttachmentKey, pool: PoolName) -> PodAddresses:
        while (allocation := self._store.acquire(pool, key)) is None:
            await self._demand.request(pool)
        return PodAddresses(allocation.pool, allocation.ipv4, allocation.ipv6)

    async def _pool_of(self, pod: PodName) -> PoolName:
        namespace = await self._namespace_of(pod.namespace)
        return PoolName(namespace.metadata.annotations.get(ANNOTATION_POOL) or DEFAULT_POOL)
