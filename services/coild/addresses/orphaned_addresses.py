"""Pods whose addresses are in none of the node's blocks, and the blocks that may be the reason. Part of
`coild.addresses.block_store`.

Somebody edited or deleted an AddressBlock under its pods while coild was not running: the kernel says which pod has
which address, the API server says that the node has no such addresses, and nothing says which block it was. The name of
a block is its index in its pool, and whichever node gets the index gets the addresses. So all of the pool's blocks that
were there at start are suspects, and so is a block of another pool that has such an address now.

A suspect is not released before those pods have gone, or have addresses of a block again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coil.crd.address_block import AddressBlock
from coil.crd.names import BlockName, PoolName
from coil.ipam.block import MalformedBlockError, parse_block
from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress
from coild.model.attachment import Attachment


@dataclass(frozen=True, slots=True)
class OrphanedAddresses:
    """`has` says whether a block of the pool in the store has the address."""

    has: Callable[[PoolName, IPAddress], bool]
    pods: dict[AttachmentKey, Attachment] = field(default_factory=dict)
    suspects: set[BlockName] = field(default_factory=set)

    def add(self, held: Attachment) -> None:
        """The kernel holds what no block has."""
        self.pods[held.key] = held

    def remove(self, key: AttachmentKey) -> bool:
        """The pod has gone, or has addresses of a block; False if it was no orphan."""
        return self.pods.pop(key, None) is not None

    def suspect(self, documents: Iterable[AddressBlock]) -> list[AddressBlock]:
        """Make suspects of those blocks that may have been edited under pods. Once, at start."""
        suspects = [document for document in documents if self.claimants(document)]
        self.suspects.update(document.name for document in suspects)
        return suspects

    def acquit(self, documents: Iterable[AddressBlock]) -> list[AddressBlock]:
        """Those of the blocks that were suspects and are no longer, as their pods have gone."""
        acquitted = [
            document for document in documents if document.name in self.suspects and not self.claimants(document)
        ]
        self.suspects.difference_update(document.name for document in acquitted)
        return acquitted

    def claimants(self, block: AddressBlock) -> list[Attachment]:
        """The pods whose addresses may have been that block's before it was edited."""
        return [held for held in self.pods.values() if self._may_be_of(held, block)]

    def _may_be_of(self, held: Attachment, block: AddressBlock) -> bool:
        pool, addresses = PoolName(held.tag), held.addresses
        if block.pool == pool:
            # An orphan all of whose addresses are in a block lost them to another pod that claims the same.
            return not all(self.has(pool, address) for address in addresses)
        return _covers(block, addresses)


def _covers(document: AddressBlock, addresses: tuple[IPAddress, ...]) -> bool:
    try:
        block = parse_block(document)
    except MalformedBlockError:
        return False
    return any(block.slot_of(address) is not None for address in addresses)
