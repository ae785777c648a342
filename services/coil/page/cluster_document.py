"""The blocks of the cluster: pools, where their blocks are, who waits for one, and how it came about."""

from collections.abc import Container
from datetime import datetime
from enum import StrEnum

import msgspec

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import Usage
from coil.page.document import Document


class BlockState(StrEnum):
    USED = "used"
    RESERVED = "reserved"
    """Kept for another program."""
    LEAVING = "leaving"
    """Its deletion was asked for; the index is taken until it has gone."""
    ORPHANED = "orphaned"
    """Its node is not, or no more, in the cluster."""


def state_of(block: AddressBlock, nodes: Container[str]) -> BlockState:
    """`nodes` are those of the cluster, or all that may be the block's."""
    if block.metadata.deleting:
        return BlockState.LEAVING
    if block.reserved:
        return BlockState.RESERVED
    return BlockState.USED if block.node in nodes else BlockState.ORPHANED


class PlacedBlock(Document, frozen=True, kw_only=True):
    """A block that exists. `node` is empty when it is nobody's; networks stand as they are stored."""

    name: str
    index: int
    node: str
    state: BlockState
    ipv4: str | None = None
    ipv6: str | None = None

    @property
    def texts(self) -> list[str]:
        """Its networks, IPv4 first."""
        return [text for text in (self.ipv4, self.ipv6) if text]


class UseCounts(Document, frozen=True, kw_only=True):
    """Of blocks, or of the addresses in them."""

    total: int = 0
    used: int = 0
    free: int = 0

    @classmethod
    def of(cls, usage: Usage) -> "UseCounts":
        """What a pool's status says."""
        return cls(total=usage.total, used=usage.used, free=max(0, usage.total - usage.used))

    def __add__(self, other: "UseCounts") -> "UseCounts":
        return UseCounts(total=self.total + other.total, used=self.used + other.used, free=self.free + other.free)


class SubnetDocument(Document, frozen=True, kw_only=True):
    """One entry of a pool, as it is written there."""

    ipv4: str | None = None
    ipv6: str | None = None


class ConditionDocument(Document, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class HistoryDocument(Document, frozen=True, kw_only=True):
    """How many blocks of the pool existed, the oldest first, `interval_seconds` apart; the last one at `until`."""

    interval_seconds: float
    until: datetime | None = None
    used_blocks: tuple[int, ...] = ()


class PoolDocument(Document, frozen=True, kw_only=True):
    """`gives_blocks` is the controller's decision; when it is false, `reason` says why. `block_size` is the number
    of addresses in a block, 0 when the pool has no meaning."""

    name: str
    gives_blocks: bool
    reason: str = ""
    block_size: int
    subnets: tuple[SubnetDocument, ...] = ()
    blocks: UseCounts
    addresses: UseCounts
    conditions: tuple[ConditionDocument, ...] = ()
    placed: tuple[PlacedBlock, ...] = ()
    history: HistoryDocument


class NodeDocument(Document, frozen=True, kw_only=True):
    """A node that has blocks or is in the cluster. `blocks` counts them by pool. `unready_since` is None for a node
    that is ready, or has never said."""

    name: str
    present: bool
    unready_since: datetime | None = None
    blocks: dict[str, int]


class RequestState(StrEnum):
    PENDING = "pending"
    REFUSED = "refused"


class RequestDocument(Document, frozen=True, kw_only=True):
    """A BlockRequest that has no block. `reason` is why it was refused."""

    name: str
    node: str
    pool: str
    state: RequestState
    since: datetime | None = None
    reason: str = ""


class VpcSubnetDocument(Document, frozen=True, kw_only=True):
    """A subnet of the VPC: its IPv4 addresses, and the cluster's interfaces in it.

    `taken_per_hour` is negative where addresses are given back, and null as long as nobody knows; `dry_in_seconds` is
    0 for a subnet without a free address, and null for one that will not run dry at this rate, or of which nobody
    knows. `tagged` is whether nodes of other subnets may use it, too.
    """

    id: str
    zone: str
    ipv4: str
    total: int
    free: int
    interfaces: int
    tagged: bool
    taken_per_hour: float | None = None
    dry_in_seconds: float | None = None


class InterfacesDocument(Document, frozen=True, kw_only=True):
    """What the leader sees of EC2; a replica that stands by knows the cluster's name only.

    `unattached` is the number of interfaces that the cluster's nodes have made and that are attached to nothing.
    `troubles` is why EC2 cannot be asked at present, by the part of the work.
    """

    cluster: str
    seen_at: datetime | None = None
    unattached: int | None = None
    subnets: tuple[VpcSubnetDocument, ...] = ()
    troubles: dict[str, str] = msgspec.field(default_factory=dict)


class ClusterDocument(Document, frozen=True, kw_only=True):
    """As `replica` sees it in its caches; `leads` is whether it is the one that works.

    `interfaces` is null where all pods have addresses of pools.
    """

    replica: str
    leads: bool
    at: datetime
    blocks: UseCounts
    pools: tuple[PoolDocument, ...] = ()
    nodes: tuple[NodeDocument, ...] = ()
    requests: tuple[RequestDocument, ...] = ()
    interfaces: InterfacesDocument | None = None
