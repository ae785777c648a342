"""Collects what deleted nodes have left: their blocks, and requests that nothing waits for any more.

A node's coild gives its blocks back itself, unless the node goes together with it. The keys are names of nodes: of
those that were deleted, of those that a new block names and the cache does not have, and from time to time of all that
blocks or requests name and the cache does not have, in case an event was missed.

A block that is collected may be given to another node, so the absence of a node is never taken from a cache, and it has
to last: a Node object that is deleted by mistake, or to have the node register again, may be back within moments, and
the pods on that node have never stopped. Reserved blocks are left alone: they are kept for a program that Coil does not
know, and whoever reserved them removes them.
"""

from collections.abc import Callable, Iterable

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest
from coil.crd.builtin import NODES, Node
from coil.crd.meta import plan_remove_finalizer
from coil.crd.names import NodeName, is_object_name
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.manager.term import Term
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil_ipam_controller.caches import BY_NODE, Caches

WORKERS = 4


class NodeReconciler:
    """The keys are names of nodes. A node must have been absent for `grace` seconds on `clock`, which is monotonic.

    All absent nodes are looked for every `resync` seconds.
    """

    def __init__(
        self,
        *,
        client: ApiClient,
        caches: Caches,
        grace: float,
        resync: float,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._caches = caches
        self._grace = grace
        self._resync = resync
        self._clock = clock
        self._log = log
        # Since when nodes that left something are known to be absent.
        self._absent_since: dict[str, float] = {}

    def setup(self, term: Term) -> None:
        controller = term.controller("node", self.reconcile, workers=WORKERS)
        controller.watch(self._caches.nodes, self.gone_nodes)
        controller.watch(self._caches.blocks, self.absent_holders)
        # An empty cache would look like a cluster without requests.
        controller.needs(self._caches.requests)
        controller.resync(self.absent_nodes, every=self._resync, at_start=True)

    def absent_nodes(self) -> set[NodeName]:
        """Nodes that blocks or requests name and the cache does not have."""
        named = {block.node for block in self._caches.blocks.items() if block.node and not block.reserved}
        named |= {request.spec.node_name for request in self._caches.requests.items()}
        return {name for name in named if self._caches.nodes.get(name) is None}

    async def reconcile(self, name: str) -> Result:
        """Collect what belongs to the node of that name, if it is absent and has been for the grace period."""
        if not any(self._leftovers(name)) or self._caches.nodes.get(name) is not None:
            self._absent_since.pop(name, None)
            return DONE
        now = self._clock()
        left = self._absent_since.setdefault(name, now) + self._grace - now
        if left > 0:
            self._log.info("node is absent, its blocks are kept for a while", node=name, seconds=round(left, 1))
            return RequeueAfter(left)
        if await self._exists(name):
            self._absent_since.pop(name, None)
            return DONE
        blocks, requests = self._leftovers(name)
        for block in blocks:
            await self._collect_block(block)
        for request in requests:
            await self._collect_request(request)
        # Not before the end, so that a retry need not wait again.
        self._absent_since.pop(name, None)
        return DONE

    def gone_nodes(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """The node of this change, if it was deleted. The absence of one that comes back is forgotten."""
        if new is not None and old is None:
            self._absent_since.pop(new.metadata.name, None)
        elif new is None and old is not None:
            yield old.metadata.name

    def absent_holders(self, old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
        """The node of a new block, if it is absent: a block may be created for a node that is being deleted."""
        if old is None and new is not None and new.node and self._caches.nodes.get(new.node) is None:
            yield new.node

    def _leftovers(self, name: str) -> tuple[list[AddressBlock], list[BlockRequest]]:
        blocks = [block for block in self._caches.blocks.by_index(BY_NODE, name) if not block.reserved]
        return blocks, self._caches.requests.by_index(BY_NODE, name)

    async def _exists(self, name: str) -> bool:
        try:
            if is_object_name(name):
                await self._client.get(NODES, name)
                return True
        except NotFoundError:
            pass
        return False

    async def _collect_block(self, block: AddressBlock) -> None:
        # Deleted before its finalizer is removed: in between it is being deleted, and never a block without finalizer.
        log = self._log.bind(block=block.name, node=block.node, pool=block.pool)
        try:
            await self._client.delete(ADDRESS_BLOCKS, block.name, uid=block.metadata.uid)
            live = await self._client.get(ADDRESS_BLOCKS, block.name)
            patch = plan_remove_finalizer(live.metadata)
            if live.metadata.uid == block.metadata.uid and patch is not None:
                await self._client.patch(ADDRESS_BLOCKS, block.name, patch)
        except NotFoundError:
            log.debug("block was deleted in the meantime")
        log.info("block of an absent node collected")

    async def _collect_request(self, request: BlockRequest) -> None:
        name = request.metadata.name
        try:
            await self._client.delete(BLOCK_REQUESTS, name, uid=request.metadata.uid)
        except NotFoundError:
            return
        self._log.info("block request of an absent node collected", request=name, node=request.spec.node_name)
