"""This node's blocks: the ledger, kept in step with the AddressBlocks that carry the node's label.

    informer of AddressBlocks ─► BlockStore (NodeLedger) ◄─ coild.pool_source: acquire, release
                                    │ changed ─► coild.route_export
                                    └ emptied ─► coild.block_release

All methods but `arrived` are synchronous, and run in the event loop's thread: the books need no lock. A block enters
when its object appears. It leaves the books *before* anything is asked of the API server, so no address of a block on
its way out is given, and an object that lingers there is not taken in again.

What the kernel holds comes first: an address that a pod has is never given to another, not even when its block was
deleted under the pod, or comes only after the pod was found in the kernel.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.names import BlockName, PoolName
from coil.ipam.block import Block, BlockUse, MalformedBlockError, parse_block
from coil.ipam.node_ledger import Allocation, AttachmentKey, LedgerConflictError, NodeLedger
from coil.reconcile.informer import Informer
from coild.address_source import HeldAddresses


@dataclass(frozen=True, slots=True)
class Departure:
    """A block that left the books and is to leave the API server: which object, and the finalizers it carries."""

    name: BlockName
    uid: str
    finalizers: tuple[str, ...]


class BlockStore:
    """See the module's text. `changed` is told when the blocks to export change, `emptied` of a block that may go."""

    def __init__(
        self,
        blocks: Informer[AddressBlock],
        *,
        changed: Callable[[], None],
        emptied: Callable[[BlockName], None],
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks = blocks
        self._changed = changed
        self._emptied = emptied
        self._log = log
        self._clock = clock
        self._ledger = NodeLedger()
        self._idle_since: dict[BlockName, float] = {}
        self._departures: dict[BlockName, Departure] = {}
        self._homeless: dict[AttachmentKey, HeldAddresses] = {}
        self._arrival = asyncio.Event()
        blocks.subscribe(self._observe)

    # --- addresses

    def adopt(self, held: HeldAddresses) -> None:
        """Enter what the kernel holds.

        Raises LedgerConflictError if no block here has it; it is entered then should such a block come.
        """
        try:
            self._enter(held)
        except LedgerConflictError:
            self._homeless[held.key] = held
            raise

    def find(self, key: AttachmentKey) -> Allocation | None:
        return self._ledger.find(key)

    def allocations(self) -> list[Allocation]:
        return self._ledger.allocations()

    def acquire(self, pool: PoolName, key: AttachmentKey) -> Allocation | None:
        """A free address of the pool, the same for a known key; None when this node has none."""
        allocation = self._ledger.acquire(pool, key)
        if allocation is not None:
            self._homeless.pop(key, None)
        return allocation

    def release(self, key: AttachmentKey) -> None:
        """Take an address back; an unknown key is fine. A block that runs empty is offered for release."""
        self._homeless.pop(key, None)
        allocation = self._ledger.release(key)
        if allocation is not None and self._is_empty(allocation.block):
            self._offer(allocation.block, since=self._clock())

    # --- blocks

    def networks(self) -> list[IPv4Network | IPv6Network]:
        """What this node announces: the blocks in the books, the reserved ones too."""
        blocks = self._ledger.blocks()
        return [network for block in blocks for network in (block.ipv4, block.ipv6) if network is not None]

    def end_rest(self) -> None:
        """Let no block without a pod rest any longer: at start, when nobody is about to use one."""
        for block in self._ledger.empty_blocks():
            self._idle_since[block.name] = -math.inf

    def offer_unused(self) -> None:
        """Offer each block without a pod for release, and those again whose release is under way.

        Blocks that could not be taken in are tried again first.
        """
        for document in self._blocks.items():
            if self._find(document.name) is None:
                self._observe(None, document)
        for block in self._ledger.empty_blocks():
            self._emptied(block.name)
        for name in self._departures:
            self._emptied(name)

    def idle_for(self, name: BlockName) -> float | None:
        """Seconds since the block ran empty; None when it is in use, reserved or not in the books.

        Infinity for one that no pod can use again: there is nothing to rest for.
        """
        block = self._find(name)
        if block is None or not self._is_empty(name):
            return None
        if block.use is BlockUse.DRAINING:
            return math.inf
        return self._clock() - self._idle_since.setdefault(name, self._clock())

    def pool_of(self, name: BlockName) -> PoolName:
        """The pool of a block in the books. Raises KeyError."""
        if (block := self._find(name)) is None:
            raise KeyError(name)
        return block.pool

    def depart(self, name: BlockName) -> Departure | None:
        """Take an empty block out of the books for good, and say what is to be deleted.

        None when the block is in use, reserved or unknown, or its object is gone already. Idempotent until then.
        """
        if (departure := self._departures.get(name)) is not None:
            return departure
        if not self._is_empty(name):
            return None
        self._ledger.remove_block(name)
        self._idle_since.pop(name, None)
        self._changed()
        document = self._blocks.get(name)
        if document is None:
            return None
        departure = Departure(name, document.metadata.uid, document.metadata.finalizers)
        self._departures[name] = departure
        return departure

    async def arrived(self, name: BlockName) -> None:
        """Return once the block is in the books; at once if it is. The caller bounds the wait."""
        while self._blocks.get(name) is None or self._find(name) is None:
            await self._arrival.wait()

    # --- inside

    def _find(self, name: BlockName) -> Block | None:
        return next((block for block in self._ledger.blocks() if block.name == name), None)

    def _is_empty(self, name: BlockName) -> bool:
        return any(block.name == name for block in self._ledger.empty_blocks())

    def _offer(self, name: BlockName, *, since: float) -> None:
        self._idle_since[name] = since
        self._emptied(name)

    def _observe(self, old: AddressBlock | None, new: AddressBlock | None) -> None:
        if new is None:
            if old is not None:
                self._forget(old)
            return
        departure = self._departures.get(new.name)
        if departure is not None and departure.uid == new.metadata.uid:
            self._departures[new.name] = replace(departure, finalizers=new.metadata.finalizers)
            return
        known = self._find(new.name) is not None
        try:
            self._ledger.add_block(parse_block(new))
        except (MalformedBlockError, LedgerConflictError) as error:
            self._log.error("block not taken in", block=new.name, why=str(error))
            return
        self._house()
        self._arrival.set()
        self._arrival.clear()
        if not known:
            self._changed()
        if self._is_empty(new.name) and (not known or new.metadata.deleting):
            # It came too late for its pod, or somebody asks for it back: unless a pod takes it soon, it goes.
            self._offer(new.name, since=self._clock())

    def _house(self) -> None:
        for key, held in list(self._homeless.items()):
            with contextlib.suppress(LedgerConflictError):
                self._enter(held)
                del self._homeless[key]

    def _enter(self, held: HeldAddresses) -> None:
        addresses = held.addresses
        self._ledger.adopt(held.key, pool=addresses.pool, ipv4=addresses.ipv4, ipv6=addresses.ipv6)

    def _forget(self, document: AddressBlock) -> None:
        departure = self._departures.get(document.name)
        if departure is not None and departure.uid == document.metadata.uid:
            del self._departures[document.name]
            return
        block = self._find(document.name)
        if block is None:
            return
        try:
            self._ledger.remove_block(document.name)
        except LedgerConflictError as error:
            self._log.error("a block was deleted under its pods: its addresses may be given twice", why=str(error))
            # Nothing new of it here; the route stays for its pods, and goes with the last of them.
            self._ledger.add_block(replace(block, use=BlockUse.DRAINING))
        self._idle_since.pop(document.name, None)
        self._changed()
