"""The pools' part of the node's inspection page: the books, with the pods' names out of the journal. Pure.

`coild.addresses.block_store` ─► BlockOccupancy ┐
                                                ├─► describe_pools ─► coil.page
`coild.addresses.journal` ────► Holder ─────────┘
"""

from collections.abc import Callable, Iterable
from itertools import groupby

from coil.ipam.block import BlockUse
from coil.ipam.occupancy import AddressState, AddressUse, AttachmentKey, BlockOccupancy
from coil.page import node_document as page
from coild.addresses.journal import Holder

_STATES = {
    AddressState.ALLOCATED: page.AddressState.ALLOCATED,
    AddressState.COOLING: page.AddressState.COOLING,
}
_USES = {
    BlockUse.OPEN: page.BlockUse.OPEN,
    BlockUse.RESERVED: page.BlockUse.RESERVED,
    BlockUse.DRAINING: page.BlockUse.DRAINING,
}

FindHolder = Callable[[AttachmentKey], Holder]


def describe_pools(blocks: Iterable[BlockOccupancy], *, holder: FindHolder) -> tuple[page.PoolDocument, ...]:
    """`blocks` by pool, as the ledger gives them."""
    return tuple(
        _describe_pool(pool, [_describe_block(occupancy, holder) for occupancy in members])
        for pool, members in groupby(blocks, key=lambda occupancy: occupancy.block.pool)
    )


def _describe_pool(name: str, blocks: list[page.BlockDocument]) -> page.PoolDocument:
    return page.PoolDocument(
        name=name,
        addresses=sum((block.addresses for block in blocks), start=page.AddressCounts()),
        blocks=tuple(blocks),
    )


def _describe_block(occupancy: BlockOccupancy, holder: FindHolder) -> page.BlockDocument:
    block = occupancy.block
    allocated, cooling, free = occupancy.allocated, occupancy.cooling, occupancy.free
    return page.BlockDocument(
        name=block.name,
        index=block.index,
        ipv4=block.ipv4,
        ipv6=block.ipv6,
        use=_USES[block.use],
        addresses=page.AddressCounts(
            total=occupancy.size,
            allocated=allocated,
            cooling=cooling,
            free=free,
            withheld=occupancy.size - allocated - cooling - free,
        ),
        used=tuple(_describe_use(use, holder) for use in occupancy.uses),
    )


def _describe_use(use: AddressUse, holder: FindHolder) -> page.AddressDocument:
    key = use.key
    held = Holder(None, None) if key is None else holder(key)
    return page.AddressDocument(
        ipv4=use.ipv4,
        ipv6=use.ipv6,
        slot=use.slot,
        state=_STATES[use.state],
        namespace=held.pod.namespace if held.pod else None,
        pod=held.pod.name if held.pod else None,
        container=key.container_id if key else None,
        interface=key.ifname if key else None,
        since=held.since,
    )
