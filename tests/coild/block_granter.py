"""The ipam-controller as coild sees it: answers a BlockRequest, after a while, with the pool's lowest free block."""

import asyncio
from collections.abc import Callable

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest, ConditionType, Pending, RefusalReason
from coil.crd.meta import ObjectMeta
from coil.crd.names import (
    FINALIZER,
    LABEL_NODE,
    LABEL_POOL,
    LABEL_REQUEST,
    LABEL_RESERVED,
    RESERVED,
    BlockName,
    NodeName,
    PoolName,
    RequestUid,
)
from coil.ipam.layout import PlannedBlock, parse_layout, plan_block
from tests.coild.watched_api import WatchedApi

NODE = NodeName("node1")


def pool(name: str, *subnets: SubnetSet, bits: int = 1) -> AddressPool:
    spec = AddressPoolSpec(block_size_bits=bits, subnets=subnets)
    return AddressPool(metadata=ObjectMeta(name=name), spec=spec)


class BlockGranter:
    """Set `away` to have it do nothing, and `delay` to have it take its time."""

    def __init__(self, api: WatchedApi, *pools: AddressPool, delay: Callable[[], float] = lambda: 0.0) -> None:
        self.away = False
        self.delay = delay
        self._api = api
        self._pools = {pool.name: pool for pool in pools}

    async def run(self) -> None:
        changed = self._api.follow()
        changed.set()
        while True:
            await changed.wait()
            changed.clear()
            if self.away:
                continue
            for request in self._api.all(BLOCK_REQUESTS):
                if isinstance(request.outcome(), Pending):
                    await asyncio.sleep(self.delay())
                    self.answer(request)

    def wake(self) -> None:
        """Back from away."""
        self.away = False
        for request in self._api.all(BLOCK_REQUESTS):
            self.answer(request)

    def answer(self, request: BlockRequest) -> None:
        """Grant a block or refuse. One block per request, whatever happens; nothing for a request that is gone."""
        current = self._api.find(BLOCK_REQUESTS, request.metadata.name)
        if current is None or current.uid != request.uid or not isinstance(current.outcome(), Pending):
            return
        granted = [block for block in self._api.all(ADDRESS_BLOCKS) if block.request == request.uid]
        block = granted[0] if granted else self._carve(request)
        if block is None:
            refuse(self._api, request, RefusalReason.OUT_OF_BLOCKS)
        else:
            grant(self._api, request, block.name)

    def _carve(self, request: BlockRequest) -> AddressBlock | None:
        name = request.spec.pool_name
        used = {block.index for block in self._api.all(ADDRESS_BLOCKS) if block.pool == name}
        planned = plan_block(self._pools[name], used) if name in self._pools else None
        return add_block(self._api, planned, node=request.spec.node_name, request=request.uid) if planned else None

    def block(
        self,
        name: PoolName,
        index: int,
        *,
        node: NodeName = NODE,
        request: RequestUid | None = None,
        reserved: bool = False,
    ) -> AddressBlock:
        """Create the pool's block of that index, and answer no request."""
        planned = parse_layout(self._pools[name]).block_at(index)
        return add_block(self._api, planned, node=node, request=request, reserved=reserved)


def add_block(
    api: WatchedApi,
    planned: PlannedBlock,
    *,
    node: NodeName = NODE,
    request: RequestUid | None = None,
    reserved: bool = False,
) -> AddressBlock:
    labels = {LABEL_POOL: str(planned.pool), LABEL_NODE: str(node)}
    if request is not None:
        labels[LABEL_REQUEST] = request
    if reserved:
        labels[LABEL_RESERVED] = RESERVED
    block = AddressBlock(
        metadata=ObjectMeta(name=planned.name, labels=labels, finalizers=(FINALIZER,)),
        index=planned.index,
        ipv4=None if planned.ipv4 is None else str(planned.ipv4),
        ipv6=None if planned.ipv6 is None else str(planned.ipv6),
    )
    return api.create(ADDRESS_BLOCKS, block)


def grant(api: WatchedApi, request: BlockRequest, block: BlockName) -> None:
    conditions = [{"type": ConditionType.COMPLETE, "status": "True"}]
    _answer(api, request, {"addressBlockName": block, "conditions": conditions})


def refuse(api: WatchedApi, request: BlockRequest, reason: str) -> None:
    conditions = [
        {"type": ConditionType.COMPLETE, "status": "True"},
        {"type": ConditionType.FAILED, "status": "True", "reason": reason, "message": "no block for you"},
    ]
    _answer(api, request, {"conditions": conditions})


def _answer(api: WatchedApi, request: BlockRequest, status: dict[str, object]) -> None:
    api.patch(BLOCK_REQUESTS, request.metadata.name, {"status": status}, subresource="status")
