"""AddressPool: the subnets that blocks are carved from, as the API server stores it.

Strings stay strings here, so that a pool with nonsense in it can still be decoded, listed and reported;
`coil.crd.pool_validation` judges it and `coil.ipam` parses what is valid.
"""

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.names import GROUP, VERSION, PoolName
from coil.crd.resource import Resource

DEFAULT_BLOCK_SIZE_BITS = 5


class SubnetSet(Struct, frozen=True, kw_only=True):
    """One entry of a pool: a CIDR of either family, or a pair of them of equal size."""

    ipv4: str | None = None
    ipv6: str | None = None


class AddressPoolSpec(Struct, frozen=True, kw_only=True):
    """A block has 2^`block_size_bits` addresses. The order of `subnets` is part of every block's identity."""

    block_size_bits: int = DEFAULT_BLOCK_SIZE_BITS
    subnets: tuple[SubnetSet, ...] = ()


class AddressPool(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: AddressPoolSpec = AddressPoolSpec()

    @property
    def name(self) -> PoolName:
        return PoolName(self.metadata.name)


ADDRESS_POOLS: Resource[AddressPool] = Resource(
    GROUP, VERSION, "addresspools", "AddressPool", namespaced=False, type=AddressPool
)
