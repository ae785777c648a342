"""How a pool divides into blocks: block index ↔ networks.

Subnets are walked in order; one of h host bits holds 2^(h − block size bits) blocks; a block's offset within its
subnet is its index less the blocks of the subnets before. Both families of an entry share the offset. The layout
of an index never changes while the pool lives, because pools only grow at their end.

A pool may hold 2^59 blocks and more, so nothing here counts or stores blocks one by one.

Coil v2 stored pools that cannot be had in whole: with addresses that no pod can have, or that an earlier entry or
another pool has as well. Their blocks keep their indices; those with such addresses are withheld.
"""

from bisect import bisect_right
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from itertools import accumulate

from coil.crd.address_pool import AddressPool
from coil.crd.cidr import Span, merge_spans, parse_ipv4_cidr, parse_ipv6_cidr
from coil.crd.names import BlockName, PoolName
from coil.crd.pool_validation import Conflict, find_conflicts, find_faults, find_overlaps, list_errors
from coil.crd.validation import FieldError, render_errors


class InvalidPoolError(ValueError):
    """The pool has faults, so that no block can be carved from it."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__(render_errors(errors))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """A block as it would be created: its place in the pool and the networks that this place means."""

    pool: PoolName
    index: int
    ipv4: IPv4Network | None
    ipv6: IPv6Network | None

    @property
    def name(self) -> BlockName:
        return block_name(self.pool, self.index)


@dataclass(frozen=True, slots=True)
class Subnet:
    """One entry of a pool, parsed; `blocks` is how many blocks it holds."""

    ipv4: IPv4Network | None
    ipv6: IPv6Network | None
    blocks: int


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """A pool without faults, parsed. `size` is the number of its indices.

    `withheld` are the indices whose blocks are not to be given, as ascending spans with gaps between them; `conflicts`
    tells why.
    """

    pool: PoolName
    block_size_bits: int
    subnets: tuple[Subnet, ...]
    size: int
    withheld: tuple[Span, ...] = ()
    conflicts: tuple[FieldError, ...] = ()

    def capacity(self, taken: Collection[int] = ()) -> int:
        """How many blocks the pool may have: all but those that are withheld and not among the indices `taken`."""
        if not self.withheld:
            return self.size
        given = sum(self.withheld_until(index) is not None for index in taken)
        return self.size - sum(last - first + 1 for first, last in self.withheld) + given

    def withheld_until(self, index: int) -> int | None:
        """The first index after the withheld ones that this is one of; None if its block may be given."""
        position = bisect_right(self.withheld, index, key=lambda span: span[0]) - 1
        if position < 0 or index > (last := self.withheld[position][1]):
            return None
        return last + 1

    def block_at(self, index: int) -> PlannedBlock:
        """The block of that index. Raises IndexError outside 0 … size − 1."""
        if index < 0:
            raise IndexError(f"block index {index} is negative")
        offset = index
        for subnet in self.subnets:
            if offset < subnet.blocks:
                return self._carve(subnet, index=index, offset=offset)
            offset -= subnet.blocks
        raise IndexError(f"the pool {self.pool!r} has {self.size} blocks, none of index {index}")

    def subnet_end(self, index: int) -> int:
        """The first index after the subnet that has this one."""
        end = 0
        for subnet in self.subnets:
            end += subnet.blocks
            if index < end:
                break
        return end

    def _carve(self, subnet: Subnet, *, index: int, offset: int) -> PlannedBlock:
        bits = self.block_size_bits
        ipv4 = subnet.ipv4 and IPv4Network((int(subnet.ipv4.network_address) + (offset << bits), 32 - bits))
        ipv6 = subnet.ipv6 and IPv6Network((int(subnet.ipv6.network_address) + (offset << bits), 128 - bits))
        return PlannedBlock(self.pool, index, ipv4, ipv6)


def parse_layout(pool: AddressPool, others: Iterable[AddressPool] = ()) -> PoolLayout:
    """The layout of a pool, with the blocks withheld that share addresses with `others`.

    Raises InvalidPoolError, with every fault, when the pool has some.
    """
    if errors := find_faults(pool):
        raise InvalidPoolError(errors)
    subnets: list[Subnet] = []
    for entry in pool.spec.subnets:
        ipv4 = None if entry.ipv4 is None else parse_ipv4_cidr(entry.ipv4, strict=False)
        ipv6 = None if entry.ipv6 is None else parse_ipv6_cidr(entry.ipv6, strict=False)
        addresses = max(network.num_addresses for network in (ipv4, ipv6) if network is not None)
        subnets.append(Subnet(ipv4, ipv6, addresses >> pool.spec.block_size_bits))
    conflicts = [*find_conflicts(pool), *find_overlaps(pool, others)]
    return PoolLayout(
        pool.name,
        pool.spec.block_size_bits,
        tuple(subnets),
        sum(subnet.blocks for subnet in subnets),
        tuple(_withhold(conflicts, subnets, pool.spec.block_size_bits)),
        tuple(list_errors(conflicts)),
    )


def _withhold(conflicts: Iterable[Conflict], subnets: Iterable[Subnet], bits: int) -> list[Span]:
    """The indices of the blocks that have addresses of the conflicts."""
    starts = list(accumulate((subnet.blocks for subnet in subnets), initial=0))
    return merge_spans(
        (starts[conflict.position] + (conflict.start >> bits), starts[conflict.position] + (conflict.end >> bits))
        for conflict in conflicts
    )


def plan_block(pool: AddressPool, used: Container[int]) -> PlannedBlock | None:
    """The free block of the lowest index, or None when `used` covers the pool.

    `used` should answer `in` quickly (a set): indices are tried from 0, so the cost grows with the blocks in
    use and not with the pool. Raises InvalidPoolError.
    """
    return plan_next(parse_layout(pool), used)


def plan_next(layout: PoolLayout, used: Container[int]) -> PlannedBlock | None:
    """`plan_block` for a layout that is already parsed."""
    index = 0
    while index < layout.size:
        if (after := layout.withheld_until(index)) is not None:
            index = after
        elif index in used:
            index += 1
        else:
            return layout.block_at(index)
    return None


def block_name(pool: PoolName, index: int) -> BlockName:
    """The name of a block: `<pool>-<index>`. Two pools never share one, as an index has no hyphen."""
    return BlockName(f"{pool}-{index}")


def parse_block_index(pool: PoolName, name: str) -> int | None:
    """The index in a name that `block_name` made for this pool; None for any other name."""
    digits = name.removeprefix(f"{pool}-")
    if not digits.isascii() or not digits.isdigit():
        return None
    index = int(digits)
    return index if block_name(pool, index) == name else None
