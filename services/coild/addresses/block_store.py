"""This node's blocks: the ledger, kept in step with the AddressBlocks that carry the node's label.

    informer of AddressBlocks ─► BlockStore (NodeLedger) ◄─ acquire, release: coild.addresses.pool_source, pool_demand
                                    ├─► PoolChanges: what is to be reviewed, and which blocks ran empty
                                    └─► networks_changed: coild.addresses.route_export

All methods are synchronous and run in the event loop's thread, so the ledger needs no lock, and it agrees with the
informer's cache at any moment at which somebody can look. No method calls the parts that react to a change: they are
marked in `PoolChanges`.

A block enters the ledger when its object appears. It leaves it *before* anything is asked of the API server
(`coild.addresses.block_release`), so no address of a block on its way out is given, and an object that lingers there is
not taken in again.

What the kernel holds has precedence: an address that a pod has is never given to another, not even when its block was
deleted under the pod, or arrives only after the pod was found in the kernel. And a block that may have been edited
under pods stays until they have gone (`coild.addresses.orphaned_addresses`); one in which no pod was found gives
nothing until then.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.names import BlockName, PoolName, RequestUid
from coil.ipam.block import Block, BlockUse, MalformedBlockError, parse_block
from coil.ipam.node_ledger import Allocation, LedgerConflictError, NodeLedger, Reuse
from coil.ipam.occupancy import AttachmentKey, BlockOccupancy, Tally
from coil.kernel.family import IPAddress
from coil.reconcile.informer import Informer
from coild.addresses.journal import AddressJournal
from coild.addresses.orphaned_addresses import OrphanedAddresses
from coild.addresses.pool_changes import PoolChanges
from coild.model.address_source import NONE_ENDED, Ended
from coild.model.attachment import Attachment, PodName


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """A block that has left the ledger and is to leave the API server.

    Which object, the request that it was made for, and the finalizers it carries.
    """

    name: BlockName
    uid: str
    request: RequestUid
    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PendingReleases:
    """The blocks whose release is under way, until their objects are gone."""

    _pending: dict[BlockName, PendingRelease] = field(default_factory=dict)

    def __iter__(self) -> Iterator[PendingRelease]:
        return iter(list(self._pending.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._pending

    def get(self, name: BlockName) -> PendingRelease | None:
        """The release of the block of that name, if it is under way."""
        return self._pending.get(name)

    def add(self, document: AddressBlock) -> PendingRelease:
        """Begin: from now on the object is not this node's block."""
        pending = PendingRelease(document.name, document.metadata.uid, document.request, document.metadata.finalizers)
        self._pending[document.name] = pending
        return pending

    def update(self, document: AddressBlock) -> bool:
        """The object has changed; False if it is not one that is being released."""
        pending = self._pending.get(document.name)
        if pending is None or pending.uid != document.metadata.uid:
            return False
        self._pending[document.name] = replace(pending, finalizers=document.metadata.finalizers)
        return True

    def finish(self, document: AddressBlock) -> bool:
        """The object is gone; False if it was not one that is being released."""
        pending = self._pending.get(document.name)
        if pending is None or pending.uid != document.metadata.uid:
            return False
        del self._pending[document.name]
        return True


class BlockStore:
    """See the module's docstring. `cooldown` in seconds; `networks_changed` is called when `networks` changes."""

    def __init__(
        self,
        blocks: Informer[AddressBlock],
        *,
        journal: AddressJournal,
        cooldown: float,
        changes: PoolChanges,
        networks_changed: Callable[[], None],
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks = blocks
        self._journal = journal
        self._changes = changes
        self._networks_changed = networks_changed
        self._log = log
        self._clock = clock
        self._ledger = NodeLedger(cooldown=cooldown)
        self._arrivals: dict[BlockName, float] = {}
        """When a block arrived that has not served a pod yet."""
        self._orphans = OrphanedAddresses(self.has)
        self.pending = PendingReleases()
        blocks.subscribe(self._observe)

    # --- addresses

    def adopt(self, held: Attachment) -> None:
        """Enter what the kernel holds.

        Raises LedgerConflictError if no block here has it; it is entered as soon as such a block arrives.
        """
        try:
            self._enter(held)
        except LedgerConflictError:
            self._orphans.add(held)
            raise

    def resume(self, ended: Ended = NONE_ENDED) -> None:
        """Go on where an earlier process stopped. At start, after all that the kernel holds was adopted.

        `ended` is when attachments have ended that nobody has seen end.
        No block is kept any longer only because it arrived a short while ago: no pod is about to use one.
        """
        self._arrivals.clear()
        self._withhold_suspects()
        held: dict[AttachmentKey, Allocation | None] = dict.fromkeys(self._orphans.pods)
        held |= {allocation.key: allocation for allocation in self._ledger.allocations()}
        now = self._clock()
        own = [block.name for block in self._ledger.blocks()]
        for name, resumption in self._journal.resume(held, own, ended).items():
            cooldowns = {slot: now + seconds for slot, seconds in resumption.cooldowns.items()}
            self._ledger.resume(name, last=resumption.last, cooldowns=cooldowns)

    def acquire(
        self, pool: PoolName, key: AttachmentKey, pod: PodName, *, reuse: Reuse = Reuse.AFTER_COOLDOWN
    ) -> Allocation | None:
        """A free address of the pool, the same for a known key; None when this node has none."""
        if (known := self._ledger.find(key)) is not None:
            return known
        allocation = self._ledger.acquire(pool, key, now=self._clock(), reuse=reuse)
        if allocation is not None:
            self._arrivals.pop(allocation.block, None)
            self._journal.gave(allocation, pod)
            self._remove_orphan(key)
        return allocation

    def release(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """Take an address back, to cool down; an unknown key is fine. A block that runs empty is marked.

        It cools down from when its attachment has `ended`, by the clock; None: now.
        """
        now = self._clock()
        freed = now if ended is None else min(ended, now)
        allocation = self._ledger.release(key, now=freed)
        if allocation is not None:
            self._journal.took(allocation, at=freed)
        self._returned(key, allocation)

    def revoke(self, key: AttachmentKey) -> None:
        """Take an address back that was acquired and never used; an unknown key is fine.

        Acquired before it had cooled down from another pod, it goes on with that.
        """
        allocation = self._ledger.revoke(key)
        if allocation is not None:
            self._journal.revoked(allocation, cooldown_left=self._ledger.cooldown_end(allocation) - self._clock())
            if self._ledger.is_empty(allocation.block):
                self._arrivals[allocation.block] = self._clock()
        self._returned(key, allocation)

    # --- reads

    def find(self, key: AttachmentKey) -> Allocation | None:
        """What the key holds."""
        return self._ledger.find(key)

    def allocations(self) -> list[Allocation]:
        """All addresses that are out."""
        return self._ledger.allocations()

    def has(self, pool: PoolName, address: IPAddress) -> bool:
        """Whether one of the pool's blocks in the ledger has the address, free or not."""
        return any(block.slot_of(address) is not None for block in self._ledger.blocks(pool))

    def tally(self, pool: PoolName) -> Tally:
        """The counts of one pool."""
        return self._ledger.tally(pool, now=self._clock())

    def tallies(self) -> dict[PoolName, Tally]:
        """The counts of each pool that has a block here; takes time by the number of blocks."""
        return self._ledger.tallies(now=self._clock())

    def occupancy(self) -> list[BlockOccupancy]:
        """What is out and what cools down, by pool and block."""
        return self._ledger.occupancy(now=self._clock())

    def cooldown_left(self, pool: PoolName) -> float | None:
        """In how many seconds the next address of the pool has cooled down; None if none is cooling."""
        end = self._ledger.next_cooldown_end(pool, now=self._clock())
        return None if end is None else end - self._clock()

    def block_size(self, pool: PoolName) -> int | None:
        """How many addresses a block of the pool has; None when this node has no block of it."""
        blocks = self._ledger.blocks(pool)
        return blocks[-1].size if blocks else None

    def networks(self) -> list[IPv4Network | IPv6Network]:
        """What this node announces: the blocks in the ledger, the reserved ones too, but none that is occupied."""
        blocks = [block for block in self._ledger.blocks() if block.exported]
        return [network for block in blocks for network in (block.ipv4, block.ipv6) if network is not None]

    def block(self, name: BlockName) -> Block | None:
        """The block of that name, if it is in the ledger."""
        return self._ledger.block(name)

    def document(self, name: BlockName) -> AddressBlock | None:
        """The object of that name, as last seen."""
        return self._blocks.get(name)

    def is_here(self, name: BlockName) -> bool:
        """Whether the block is in the ledger, and its object exists."""
        return self._blocks.get(name) is not None and self._ledger.block(name) is not None

    def answer_to(self, request: RequestUid) -> BlockName | None:
        """The block in the ledger that was made for this request, if it is here."""
        for block in self._blocks.items():
            if block.request == request and self._ledger.block(block.name) is not None:
                return block.name
        return None

    def is_empty(self, name: BlockName) -> bool:
        """Whether the block is in the ledger, none of its addresses is out, and it is not reserved."""
        return self._ledger.is_empty(name)

    def last_cooldown_end(self, name: BlockName) -> float:
        """When the last address of the block has cooled down, by the clock, which may be over; −∞ without a record."""
        return self._ledger.last_cooldown_end(name)

    def arrived(self, name: BlockName) -> float | None:
        """When the block arrived, by the clock; None if it has served a pod since, or was here at start."""
        return self._arrivals.get(name)

    def is_suspect(self, name: BlockName) -> bool:
        """Whether the block may have been edited under pods that are still there."""
        return name in self._orphans.suspects

    def draining(self) -> list[AddressBlock]:
        """The objects of blocks whose deletion was asked for while pods still have addresses of them."""
        return [
            document
            for document in self._blocks.items()
            if document.metadata.deleting
            and document.name not in self.pending
            and self._ledger.block(document.name) is not None
            and not self._ledger.is_empty(document.name)
        ]

    def kept(self) -> list[tuple[AddressBlock, list[Attachment]]]:
        """The blocks without a pod that stay for pods whose addresses are in none of the blocks, and those pods."""
        documents = [self._blocks.get(name) for name in sorted(self._orphans.suspects) if self._ledger.is_empty(name)]
        return [(document, self._orphans.claimants(document)) for document in documents if document is not None]

    # --- blocks

    def offer_unused(self) -> None:
        """Mark each block without a pod for release, and those whose release is still to be finished.

        Blocks that could not be taken in are tried again first.
        """
        self._admit(
            document
            for document in self._blocks.items()
            if self._ledger.block(document.name) is None and document.name not in self.pending
        )
        for block in self._ledger.empty_blocks():
            self._changes.mark_emptied(block.name)
        for pending in self.pending:
            self._changes.mark_emptied(pending.name)

    def remove(self, name: BlockName) -> PendingRelease | None:
        """Take a block out of the ledger for good; returns what is to be deleted, None if its object is gone already.

        Raises LedgerConflictError while addresses of it are out.
        """
        block = self._ledger.block(name)
        if block is not None:
            self._drop(block)
        document = self._blocks.get(name)
        return None if document is None else self.pending.add(document)

    # --- inside

    def _observe(self, old: AddressBlock | None, new: AddressBlock | None) -> None:
        if new is None:
            if old is not None and not self.pending.finish(old):
                self._forget(old)
        elif not self.pending.update(new):
            self._admit([new])

    def _admit(self, documents: Iterable[AddressBlock], *, acquitted: Iterable[AddressBlock] = ()) -> None:
        """Take blocks in, or note how they have changed. Those that were acquitted may be released if they are empty.

        What one block brings about for others is added to the list; there is no recursion.
        """
        waiting = deque([*((document, False) for document in documents), *((document, True) for document in acquitted)])
        while waiting:
            document, release = waiting.popleft()
            waiting.extend((other, True) for other in self._take_in(document))
            if release and self._ledger.is_empty(document.name):
                self._changes.mark_emptied(document.name)

    def _take_in(self, document: AddressBlock) -> list[AddressBlock]:
        """Put one block into the ledger, with the orphans that are in it; returns the blocks that acquits."""
        name = document.name
        try:
            block = self._withheld_if_suspect(parse_block(document))
            known = self._ledger.block(name)
            self._ledger.add_block(block)
        except (MalformedBlockError, LedgerConflictError) as error:
            self._log.error("block not taken in", block=name, error=str(error))
            return []
        acquitted = self._enter_orphans()
        empty = self._ledger.is_empty(name)
        if known is None or known.exported != block.exported:
            self._networks_changed()
        if known is None and empty:
            self._arrivals[name] = self._clock()
        if known is not None and known.exported and not block.exported:
            self._log.error("a block has addresses of the cluster's own", block=name, occupants=document.occupied_by)
        if empty and (known is None or document.metadata.deleting or not block.exported):
            # It came too late for its pod, its deletion is asked for, or nothing may be given out of it: it goes unless
            # a pod takes it soon.
            self._changes.mark_emptied(name)
        self._changes.mark(block.pool)
        return acquitted

    def _forget(self, document: AddressBlock) -> None:
        self._orphans.suspects.discard(document.name)
        block = self._ledger.block(document.name)
        if block is None:
            return
        try:
            self._drop(block)
        except LedgerConflictError as error:
            self._log.error("a block was deleted under its pods: its addresses may be given twice", error=str(error))
            # It gives nothing new; the route stays for its pods, and goes with the last of them.
            self._ledger.add_block(replace(block, use=BlockUse.DRAINING) if block.exported else block)
            self._networks_changed()
            self._changes.mark(block.pool)

    def _drop(self, block: Block) -> None:
        self._ledger.remove_block(block.name)
        self._arrivals.pop(block.name, None)
        self._journal.left(block.name)
        self._networks_changed()
        self._changes.mark(block.pool)

    def _returned(self, key: AttachmentKey, allocation: Allocation | None) -> None:
        self._remove_orphan(key)
        if allocation is None:
            return
        self._admit((), acquitted=self._enter_orphans())  # a pod that claims the slot that came free has it now
        if self._ledger.is_empty(allocation.block):
            self._changes.mark_emptied(allocation.block)
        self._changes.mark(allocation.pool)

    def _remove_orphan(self, key: AttachmentKey) -> None:
        """The pod is gone, or has addresses of a block: no block is suspected for its sake any more."""
        if self._orphans.remove(key):
            self._admit((), acquitted=self._orphans.acquit(self._blocks.items()))

    def _enter_orphans(self) -> list[AddressBlock]:
        """Enter the orphans whose addresses are in a block now; returns the blocks that are acquitted by that."""
        entered = False
        for key, held in list(self._orphans.pods.items()):
            try:
                self._enter(held)
            except LedgerConflictError:
                continue
            entered |= self._orphans.remove(key)
        return self._orphans.acquit(self._blocks.items()) if entered else []

    def _enter(self, held: Attachment) -> None:
        self._ledger.adopt(held.key, pool=PoolName(held.tag), ipv4=held.ipv4, ipv6=held.ipv6)

    def _withhold_suspects(self) -> None:
        for document in self._orphans.suspect(self._blocks.items()):
            if (block := self._ledger.block(document.name)) is not None:
                self._ledger.add_block(self._withheld_if_suspect(block))
            self._log.error(
                "a block is kept: it may have been edited under pods",
                block=document.name,
                containers=[held.key.container_id for held in self._orphans.claimants(document)],
            )

    def _withheld_if_suspect(self, block: Block) -> Block:
        """The block as it is to be in the ledger. A suspect without a pod gives nothing, and may be corrected."""
        known = self._ledger.block(block.name)
        if block.name not in self._orphans.suspects or not (known is None or self._ledger.is_empty(block.name)):
            return block
        if known is not None and (block.pool, block.ipv4, block.ipv6) != (known.pool, known.ipv4, known.ipv6):
            self._drop(known)
        return replace(block, use=BlockUse.DRAINING) if block.use is BlockUse.OPEN else block
