"""The node's books: which addresses of its blocks are out, and to whom.

In the flow: coild puts in the blocks that belong to its node, adopts at start what the kernel already holds, and
then every CNI ADD is one `acquire` and every DEL one `release`. All methods are synchronous and belong to one
thread, so each is atomic and no lock exists.

Invariants, after every call that returns and every call that raises:
* a slot is held by at most one key, and a key holds at most one slot (over all blocks and pools);
* the two addresses of an allocation are those of one slot of one block;
* nothing is given out from a block that is reserved or draining;
* a block that has allocations is in the books.

Slots are kept as a mapping and not as a bitmap: it is as large as what is out, whatever the size of the block,
and a block may well be a /64.
"""

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import NewType

from coil.crd.names import BlockName, PoolName
from coil.ipam.block import Block, BlockUse

ContainerId = NewType("ContainerId", str)


@dataclass(frozen=True, slots=True)
class AttachmentKey:
    """One interface of one container, as CNI identifies it."""

    container_id: ContainerId
    ifname: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """One slot in somebody's hands. At least one of the addresses is present."""

    key: AttachmentKey
    pool: PoolName
    block: BlockName
    slot: int
    ipv4: IPv4Address | None
    ipv6: IPv6Address | None


class LedgerConflictError(Exception):
    """What was asked contradicts the books; they are unchanged."""


@dataclass(slots=True)
class _Page:
    """One block in the books. `last` is the slot given out last: the search goes on after it."""

    block: Block
    held: dict[int, AttachmentKey] = field(default_factory=dict)
    last: int = -1

    @property
    def free(self) -> int:
        return self.block.size - len(self.held) if self.block.use is BlockUse.OPEN else 0

    def next_free(self) -> int:
        """The next clear slot after the last one given out, wrapping. Only for a page with free slots."""
        slot = (self.last + 1) % self.block.size
        while slot in self.held:
            slot = (slot + 1) % self.block.size
        return slot


class NodeLedger:
    """See the module's text for the invariants."""

    def __init__(self) -> None:
        self._pages: dict[BlockName, _Page] = {}
        self._allocations: dict[AttachmentKey, Allocation] = {}

    def add_block(self, block: Block) -> None:
        """Put a block in, or note its changed use (reserved, draining, open). Idempotent.

        Raises LedgerConflictError when a block of that name has other networks, or when its addresses overlap
        those of another block: two keys could otherwise hold one address.
        """
        page = self._pages.get(block.name)
        if page is not None:
            if (block.pool, block.ipv4, block.ipv6) != (page.block.pool, page.block.ipv4, page.block.ipv6):
                raise LedgerConflictError(f"the block {block.name!r} is in the books with other networks")
            page.block = block
            return
        for other in self._pages.values():
            if _share_addresses(block, other.block):
                raise LedgerConflictError(f"the blocks {block.name!r} and {other.block.name!r} overlap")
        self._pages[block.name] = _Page(block)

    def remove_block(self, name: BlockName) -> None:
        """Take a block out; an unknown one is fine. Raises LedgerConflictError while addresses of it are out."""
        page = self._pages.get(name)
        if page is not None and page.held:
            raise LedgerConflictError(f"{len(page.held)} addresses of the block {name!r} are out")
        self._pages.pop(name, None)

    def blocks(self, pool: PoolName | None = None) -> list[Block]:
        """The blocks in the books, of one pool or of all, by pool and index."""
        return [page.block for page in self._ordered(pool)]

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
        page, slot = self._locate(pool=pool, addresses=[a for a in (ipv4, ipv6) if a is not None])
        holder = page.held.get(slot, key)
        if holder != key:
            raise LedgerConflictError(f"slot {slot} of {page.block.name!r} is held by {holder}, not {key}")
        known = self._allocations.get(key)
        if known is not None and (known.block, known.slot) != (page.block.name, slot):
            raise LedgerConflictError(f"{key} already holds slot {known.slot} of {known.block!r}")
        # Going on after the highest slot in use comes closest to where the search stood before the restart.
        page.last = max(page.last, slot)
        return known or self._enter(page, slot=slot, key=key)

    def find(self, key: AttachmentKey) -> Allocation | None:
        """What the key holds."""
        return self._allocations.get(key)

    def acquire(self, pool: PoolName, key: AttachmentKey) -> Allocation | None:
        """Give the key an address of the pool; None when no open block of the pool has a free slot.

        A known key gets the answer it got before, even from another pool: CNI may repeat an ADD, and the pool's
        annotation may have changed in between. Blocks are filled from the lowest index, so that the others
        run empty and can go back.
        """
        if known := self._allocations.get(key):
            return known
        for page in self._ordered(pool):
            if page.free:
                page.last = page.next_free()
                return self._enter(page, slot=page.last, key=key)
        return None

    def release(self, key: AttachmentKey) -> Allocation | None:
        """Take back what the key holds; None when it holds nothing."""
        allocation = self._allocations.pop(key, None)
        if allocation is not None:
            del self._pages[allocation.block].held[allocation.slot]
        return allocation

    def empty_blocks(self) -> list[Block]:
        """Blocks that can be given back: nothing of them is out, and they are not reserved."""
        return [page.block for page in self._ordered(None) if not page.held and not page.block.reserved]

    def free_count(self, pool: PoolName) -> int:
        """How many addresses `acquire` can still give out of the pool."""
        return sum(page.free for page in self._pages.values() if page.block.pool == pool)

    def _ordered(self, pool: PoolName | None) -> list[_Page]:
        pages = [page for page in self._pages.values() if pool is None or page.block.pool == pool]
        return sorted(pages, key=lambda page: (page.block.pool, page.block.index, page.block.name))

    def _locate(self, *, pool: PoolName, addresses: list[IPv4Address | IPv6Address]) -> tuple[_Page, int]:
        if not addresses:
            raise LedgerConflictError("nothing to adopt: no address was given")
        for page in self._pages.values():
            slots = {page.block.slot_of(address) for address in addresses}
            if slots == {None} or page.block.pool != pool:
                continue
            slot = slots.pop()
            if slots or slot is None:
                raise LedgerConflictError(f"{addresses} are not of one slot of the block {page.block.name!r}")
            return page, slot
        raise LedgerConflictError(f"no block of the pool {pool!r} on this node holds {addresses}")

    def _enter(self, page: _Page, *, slot: int, key: AttachmentKey) -> Allocation:
        ipv4, ipv6 = page.block.addresses(slot)
        allocation = Allocation(key, page.block.pool, page.block.name, slot, ipv4, ipv6)
        page.held[slot] = key
        self._allocations[key] = allocation
        return allocation


def _share_addresses(left: Block, right: Block) -> bool:
    ipv4 = left.ipv4 is not None and right.ipv4 is not None and left.ipv4.overlaps(right.ipv4)
    ipv6 = left.ipv6 is not None and right.ipv6 is not None and left.ipv6.overlaps(right.ipv6)
    return ipv4 or ipv6
