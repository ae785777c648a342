"""A block as a node sees it: a run of slots, each meaning one address per family."""

from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from coil.crd.address_block import AddressBlock
from coil.crd.cidr import parse_ipv4_cidr, parse_ipv6_cidr
from coil.crd.names import BlockName, PoolName


class BlockUse(Enum):
    """What a node may do with a block."""

    OPEN = "open"
    RESERVED = "reserved"
    """Another program's addresses: exported, but never given out and never emptied."""
    DRAINING = "draining"
    """Its deletion was asked for: what is out stays out, nothing new is given, and it goes when empty."""
    OCCUPIED = "occupied"
    """A Node or a network of Services has come into it: as draining, and it is not exported either. A route to it would
    take packets for that Node to this one.
    """


class MalformedBlockError(ValueError):
    """An AddressBlock that describes no block."""


@dataclass(frozen=True, slots=True)
class Block:
    """Slot n is the n-th address of `ipv4` and of `ipv6`. Every slot is usable: blocks are routed, not bridged,
    so that their first and last addresses mean nothing special. `node_ledger` wants at least one family."""

    name: BlockName
    pool: PoolName
    index: int
    ipv4: IPv4Network | None
    ipv6: IPv6Network | None
    use: BlockUse = BlockUse.OPEN

    def __post_init__(self) -> None:
        sizes = {network.num_addresses for network in (self.ipv4, self.ipv6) if network is not None}
        if len(sizes) != 1:
            raise MalformedBlockError(f"the block {self.name!r} needs one or two networks of one size")

    @property
    def reserved(self) -> bool:
        return self.use is BlockUse.RESERVED

    @property
    def exported(self) -> bool:
        """Whether other nodes are told that the block is here."""
        return self.use is not BlockUse.OCCUPIED

    @property
    def size(self) -> int:
        """The number of slots."""
        return max(network.num_addresses for network in (self.ipv4, self.ipv6) if network is not None)

    def addresses(self, slot: int) -> tuple[IPv4Address | None, IPv6Address | None]:
        """The addresses of a slot. Raises IndexError outside 0 … size − 1."""
        return (
            None if self.ipv4 is None else self.ipv4[slot],
            None if self.ipv6 is None else self.ipv6[slot],
        )

    def slot_of(self, address: IPv4Address | IPv6Address) -> int | None:
        """The slot that holds the address; None when the block does not."""
        network = self.ipv4 if isinstance(address, IPv4Address) else self.ipv6
        if network is None or address not in network:
            return None
        return int(address) - int(network.network_address)


def parse_block(document: AddressBlock) -> Block:
    """The block that a document describes. Raises MalformedBlockError."""
    try:
        ipv4 = None if document.ipv4 is None else parse_ipv4_cidr(document.ipv4)
        ipv6 = None if document.ipv6 is None else parse_ipv6_cidr(document.ipv6)
    except ValueError as error:
        raise MalformedBlockError(f"the block {document.name!r}: {error}") from None
    if document.reserved:
        use = BlockUse.RESERVED
    elif document.occupied_by:
        use = BlockUse.OCCUPIED
    elif document.metadata.deleting:
        use = BlockUse.DRAINING
    else:
        use = BlockUse.OPEN
    return Block(document.name, document.pool, document.index, ipv4, ipv6, use)
