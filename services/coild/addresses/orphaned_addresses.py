"""Pods whose addresses are in none of the node's blocks, and the blocks that may be why. Part of
`coild.addresses.block_store`.

Somebody edited or deleted an AddressBlock under its pods while coild was away: the kernel says who has which address,
the API server says that the node has no such addresses, and nothing says which block it was. The name of a block is its
index in its pool, and whoever is given the index has the addresses. So all of the pool's blocks that were there at
start are suspects, and so is a block of another pool that has such an address now.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from coil.crd.address_block import AddressBlock
from coil.crd.names import PoolName
from coil.ipam.attachment import AttachmentKey
from coil.ipam.block import MalformedBlockError, parse_block
from coil.kernel.family import IPAddress
from coild.model.address_source import HeldAddresses


@dataclass(frozen=True, slots=True)
class OrphanedAddresses:
    """`has` says whether a block of the pool in the books has the address."""

    has: Callable[[PoolName, IPAddress], bool]
    pods: dict[AttachmentKey, HeldAddresses] = field(default_factory=dict)

    def suspecting(self, block: AddressBlock) -> Iterator[HeldAddresses]:
        """The pods that may have lost their home by what was done to that block."""
        for held in self.pods.values():
            pool, addresses = held.addresses.pool, held.addresses.present
            if block.pool == pool:
                # All of them in a block, and yet homeless: another pod claims the same.
                suspected = not all(self.has(pool, address) for address in addresses)
            else:
                suspected = _covers(block, addresses)
            if suspected:
                yield held


def _covers(document: AddressBlock, addresses: tuple[IPAddress, ...]) -> bool:
    try:
        block = parse_block(document)
    except MalformedBlockError:
        return False
    return any(block.slot_of(address) is not None for address in addresses)
