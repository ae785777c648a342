"""Collects what belongs to nodes that are no more: their blocks, and the requests that nobody waits for.

A node's coild gives its blocks back itself, but not when the node went with it. The keys are node names: of
nodes that were deleted, of nodes that new blocks and requests name and the cache does not know, and from time to
time of all that are named and absent (`absent_nodes`), in case an event was missed.

What is collected is lost for running pods, so the absence of a node is never taken from a cache. Reserved blocks
are left alone: they are kept for a program that Coil knows nothing of, and whoever reserved them removes them.
"""

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest
from coil.crd.builtin import NODES
from coil.crd.names import NodeName, is_object_name
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.reconcile.controller import DONE, Result
from coil_ipam_controller import finalizer
from coil_ipam_controller.cluster_view import BY_NODE, ClusterView


class NodeController:
    """Its caches must be synced before it works: an empty one looks like a cluster without nodes."""

    def __init__(self, *, client: ApiClient, view: ClusterView, log: FilteringBoundLogger) -> None:
        self._client = client
        self._view = view
        self._log = log

    def absent_nodes(self) -> set[NodeName]:
        """Nodes that blocks or requests name and the cache does not have."""
        named = {block.node for block in self._view.blocks.items() if block.node and not block.reserved}
        named |= {request.spec.node_name for request in self._view.requests.items()}
        return {name for name in named if self._view.nodes.get(name) is None}

    async def reconcile(self, name: str) -> Result:
        """Collect what belongs to the node of that name, if there is none."""
        blocks = [block for block in self._view.blocks.by_index(BY_NODE, name) if not block.reserved]
        requests = self._view.requests.by_index(BY_NODE, name)
        if not (blocks or requests) or self._view.nodes.get(name) is not None or await self._exists(name):
            return DONE
        for block in blocks:
            await self._collect_block(block)
        for request in requests:
            await self._collect_request(request)
        return DONE

    async def _exists(self, name: str) -> bool:
        try:
            if is_object_name(name):
                await self._client.get(NODES, name)
                return True
        except NotFoundError:
            pass
        return False

    async def _collect_block(self, block: AddressBlock) -> None:
        # Deleted first, then let go: in between it is marked as going, never a block without its finalizer.
        log = self._log.bind(block=block.name, node=block.node, pool=block.pool)
        try:
            await self._client.delete(ADDRESS_BLOCKS, block.name, uid=block.metadata.uid)
            live = await self._client.get(ADDRESS_BLOCKS, block.name)
            patch = finalizer.plan_remove(live.metadata)
            if live.metadata.uid == block.metadata.uid and patch is not None:
                await self._client.patch(ADDRESS_BLOCKS, block.name, patch)
        except NotFoundError:
            log.debug("block went meanwhile")
        log.info("block of an absent node collected")

    async def _collect_request(self, request: BlockRequest) -> None:
        name = request.metadata.name
        try:
            await self._client.delete(BLOCK_REQUESTS, name, uid=request.metadata.uid)
        except NotFoundError:
            return
        self._log.info("block request of an absent node collected", request=name, node=request.spec.node_name)
