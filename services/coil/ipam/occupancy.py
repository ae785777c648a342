"""Who has what of a node's blocks at one moment: what `node_ledger` shows to metrics and to people.

Snapshots: they do not change with the books they were taken from.
"""

from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address

from coil.ipam.attachment import AttachmentKey
from coil.ipam.block import Block, BlockUse


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
