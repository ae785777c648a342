"""One block in the node's books: which slots are out, which rest, and where the search goes on. Part of `node_ledger`.

Slots are kept as mappings and not as bitmaps: they are as large as what is not free, whatever the size of the block,
and a block may well be a /64.

Invariant: no slot is out and resting.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from coil.ipam.attachment import AttachmentKey
from coil.ipam.block import Block, BlockUse
from coil.ipam.occupancy import AddressState, AddressUse, BlockOccupancy


@dataclass(slots=True, eq=False)
class BlockPage:
    """`last` is the slot given out last: the search goes on after it. Times are those of the caller's clock."""

    block: Block
    last: int = -1
    held: dict[int, AttachmentKey] = field(default_factory=dict)
    cooling: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """Slot → until when, the first to have rested in front. Read it after `wake`."""

    def wake(self, now: float) -> None:
        """Free the slots that have rested."""
        while self.cooling and next(iter(self.cooling.values())) <= now:
            self.cooling.popitem(last=False)

    @property
    def usable(self) -> bool:
        return self.block.use is BlockUse.OPEN

    @property
    def free(self) -> int:
        """How many slots can be given out that do not rest."""
        return self.block.size - len(self.held) - len(self.cooling) if self.usable else 0

    def next_free(self) -> int:
        """The next free slot after the last one given out, wrapping. Only for a page with free slots."""
        slot = (self.last + 1) % self.block.size
        while slot in self.held or slot in self.cooling:
            slot = (slot + 1) % self.block.size
        return slot

    def give(self, slot: int, key: AttachmentKey) -> None:
        self.cooling.pop(slot, None)
        self.held[slot] = key
        self.last = slot

    def adopt(self, slot: int, key: AttachmentKey) -> None:
        """The slot turned out to be the key's. Whoever rested there has no say."""
        self.cooling.pop(slot, None)
        self.held[slot] = key
        # Going on after the highest slot in use comes closest to where the search stood before a restart.
        self.last = max(self.last, slot)

    def take(self, slot: int, *, until: float = -math.inf) -> None:
        """The slot is nobody's any more; it rests until then, not at all without a time."""
        del self.held[slot]
        if until > -math.inf:
            self.cool({slot: until})

    def cool(self, until: Mapping[int, float]) -> None:
        """Let slots rest; those that are out, or that this block does not have, are left alone."""
        sooner = False
        latest = next(reversed(self.cooling.values()), -math.inf)
        for slot, end in until.items():
            if slot not in self.held and 0 <= slot < self.block.size:
                sooner = sooner or end < latest
                latest = max(latest, end)
                self.cooling[slot] = end
                self.cooling.move_to_end(slot)
        if sooner:
            self.cooling = OrderedDict(sorted(self.cooling.items(), key=lambda item: item[1]))

    @property
    def rests_until(self) -> float:
        """When the last slot has rested; −∞ if none rests."""
        return next(reversed(self.cooling.values()), -math.inf)

    def occupancy(self) -> BlockOccupancy:
        return BlockOccupancy(
            self.block,
            tuple(
                AddressUse(
                    slot,
                    *self.block.addresses(slot),
                    AddressState.COOLING if key is None else AddressState.ALLOCATED,
                    key,
                )
                for slot, key in sorted((self.held | dict.fromkeys(self.cooling)).items())
            ),
        )
