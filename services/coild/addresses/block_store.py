"""This node's blocks: the ledger, kept in step with the AddressBlocks that carry the node's label.

    informer of AddressBlocks ─► BlockStore (NodeLedger) ◄─ coild.addresses.pool_source: acquire, release
                                    │ changed  ─► coild.routes.export
                                    │ supplied ─► coild.addresses.pool_demand, coild.addresses.block_requester
                                    └ emptied  ─► coild.addresses.block_release

All methods are synchronous, and run in the event loop's thread: the books need no lock. A block enters when its object
appears. It leaves the books *before* anything is asked of the API server, so no address of a block on its way out is
given, and an object that lingers there is not taken in again. It may leave when none of its addresses is out or rests:
the next node would not know of that rest.

What the kernel holds comes first: an address that a pod has is never given to another, not even when its block was
deleted under the pod, or comes only after the pod was found in the kernel. And a block that may have been edited under
pods stays until they have gone (`coild.addresses.orphaned_addresses`); if no pod was found in it, it gives nothing
until then.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.names import BlockName, PoolName, RequestUid
from coil.ipam.attachment import AttachmentKey
from coil.ipam.block import Block, BlockUse, MalformedBlockError, parse_block
from coil.ipam.node_ledger import Allocation, LedgerConflictError, NodeLedger, Reuse
from coil.ipam.occupancy import BlockOccupancy, Tally
from coil.kernel.family import IPAddress
from coil.reconcile.informer import Informer
from coild.addresses.journal import AddressJournal
from coild.addresses.orphaned_addresses import OrphanedAddresses
from coild.model.address_source import HeldAddresses, PodName


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """A block that left the books and is to leave the API server.

    Which object, the request that it was made for, and the finalizers it carries.
    """

    name: BlockName
    uid: str
    request: RequestUid
    finalizers: tuple[str, ...]


class BlockStore:
    """See the module's text. `changed` is told when the blocks to export change, `emptied` of a block that may go."""

    def __init__(
        self,
        blocks: Informer[AddressBlock],
        *,
        journal: AddressJournal,
        cooling: float,
        changed: Callable[[], None],
        emptied: Callable[[BlockName], None],
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks = blocks
        self._journal = journal
        self._cooling = cooling
        self._changed = changed
        self._emptied = emptied
        self._log = log
        self._clock = clock
        self._ledger = NodeLedger(cooling=cooling)
        self._arrivals: dict[BlockName, float] = {}
        """When a block came that has not served a pod yet."""
        self._departures: dict[BlockName, PendingRelease] = {}
        self._homeless = OrphanedAddresses(self.has)
        self._suspects: set[BlockName] = set()
        """The blocks that were here at start and may have been edited under pods."""
        self._suppliers: list[Callable[[PoolName], None]] = []
        blocks.subscribe(self._observe)

    def subscribe(self, supplied: Callable[[PoolName], None]) -> None:
        """Have `supplied` called, at once and in order, when a pool has more, fewer or other addresses to give."""
        self._suppliers.append(supplied)

    # --- addresses

    def adopt(self, held: HeldAddresses) -> None:
        """Enter what the kernel holds.

        Raises LedgerConflictError if no block here has it; it is entered then should such a block come.
        """
        try:
            self._enter(held)
        except LedgerConflictError:
            self._homeless.pods[held.key] = held
            raise

    def has(self, pool: PoolName, address: IPAddress) -> bool:
        """Whether one of the pool's blocks in the books has the address, free or not."""
        return any(block.slot_of(address) is not None for block in self._ledger.blocks(pool))

    def resume(self) -> None:
        """Go on where an earlier process stopped. At start, after all that the kernel holds was adopted.

        No block rests any longer only because it came a short while ago: nobody is about to use one.
        """
        self._arrivals.clear()
        self._suspect()
        held: dict[AttachmentKey, Allocation | None] = dict.fromkeys(self._homeless.pods)
        held |= {allocation.key: allocation for allocation in self._ledger.allocations()}
        now = self._clock()
        for name, resumption in self._journal.resume(held, [block.name for block in self._ledger.blocks()]).items():
            cooling = {slot: now + seconds for slot, seconds in resumption.rests.items()}
            self._ledger.resume(name, last=resumption.last, cooling=cooling)

    def find(self, key: AttachmentKey) -> Allocation | None:
        """What the key holds."""
        return self._ledger.find(key)

    def allocations(self) -> list[Allocation]:
        """Everything that is out."""
        return self._ledger.allocations()

    def acquire(
        self, pool: PoolName, key: AttachmentKey, pod: PodName, *, reuse: Reuse = Reuse.RESTED
    ) -> Allocation | None:
        """A free address of the pool, the same for a known key; None when this node has none."""
        if (known := self._ledger.find(key)) is not None:
            return known
        allocation = self._ledger.acquire(pool, key, now=self._clock(), reuse=reuse)
        if allocation is not None:
            self._arrivals.pop(allocation.block, None)
            self._journal.gave(allocation, pod)
            self._settle(key)
        return allocation

    def release(self, key: AttachmentKey) -> None:
        """Take an address back, to rest; an unknown key is fine. A block that runs empty is offered for release."""
        allocation = self._ledger.release(key, now=self._clock())
        if allocation is not None:
            self._journal.took(allocation)
        self._returned(key, allocation)

    def revoke(self, key: AttachmentKey) -> None:
        """Take an address back that was acquired and never used; an unknown key is fine."""
        allocation = self._ledger.revoke(key)
        if allocation is not None:
            self._journal.revoked(key)
            if self._ledger.is_empty(allocation.block):
                self._arrivals[allocation.block] = self._clock()
        self._returned(key, allocation)

    # --- counts

    def tally(self, pool: PoolName) -> Tally:
        """The counts of one pool."""
        return self._ledger.tally(pool, now=self._clock())

    def tallies(self) -> dict[PoolName, Tally]:
        """The counts of each pool that has a block here; as quick as there are blocks."""
        return self._ledger.tallies(now=self._clock())

    def occupancy(self) -> list[BlockOccupancy]:
        """What is out and what rests, by pool and block."""
        return self._ledger.occupancy(now=self._clock())

    def next_rested(self, pool: PoolName) -> float | None:
        """In how many seconds the next address of the pool has rested; None if none rests."""
        end = self._ledger.next_rested(pool, now=self._clock())
        return None if end is None else end - self._clock()

    def block_size(self, pool: PoolName) -> int | None:
        """How many addresses a block of the pool has; None when this node has no block of it."""
        blocks = self._ledger.blocks(pool)
        return blocks[-1].size if blocks else None

    # --- blocks

    def networks(self) -> list[IPv4Network | IPv6Network]:
        """What this node announces: the blocks in the books, the reserved ones too."""
        blocks = self._ledger.blocks()
        return [network for block in blocks for network in (block.ipv4, block.ipv6) if network is not None]

    def block(self, name: BlockName) -> Block | None:
        """The block of that name, if it is in the books."""
        return self._ledger.block(name)

    def here(self, name: BlockName) -> bool:
        """Whether the block is in the books, and its object exists."""
        return self._blocks.get(name) is not None and self._ledger.block(name) is not None

    def answer_to(self, request: RequestUid) -> BlockName | None:
        """The block in the books that was made for this request, if it is here."""
        for block in self._blocks.items():
            if block.request == request and self._ledger.block(block.name) is not None:
                return block.name
        return None

    def offer_unused(self) -> None:
        """Offer each block without a pod for release, and those again whose release is under way.

        Blocks that could not be taken in are tried again first.
        """
        for document in self._blocks.items():
            if self._ledger.block(document.name) is None:
                self._observe(None, document)
        for block in self._ledger.empty_blocks():
            self._emptied(block.name)
        for name in self._departures:
            self._emptied(name)

    def rest_left(self, name: BlockName) -> float | None:
        """Seconds until the block may go, 0 for now; None when it is in use, reserved, kept or not in the books.

        It rests as long as one of its addresses does, and for one cooling period after it came, unless a pod took it.
        """
        block = self._ledger.block(name)
        if block is None or not self._ledger.is_empty(name):
            return None
        if self._blocks.get(name) is None:
            return 0.0  # deleted under its pods: another node may have its addresses by now
        if name in self._suspects:
            return None
        rested = self._ledger.rests_until(name)
        if block.use is BlockUse.OPEN and name in self._arrivals:
            rested = max(rested, self._arrivals[name] + self._cooling)
        return max(rested - self._clock(), 0.0)

    def depart(self, name: BlockName) -> PendingRelease | None:
        """Take an empty block out of the books for good, and say what is to be deleted.

        None when the block is in use, reserved, kept or unknown, or its object is gone already. Idempotent until then.
        """
        if (departure := self._departures.get(name)) is not None:
            return departure
        block = self._ledger.block(name)
        if block is None or not self._ledger.is_empty(name):
            return None
        document = self._blocks.get(name)
        if document is not None and name in self._suspects:
            return None
        self._remove(block)
        if document is None:
            return None
        departure = PendingRelease(name, document.metadata.uid, document.request, document.metadata.finalizers)
        self._departures[name] = departure
        return departure

    def departures(self) -> list[PendingRelease]:
        """The blocks that have left the books and not yet the API server."""
        return list(self._departures.values())

    def draining(self) -> list[AddressBlock]:
        """The objects of blocks that are asked back while pods still have addresses of them."""
        return [
            document
            for document in self._blocks.items()
            if document.metadata.deleting
            and document.name not in self._departures
            and self._ledger.block(document.name) is not None
            and not self._ledger.is_empty(document.name)
        ]

    def kept(self) -> list[tuple[AddressBlock, list[HeldAddresses]]]:
        """The blocks without a pod that stay for pods whose addresses are in none of the blocks, and those pods."""
        documents = [self._blocks.get(name) for name in sorted(self._suspects) if self._ledger.is_empty(name)]
        return [(document, [*self._homeless.suspecting(document)]) for document in documents if document is not None]

    # --- inside

    def _returned(self, key: AttachmentKey, allocation: Allocation | None) -> None:
        self._settle(key)
        if allocation is None:
            return
        self._house()  # whoever claims the slot that came free has it now
        if self._ledger.is_empty(allocation.block):
            self._emptied(allocation.block)
        self._supplied(allocation.pool)

    def _supplied(self, pool: PoolName) -> None:
        for supplied in self._suppliers:
            supplied(pool)

    def _remove(self, block: Block) -> None:
        """Raises LedgerConflictError while addresses of it are out."""
        self._ledger.remove_block(block.name)
        self._arrivals.pop(block.name, None)
        self._journal.left(block.name)
        self._changed()
        self._supplied(block.pool)

    def _observe(self, old: AddressBlock | None, new: AddressBlock | None) -> None:
        if new is None:
            if old is not None:
                self._forget(old)
            return
        departure = self._departures.get(new.name)
        if departure is not None and departure.uid == new.metadata.uid:
            self._departures[new.name] = replace(departure, finalizers=new.metadata.finalizers)
            return
        try:
            block = self._judged(parse_block(new))
            known = self._ledger.block(new.name) is not None
            self._ledger.add_block(block)
        except (MalformedBlockError, LedgerConflictError) as error:
            self._log.error("block not taken in", block=new.name, why=str(error))
            return
        self._house()
        empty = self._ledger.is_empty(new.name)
        if not known:
            self._changed()
            if empty:
                self._arrivals[new.name] = self._clock()
        if empty and (not known or new.metadata.deleting):
            # It came too late for its pod, or somebody asks for it back: unless a pod takes it soon, it goes.
            self._emptied(new.name)
        self._supplied(block.pool)

    def _house(self) -> None:
        for key, held in list(self._homeless.pods.items()):
            with contextlib.suppress(LedgerConflictError):
                self._enter(held)
                self._settle(key)

    def _settle(self, key: AttachmentKey) -> None:
        """The pod has gone, or has a home: the blocks that are no longer suspected for its sake are like any other."""
        if self._homeless.pods.pop(key, None) is None:
            return
        for name in sorted(self._suspects):
            document = self._blocks.get(name)
            if document is not None and any(self._homeless.suspecting(document)):
                continue
            self._suspects.discard(name)
            if document is not None:
                self._observe(document, document)
                if self._ledger.is_empty(name):
                    self._emptied(name)

    def _suspect(self) -> None:
        for document in self._blocks.items():
            if pods := [held.key for held in self._homeless.suspecting(document)]:
                self._suspects.add(document.name)
                if (block := self._ledger.block(document.name)) is not None:
                    self._ledger.add_block(self._judged(block))
                self._log.error(
                    "a block is kept: it may have been edited under pods",
                    block=document.name,
                    containers=[pod.container_id for pod in pods],
                )

    def _judged(self, block: Block) -> Block:
        """What the books are to have of it. A suspect without a pod gives nothing, and may be mended."""
        known = self._ledger.block(block.name)
        if block.name not in self._suspects or not (known is None or self._ledger.is_empty(block.name)):
            return block
        if known is not None and (block.pool, block.ipv4, block.ipv6) != (known.pool, known.ipv4, known.ipv6):
            self._remove(known)
        return replace(block, use=BlockUse.DRAINING) if block.use is BlockUse.OPEN else block

    def _enter(self, held: HeldAddresses) -> None:
        addresses = held.addresses
        self._ledger.adopt(held.key, pool=addresses.pool, ipv4=addresses.ipv4, ipv6=addresses.ipv6)

    def _forget(self, document: AddressBlock) -> None:
        departure = self._departures.get(document.name)
        if departure is not None and departure.uid == document.metadata.uid:
            del self._departures[document.name]
            return
        self._suspects.discard(document.name)
        block = self._ledger.block(document.name)
        if block is None:
            return
        try:
            self._remove(block)
        except LedgerConflictError as error:
            self._log.error("a block was deleted under its pods: its addresses may be given twice", why=str(error))
            # Nothing new of it here; the route stays for its pods, and goes with the last of them.
            self._ledger.add_block(replace(block, use=BlockUse.DRAINING))
            self._changed()
            self._supplied(block.pool)
