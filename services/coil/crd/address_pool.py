"""AddressPool: the subnets that blocks are carved from, as the API server stores it.

Strings stay strings here, so that a pool with nonsense in it can still be decoded, listed and reported;
`coil.crd.pool_validation` judges it and `coil.ipam` parses what is valid.
"""

from datetime import datetime
from enum import StrEnum

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.names import GROUP, VERSION, PoolName
from coil.crd.resource import Resource

DEFAULT_BLOCK_SIZE_BITS = 5

MAX_COUNT = 2**63 - 1
"""The API's largest integer: a pool may hold more addresses than that."""


class SubnetSet(Struct, frozen=True, kw_only=True):
    """One entry of a pool: a CIDR of either family, or a pair of them of equal size."""

    ipv4: str | None = None
    ipv6: str | None = None


class AddressPoolSpec(Struct, frozen=True, kw_only=True):
    """A block has 2^`block_size_bits` addresses. The order of `subnets` is part of every block's identity."""

    block_size_bits: int = DEFAULT_BLOCK_SIZE_BITS
    subnets: tuple[SubnetSet, ...] = ()


class Usage(Struct, frozen=True, kw_only=True):
    """How many there are, and how many of them are in blocks that nodes have. Larger numbers stop at `MAX_COUNT`."""

    total: int = 0
    used: int = 0


class PoolConditionType(StrEnum):
    READY = "Ready"
    """True: the pool may give blocks. It says nothing about whether there are any left."""
    FULL = "Full"
    """True: no block is left. Its reason, a `PoolFill`, also says when that is near."""
    OCCUPIED = "Occupied"
    """True: some of its addresses are the cluster's own. A pool of which that was never so does not have it."""
    DEGRADED = "Degraded"
    """True: it breaks rules, and gives blocks nevertheless. A pool of which that was never so does not have it."""


class PoolObstacle(StrEnum):
    """Why a pool gives no blocks whatever is left in it: reasons of Ready=False."""

    INVALID = "InvalidPool"
    OVERLAPS = "OverlapsPool"
    DELETING = "Deleting"


class PoolDegradation(StrEnum):
    """What a pool that gives blocks may have from times when no rule was against it: reasons of Degraded=True."""

    CONFLICTS = "ConflictingAddresses"
    MIXED_FAMILIES = "MixedFamilies"


class PoolFill(StrEnum):
    """Reasons of the condition Full."""

    HAS_ROOM = "HasRoom"
    NEARLY_FULL = "NearlyFull"
    EXHAUSTED = "Exhausted"
    UNKNOWN = "InvalidPool"


class PoolCondition(Struct, frozen=True, kw_only=True):
    """As `kubectl wait --for=condition=…` reads it."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class AddressPoolStatus(Struct, frozen=True, kw_only=True):
    """What the controller says of the pool; `observed_generation` is that of the spec it speaks of."""

    blocks: Usage = Usage()
    addresses: Usage = Usage()
    conditions: tuple[PoolCondition, ...] = ()
    observed_generation: int = 0

    def condition(self, type_: str) -> PoolCondition | None:
        return next((condition for condition in self.conditions if condition.type == type_), None)


class AddressPool(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: AddressPoolSpec = AddressPoolSpec()
    status: AddressPoolStatus = AddressPoolStatus()

    @property
    def name(self) -> PoolName:
        return PoolName(self.metadata.name)


ADDRESS_POOLS: Resource[AddressPool] = Resource(
    GROUP, VERSION, "addresspools", "AddressPool", namespaced=False, type=AddressPool
)
