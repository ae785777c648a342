"""Who has what of a block: which slots are out, which are cooling down, where the search for a free one goes on, and
what of that metrics and people see. Part of `node_ledger`.

Slots are kept as mappings and not as bitmaps: they are as large as what is not free, whatever the size of the block,
and a block may well be a /64. What `BlockEntry` returns to be shown are snapshots, which do not change with it.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from itertools import takewhile
from typing import NewType

from coil.ipam.block import Block, BlockUse

ContainerId = NewType("ContainerId", str)


@dataclass(frozen=True, slots=True)
class AttachmentKey:
    """What an address is given to: one interface of one container, as CNI identifies it.

    Compared as a whole: two interfaces of one container are two attachments.
    """

    container_id: ContainerId
    ifname: str


class AddressState(Enum):
    """The state of a slot, that is of its one or two addresses."""

    FREE = "free"
    ALLOCATED = "allocated"
    COOLING = "cooling"
    """Given back a short while ago; rests before it is given out again."""


@dataclass(frozen=True, slots=True)
class AddressUse:
    """A slot that is not free. `key` is who has it; None while it cools."""

    slot: int
    ipv4: IPv4Address | None
    ipv6: IPv6Address | None
    state: AddressState
    key: AttachmentKey | None


@dataclass(frozen=True, slots=True)
class BlockOccupancy:
    """`uses` by slot. Slots that are not named there are free, or, unless the block is open, out of use.

    A list of what is not free, as a block may be a /64.
    """

    block: Block
    uses: tuple[AddressUse, ...]

    @property
    def size(self) -> int:
        return self.block.size

    @property
    def allocated(self) -> int:
        return sum(use.state is AddressState.ALLOCATED for use in self.uses)

    @property
    def cooling(self) -> int:
        return sum(use.state is AddressState.COOLING for use in self.uses)

    @property
    def free(self) -> int:
        """How many addresses can be given out: none of a block that is reserved or draining."""
        return self.size - len(self.uses) if self.block.use is BlockUse.OPEN else 0


@dataclass(frozen=True, slots=True)
class Tally:
    """How many of a pool's addresses on this node are in which state; `free` as in `BlockOccupancy`.

    The counts of addresses may be larger than 2^64.
    """

    blocks: int = 0
    allocated: int = 0
    cooling: int = 0
    free: int = 0


@dataclass(slots=True, eq=False)
class BlockEntry:
    """One block in the ledger. `last` is the slot given out last: the search goes on after it.

    Times are those of the caller's clock. Only `expire` frees slots that have cooled down; what is read for a moment
    `now` does not count them any more. Invariant: no slot is out and cooling.
    """

    block: Block
    last: int = -1
    held: dict[int, AttachmentKey] = field(default_factory=dict)
    cooldowns: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """Slot → until when, the first to end in front. Some may have ended."""
    interrupted: dict[int, float] = field(default_factory=dict)
    """The cooldowns of slots that were given out before they had ended: they go on if the slot comes back unused."""

    def expire(self, now: float) -> None:
        """Free the slots that have cooled down by then."""
        while self.cooldowns and next(iter(self.cooldowns.values())) <= now:
            self.cooldowns.popitem(last=False)

    def cooldown_count(self, now: float) -> int:
        """How many slots have not cooled down by then."""
        return len(self.cooldowns) - sum(1 for _ in takewhile(lambda end: end <= now, self.cooldowns.values()))

    def next_cooldown_end(self, now: float) -> float | None:
        """When the next slot has cooled down after that moment; None if none is cooling."""
        return next((end for end in self.cooldowns.values() if end > now), None)

    @property
    def usable(self) -> bool:
        return self.block.use is BlockUse.OPEN

    def free(self, now: float) -> int:
        """How many slots can be given out that are not cooling."""
        return self.block.size - len(self.held) - self.cooldown_count(now) if self.usable else 0

    def next_free(self) -> int:
        """The next free slot after the last one given out, wrapping. After `expire`, where slots are free."""
        slot = (self.last + 1) % self.block.size
        while slot in self.held or slot in self.cooldowns:
            slot = (slot + 1) % self.block.size
        return slot

    def give(self, slot: int, key: AttachmentKey) -> None:
        if (end := self.cooldowns.pop(slot, None)) is not None:
            self.interrupted[slot] = end
        self.held[slot] = key
        self.last = slot

    def adopt(self, slot: int, key: AttachmentKey) -> None:
        """The slot turned out to be the key's. Whether it was cooling does not matter."""
        self.cooldowns.pop(slot, None)
        self.held[slot] = key
        # Going on after the highest slot in use comes closest to where the search stood before a restart.
        self.last = max(self.last, slot)

    def take(self, slot: int, *, until: float = -math.inf) -> None:
        """The slot is nobody's any more; it cools down until then, or for as long as it had to when it was given."""
        del self.held[slot]
        until = max(until, self.interrupted.pop(slot, -math.inf))
        if until > -math.inf:
            self.start_cooldowns({slot: until})

    def cooldown_end(self, slot: int) -> float:
        """Until when the slot cools down, which may be over; −∞ if nothing is recorded."""
        return self.cooldowns.get(slot, -math.inf)

    def start_cooldowns(self, until: Mapping[int, float]) -> None:
        """Let slots cool down; those that are out, or that this block does not have, are left alone."""
        sooner = False
        latest = next(reversed(self.cooldowns.values()), -math.inf)
        for slot, end in until.items():
            if slot not in self.held and 0 <= slot < self.block.size:
                sooner = sooner or end < latest
                latest = max(latest, end)
                self.cooldowns[slot] = end
                self.cooldowns.move_to_end(slot)
        if sooner:
            self.cooldowns = OrderedDict(sorted(self.cooldowns.items(), key=lambda item: item[1]))

    @property
    def last_cooldown_end(self) -> float:
        """When the last slot has cooled down, which may be over; −∞ if none is recorded."""
        return next(reversed(self.cooldowns.values()), -math.inf)

    def occupancy(self, now: float) -> BlockOccupancy:
        """What is not free."""
        in_cooldown = dict.fromkeys(slot for slot, end in self.cooldowns.items() if end > now)
        return BlockOccupancy(
            self.block,
            tuple(
                AddressUse(
                    slot,
                    *self.block.addresses(slot),
                    AddressState.COOLING if key is None else AddressState.ALLOCATED,
                    key,
                )
                for slot, key in sorted((self.held | in_cooldown).items())
            ),
        )
