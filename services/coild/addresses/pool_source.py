"""Addresses from address pools: an implementation of `coild.model.address_source`.

Which pool: the annotation of the pod's namespace. Which address: a free one of `coild.addresses.block_store`, or, if
there is none, whatever `coild.addresses.pool_demand` can get.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Namespace
from coil.crd.names import ANNOTATION_POOL, DEFAULT_POOL, PoolName
from coil.ipam.node_ledger import Allocation, LedgerConflictError
from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress
from coil.kube.errors import NotFoundError
from coil.page.node_document import PoolDocument
from coil.podnet.host_link import PodAlias
from coild.addresses.block_requester import BlockRequester
from coild.addresses.block_size import BlockSizes
from coild.addresses.block_store import BlockStore
from coild.addresses.journal import AddressJournal
from coild.addresses.pool_demand import PoolDemand
from coild.addresses.report import describe_pools
from coild.model.address_source import NONE_ENDED, Ended, PodWiring
from coild.model.attachment import AddRequest, AddressUnavailableError, Attachment, NoSuchNamespaceError, PodName


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAddressSource:
    """Implements `AddressSource`. `namespace_of` reads one Namespace, from a cache where it can."""

    store: BlockStore
    demand: PoolDemand
    requester: BlockRequester
    sizes: BlockSizes
    namespace_of: Callable[[str], Coroutine[Any, Any, Namespace]]
    journal: AddressJournal
    wiring: PodWiring[Any]
    log: FilteringBoundLogger
    collectors: Collection[Collector] = ()

    def owns(self, alias: PodAlias) -> bool:
        """See `AddressSource`. The tag is the name of the pool."""
        return alias.tag != ""

    async def identify(self, key: AttachmentKey, pod: PodName, *, deadline: float) -> AttachmentKey:
        """See `AddressSource`."""
        return key

    def recognizes(self, tag: str, address: IPAddress) -> bool:
        """See `AddressSource`."""
        return self.store.has(PoolName(tag), address)

    def pod_of(self, key: AttachmentKey) -> PodName | None:
        """See `AddressSource`. The journal knows."""
        return self.journal.holder(key).pod

    def holding(self, key: AttachmentKey) -> tuple[IPAddress, ...]:
        """See `AddressSource`."""
        held = self.store.find(key)
        return () if held is None else _addresses(held)

    async def recover(self, found: Sequence[Attachment], ended: Ended = NONE_ENDED) -> None:
        """Adopt what the kernel holds, then offer the blocks without a pod for release.

        An attachment outside this node's blocks keeps its addresses: it is logged, and not in the ledger.
        """
        for attachment in found:
            try:
                self.store.adopt(attachment)
            except LedgerConflictError as error:
                pool = attachment.tag
                self.log.error("a pod's address is in none of this node's blocks", pool=pool, error=str(error))
        self.store.resume(ended)
        self.demand.mark_all()
        self.store.offer_unused()

    async def acquire(self, key: AttachmentKey, request: AddRequest, *, timeout: float) -> Attachment:
        """See `AddressSource`. Waits for a block when none of the pool has a free address."""
        pod = request.pod
        if (allocation := self.store.find(key)) is None:
            end = asyncio.get_running_loop().time() + timeout
            try:
                async with asyncio.timeout_at(end):
                    pool = await self._pool_of(pod)
            except TimeoutError:
                raise AddressUnavailableError(
                    f"no answer about the namespace {pod.namespace} within {max(timeout, 0):.0f} s"
                ) from None
            allocation = await self.demand.take(pool, key, pod, deadline=end)
        alias = PodAlias(allocation.pool, key.container_id, key.ifname)
        return Attachment.of(request, key=key, addresses=_addresses(allocation), alias=alias)

    def revoke(self, key: AttachmentKey) -> None:
        """See `AddressSource`."""
        self.store.revoke(key)

    def release(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """See `AddressSource`."""
        self.store.release(key, ended=ended)

    def held(self) -> frozenset[AttachmentKey]:
        """See `AddressSource`."""
        return frozenset(allocation.key for allocation in self.store.allocations())

    async def collect(self) -> None:
        """Offer every block without a pod for release, and take back requests that nobody waits for."""
        self.demand.mark_all()
        self.store.offer_unused()
        await self.requester.discard_stale()

    def describe(self) -> tuple[PoolDocument, ...]:
        """The pools of this node, for its inspection page."""
        return describe_pools(self.store.occupancy(), self.journal)

    def metrics(self) -> Collection[Collector]:
        """See `AddressSource`."""
        return self.collectors

    def foresee(self, old: Namespace | None, new: Namespace | None) -> None:
        """Learn of a pool whose pods may come to this node. A listener for the informer of namespaces."""
        if new is not None:
            self.sizes.foresee(_pool_named_by(new))

    async def _pool_of(self, pod: PodName) -> PoolName:
        try:
            return _pool_named_by(await self.namespace_of(pod.namespace))
        except NotFoundError as error:
            raise NoSuchNamespaceError(str(error)) from error


def _addresses(allocation: Allocation) -> tuple[IPAddress, ...]:
    return tuple(address for address in (allocation.ipv4, allocation.ipv6) if address is not None)


def _pool_named_by(namespace: Namespace) -> PoolName:
    return PoolName(namespace.metadata.annotations.get(ANNOTATION_POOL) or DEFAULT_POOL)
