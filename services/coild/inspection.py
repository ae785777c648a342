"""What this node's addresses are doing, as a document: the books of `block_store`, named by the journal.

BlockStore.occupancy ─┐
                      ├─► describe_node ─► coil.page: JSON and page ─► coil.runtime.inspection
AddressJournal.holder ┘
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import groupby
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from coil.crd.names import NodeName
from coil.ipam.attachment import AttachmentKey
from coil.ipam.block import BlockUse
from coil.ipam.occupancy import AddressState, AddressUse, BlockOccupancy
from coil.page import node_document as page
from coil.page.node_page import render_node_page
from coil.runtime.inspection import Inspection, start_inspection
from coil.runtime.process import Process
from coild.addresses.journal import Holder
from coild.settings import Settings

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


class Books(Protocol):
    """The part of `coild.addresses.block_store` that is read here."""

    def occupancy(self) -> list[BlockOccupancy]: ...


class Names(Protocol):
    """The part of `coild.addresses.journal` that is read here."""

    def holder(self, key: AttachmentKey) -> Holder: ...


def start_node_inspection(
    settings: Settings, process: Process, *, books: Books, names: Names, log: FilteringBoundLogger
) -> None:
    """Serve the node's inspection on the ports of the settings until the process stops."""

    def look() -> Callable[[], page.NodeDocument]:
        # All of it at once: there are no more addresses out than pods here, and the journal changes with every ADD.
        node = describe_node(settings.node_name, books.occupancy(), holder=names.holder, now=datetime.now(UTC))
        return lambda: node

    endpoints = {"inspect": settings.inspect_addr, "inspect-page": settings.inspect_page_addr}
    start_inspection(process, Inspection(look, render_node_page), endpoints, log=log)


def describe_node(
    node: NodeName, blocks: Iterable[BlockOccupancy], *, holder: FindHolder, now: datetime
) -> page.NodeDocument:
    """The node's document. `blocks` by pool, as the ledger gives them."""
    pools = tuple(
        _describe_pool(pool, [_describe_block(occupancy, holder) for occupancy in members])
        for pool, members in groupby(blocks, key=lambda occupancy: occupancy.block.pool)
    )
    return page.NodeDocument(node=node, at=now, addresses=_add(pool.addresses for pool in pools), pools=pools)


def _describe_pool(name: str, blocks: list[page.BlockDocument]) -> page.PoolDocument:
    return page.PoolDocument(name=name, addresses=_add(block.addresses for block in blocks), blocks=tuple(blocks))


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


def _add(counts: Iterable[page.AddressCounts]) -> page.AddressCounts:
    return sum(counts, start=page.AddressCounts())
