"""The node's ledger: which addresses of its blocks are out, to whom, and which are still cooling down.

In the flow: coild puts in the blocks that belong to its node, adopts at start what the kernel already holds, and
then every CNI ADD is one `acquire` and every DEL one `release`. All methods are synchronous and belong to one
thread, so each is atomic and no lock exists. Times are those of one clock that the caller reads; it must not go back.
Only `acquire` and `release` drop the records of cooldowns that are over; reads write nothing.

Invariants, after every call that returns and every call that raises:
* a slot is held by at most one key, and a key holds at most one slot (over all blocks and pools);
* the two addresses of an allocation are those of one slot of one block;
* nothing is given out from a block that is reserved or draining;
* a slot that was released is not given out within the cooldown, unless `Reuse.ANY` is asked for and no other
  slot of the pool is free;
* a block that has allocations is in the ledger.
"""

import math
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address

from coil.crd.names import BlockName, PoolName
from coil.ipam.block import Block
from coil.ipam.occupancy import AttachmentKey, BlockEntry, BlockOccupancy, ContainerId, Tally

__all__ = [
    "COOLDOWN",
    "Allocation",
    "AttachmentKey",
    "ContainerId",
    "LedgerConflictError",
    "NodeLedger",
    "Reuse",
]

COOLDOWN = 30.0
"""Seconds for which a released address is held back, unless set otherwise: until peers and their connection tracking
have forgotten the old pod."""


class Reuse(Enum):
    """Which slots may be given out."""

    AFTER_COOLDOWN = "after_cooldown"
    ANY = "any"
    """Also one that is still cooling down, if no other is free; the one that has done so longest."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """One slot that is out. At least one of the addresses is present."""

    key: AttachmentKey
    pool: PoolName
    block: BlockName
    slot: int
    ipv4: IPv4Address | None
    ipv6: IPv6Address | None


class LedgerConflictError(Exception):
    """What was asked contradicts the ledger, which is unchanged."""


class NodeLedger:
    """See the module's text for the invariants. `cooldown` is in seconds."""

    def __init__(self, *, cooldown: float = COOLDOWN) -> None:
        self._cooldown = cooldown
        self._entries: dict[BlockName, BlockEntry] = {}
        self._pools: dict[PoolName, list[BlockEntry]] = {}
        """The same entries by pool, in the order in which they are filled."""
        self._allocations: dict[AttachmentKey, Allocation] = {}

    # --- blocks

    def add_block(self, block: Block) -> None:
        """Put a block in, or note its changed use (reserved, draining, open). Idempotent.

        Raises LedgerConflictError when a block of that name has other networks, or when its addresses overlap
        those of another block: two keys could otherwise hold one address.
        """
        entry = self._entries.get(block.name)
        if entry is not None:
            if (block.pool, block.ipv4, block.ipv6) != (entry.block.pool, entry.block.ipv4, entry.block.ipv6):
                raise LedgerConflictError(f"the block {block.name!r} is in the ledger with other networks")
            entry.block = block
            self._pools[block.pool].sort(key=_order)
            return
        for other in self._entries.values():
            if _share_addresses(block, other.block):
                raise LedgerConflictError(f"the blocks {block.name!r} and {other.block.name!r} overlap")
        self._entries[block.name] = entry = BlockEntry(block)
        insort(self._pools.setdefault(block.pool, []), entry, key=_order)

    def remove_block(self, name: BlockName) -> None:
        """Take a block out; an unknown one is fine. Raises LedgerConflictError while addresses of it are out."""
        entry = self._entries.get(name)
        if entry is None:
            return
        if entry.held:
            raise LedgerConflictError(f"{len(entry.held)} addresses of the block {name!r} are out")
        del self._entries[name]
        entries = self._pools[entry.block.pool]
        entries.remove(entry)
        if not entries:
            del self._pools[entry.block.pool]

    def block(self, name: BlockName) -> Block | None:
        """The block of that name, if it is in the ledger."""
        entry = self._entries.get(name)
        return None if entry is None else entry.block

    def blocks(self, pool: PoolName | None = None) -> list[Block]:
        """The blocks in the ledger, of one pool or of all, by pool and index."""
        return [entry.block for entry in self._ordered(pool)]

    def is_empty(self, name: BlockName) -> bool:
        """Whether the block is in the ledger, nothing of it is out, and it is not reserved. It may be cooling down."""
        entry = self._entries.get(name)
        return entry is not None and not entry.held and not entry.block.reserved

    def empty_blocks(self) -> list[Block]:
        """All blocks that `is_empty`."""
        return [entry.block for entry in self._ordered() if self.is_empty(entry.block.name)]

    def last_cooldown_end(self, name: BlockName) -> float:
        """When the last address of the block has cooled down, which may be over; −∞ without a record or a block."""
        entry = self._entries.get(name)
        return -math.inf if entry is None else entry.last_cooldown_end

    # --- addresses

    def allocations(self) -> list[Allocation]:
        """Everything that is out, in the order it was given or adopted."""
        return list(self._allocations.values())

    def adopt(
        self,
        key: AttachmentKey,
        *,
        pool: PoolName,
        ipv4: IPv4Address | None = None,
        ipv6: IPv6Address | None = None,
    ) -> Allocation:
        """Enter what the kernel already holds. Idempotent; any use of block will do, as the kernel is right.

        One address is enough (a pod may have been set up half); the slot is then held for both families.
        Raises LedgerConflictError when no block of the pool holds the addresses, when they are not of one slot,
        when the slot is another key's, or when the key holds another slot.
        """
        entry, slot = self._locate(pool=pool, addresses=[a for a in (ipv4, ipv6) if a is not None])
        holder = entry.held.get(slot, key)
        if holder != key:
            raise LedgerConflictError(f"slot {slot} of {entry.block.name!r} is held by {holder}, not {key}")
        known = self._allocations.get(key)
        if known is not None and (known.block, known.slot) != (entry.block.name, slot):
            raise LedgerConflictError(f"{key} already holds slot {known.slot} of {known.block!r}")
        entry.adopt(slot, key)
        return known or self._enter(entry, slot=slot, key=key)

    def resume(self, name: BlockName, *, last: int, cooldowns: Mapping[int, float]) -> None:
        """Go on where an earlier process stopped: the slot it gave out last, and until when which slots cool down.

        Hints: slots that are out or do not exist are ignored, and so is an unknown block. Call it after `adopt`.
        """
        entry = self._entries.get(name)
        if entry is None:
            return
        if 0 <= last < entry.block.size:
            entry.last = last
        entry.start_cooldowns(cooldowns)

    def find(self, key: AttachmentKey) -> Allocation | None:
        """What the key holds."""
        return self._allocations.get(key)

    def acquire(
        self, pool: PoolName, key: AttachmentKey, *, now: float, reuse: Reuse = Reuse.AFTER_COOLDOWN
    ) -> Allocation | None:
        """Give the key an address of the pool; None when no open block of the pool has one to give.

        A known key gets the answer it got before, even from another pool: CNI may repeat an ADD, and the pool's
        annotation may have changed in between. Blocks are filled from the lowest index, so that the others
        run empty and can go back.
        """
        if known := self._allocations.get(key):
            return known
        entries = self._pools.get(pool, [])
        for entry in entries:
            entry.expire(now)
            if entry.free(now):
                return self._give(entry, entry.next_free(), key)
        if reuse is Reuse.ANY:
            candidates = [entry for entry in entries if entry.usable and entry.cooldowns]
            if candidates:
                entry = min(candidates, key=lambda entry: next(iter(entry.cooldowns.values())))
                return self._give(entry, next(iter(entry.cooldowns)), key)
        return None

    def release(self, key: AttachmentKey, *, now: float) -> Allocation | None:
        """Take back what the key holds, to cool down; None when it holds nothing."""
        allocation = self._take(key, until=now + self._cooldown)
        if allocation is not None:
            self._entries[allocation.block].expire(now)
        return allocation

    def revoke(self, key: AttachmentKey) -> Allocation | None:
        """Take back what the key was given and never used.

        There is nothing to cool down from, unless it was given before it had cooled down from the pod before.
        """
        return self._take(key, until=-math.inf)

    def cooldown_end(self, allocation: Allocation) -> float:
        """Until when its address cools down after it came back, which may be over; −∞ if it does not."""
        entry = self._entries.get(allocation.block)
        return -math.inf if entry is None else entry.cooldown_end(allocation.slot)

    # --- counts

    def free_count(self, pool: PoolName, *, now: float) -> int:
        """How many addresses of the pool `acquire` can give out that have cooled down."""
        return sum(entry.free(now) for entry in self._pools.get(pool, ()))

    def next_cooldown_end(self, pool: PoolName, *, now: float) -> float | None:
        """When the next address of the pool has cooled down that can be given out then; None if none is cooling."""
        ends = (entry.next_cooldown_end(now) for entry in self._pools.get(pool, ()) if entry.usable)
        return min((end for end in ends if end is not None), default=None)

    def tally(self, pool: PoolName, *, now: float) -> Tally:
        """The counts of one pool."""
        return _tally(self._pools.get(pool, ()), now)

    def tallies(self, *, now: float) -> dict[PoolName, Tally]:
        """The counts of each pool that has a block here; takes time by the number of blocks."""
        return {pool: self.tally(pool, now=now) for pool in sorted(self._pools)}

    def occupancy(self, *, now: float) -> list[BlockOccupancy]:
        """What is out and what is cooling down, by pool and block; takes time by the number of such addresses."""
        return [entry.occupancy(now) for entry in self._ordered()]

    # --- inside

    def _ordered(self, pool: PoolName | None = None) -> list[BlockEntry]:
        pools = sorted(self._pools) if pool is None else [pool]
        return [entry for pool in pools for entry in self._pools.get(pool, ())]

    def _locate(self, *, pool: PoolName, addresses: list[IPv4Address | IPv6Address]) -> tuple[BlockEntry, int]:
        if not addresses:
            raise LedgerConflictError("nothing to adopt: no address was given")
        for entry in self._pools.get(pool, ()):
            slots = {entry.block.slot_of(address) for address in addresses}
            if slots == {None}:
                continue
            slot = slots.pop()
            if slots or slot is None:
                raise LedgerConflictError(f"{addresses} are not of one slot of the block {entry.block.name!r}")
            return entry, slot
        raise LedgerConflictError(f"no block of the pool {pool!r} on this node holds {addresses}")

    def _give(self, entry: BlockEntry, slot: int, key: AttachmentKey) -> Allocation:
        entry.give(slot, key)
        return self._enter(entry, slot=slot, key=key)

    def _enter(self, entry: BlockEntry, *, slot: int, key: AttachmentKey) -> Allocation:
        ipv4, ipv6 = entry.block.addresses(slot)
        allocation = Allocation(key, entry.block.pool, entry.block.name, slot, ipv4, ipv6)
        self._allocations[key] = allocation
        return allocation

    def _take(self, key: AttachmentKey, *, until: float) -> Allocation | None:
        allocation = self._allocations.pop(key, None)
        if allocation is not None:
            self._entries[allocation.block].take(allocation.slot, until=until)
        return allocation


def _order(entry: BlockEntry) -> tuple[int, BlockName]:
    return entry.block.index, entry.block.name


def _tally(entries: Iterable[BlockEntry], now: float) -> Tally:
    blocks = allocated = cooling = free = 0
    for entry in entries:
        blocks += 1
        allocated += len(entry.held)
        cooling += entry.cooldown_count(now)
        free += entry.free(now)
    return Tally(blocks, allocated, cooling, free)


def _share_addresses(left: Block, right: Block) -> bool:
    ipv4 = left.ipv4 is not None and right.ipv4 is not None and left.ipv4.overlaps(right.ipv4)
    ipv6 = left.ipv6 is not None and right.ipv6 is not None and left.ipv6.overlaps(right.ipv6)
    return ipv4 or ipv6
