"""The addresses of one node: pools, their blocks here, and what is out of each."""

from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from coil.page.document import Document


class AddressState(StrEnum):
    """Of an address that is not free."""

    ALLOCATED = "allocated"
    COOLING = "cooling"
    """Given back a moment ago; nobody gets it until it has rested."""


class BlockUse(StrEnum):
    OPEN = "open"
    RESERVED = "reserved"
    """Another program's: exported, never given out."""
    DRAINING = "draining"
    """On its way out: its pods keep their addresses, nobody gets a new one."""
    OCCUPIED = "occupied"
    """A Node or a network of Services is in it: on its way out, and not exported."""


class AddressCounts(Document, frozen=True, kw_only=True):
    """total = allocated + cooling + free + withheld; the last are those of blocks that are not open."""

    total: int = 0
    allocated: int = 0
    cooling: int = 0
    free: int = 0
    withheld: int = 0

    def __add__(self, other: "AddressCounts") -> "AddressCounts":
        return AddressCounts(
            total=self.total + other.total,
            allocated=self.allocated + other.allocated,
            cooling=self.cooling + other.cooling,
            free=self.free + other.free,
            withheld=self.withheld + other.withheld,
        )


class AddressDocument(Document, frozen=True, kw_only=True):
    """One address of each family, at that place of its block. Who has it, or had it last, as far as is known."""

    ipv4: IPv4Address | None = None
    ipv6: IPv6Address | None = None
    slot: int
    state: AddressState
    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    interface: str | None = None
    since: datetime | None = None

    @property
    def texts(self) -> list[str]:
        """Its addresses as text, IPv4 first."""
        return [str(address) for address in (self.ipv4, self.ipv6) if address is not None]

    @property
    def pod_text(self) -> str | None:
        """`namespace/pod`; None when it is not known."""
        return f"{self.namespace}/{self.pod}" if self.pod else None


class FormerHolderDocument(Document, frozen=True, kw_only=True):
    """Who had the addresses of a slot before they were given back, and from when until when."""

    slot: int
    ipv4: IPv4Address | None = None
    ipv6: IPv6Address | None = None
    namespace: str
    pod: str
    container: str
    interface: str
    since: datetime | None = None
    until: datetime | None = None


class BlockDocument(Document, frozen=True, kw_only=True):
    """`used` has the addresses that are allocated or cooling, by slot; the rest are not listed. `former` has who had
    addresses before, one for each address, as far as that is remembered.
    """

    name: str
    index: int
    ipv4: IPv4Network | None = None
    ipv6: IPv6Network | None = None
    use: BlockUse = BlockUse.OPEN
    addresses: AddressCounts
    used: tuple[AddressDocument, ...] = ()
    former: tuple[FormerHolderDocument, ...] = ()


class PoolDocument(Document, frozen=True, kw_only=True):
    name: str
    addresses: AddressCounts
    blocks: tuple[BlockDocument, ...] = ()


class RouteTablesDocument(Document, frozen=True, kw_only=True):
    """By which numbers the node's routes to its pods, and those that it exports, are coild's."""

    pods: int
    export: int
    protocol: int


class NodeDocument(Document, frozen=True, kw_only=True):
    """`tables` is null where coild is older."""

    node: str
    at: datetime
    addresses: AddressCounts
    pools: tuple[PoolDocument, ...] = ()
    tables: RouteTablesDocument | None = None
