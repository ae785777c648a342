"""Carving, for any valid pool: its blocks are its addresses, each once, and nothing that happens later moves one."""

from ipaddress import IPv4Network, IPv6Network
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coil.crd.address_pool import AddressPool, SubnetSet
from coil.crd.meta import ObjectMeta
from coil.crd.pool_validation import validate_pool, validate_pool_update
from coil.ipam.layout import (
    PlannedBlock,
    PoolLayout,
    block_name,
    parse_block_index,
    parse_layout,
    plan_block,
    plan_next,
)
from tests.coil.ipam.pool_shape import FAMILIES, MOST_BITS, NAME, changes, make_pool, pools

ANY_POOL = pools(most_bits=MOST_BITS)


def networks(block: PlannedBlock) -> list[IPv4Network | IPv6Network]:
    return [network for network in (block.ipv4, block.ipv6) if network is not None]


def all_blocks(layout: PoolLayout) -> list[PlannedBlock]:
    return [layout.block_at(index) for index in range(layout.size)]


def spans(found: list[IPv4Network | IPv6Network]) -> list[tuple[int, int]]:
    """First and last address of each network, as numbers, in their order."""
    return sorted((int(network.network_address), int(network.broadcast_address)) for network in found)


@given(pools())
def test_what_is_drawn_is_valid(pool: AddressPool) -> None:
    assert validate_pool(pool) == []


@given(pools())
def test_blocks_cover_their_pool_exactly_and_share_no_address(pool: AddressPool) -> None:
    blocks = all_blocks(parse_layout(pool))
    for family, kind in (("ipv4", IPv4Network), ("ipv6", IPv6Network)):
        whole = [kind(text) for entry in pool.spec.subnets if (text := getattr(entry, family)) is not None]
        carved = [network for block in blocks if (network := getattr(block, family)) is not None]
        assert {network.num_addresses for network in carved} <= {2**pool.spec.block_size_bits}
        # Laid end to end, the blocks of a subnet are that subnet: no gap, and nothing twice.
        edge = iter(spans(carved))
        for first, last in spans(list(whole)):
            start = first
            while start <= last:
                begin, end = next(edge)
                assert begin == start
                start = end + 1
            assert start == last + 1
        assert list(edge) == []


@given(ANY_POOL, st.data())
def test_no_two_blocks_of_a_huge_pool_share_an_address(pool: AddressPool, data: st.DataObject) -> None:
    layout = parse_layout(pool)
    indices = st.integers(0, layout.size - 1)
    one, two = layout.block_at(data.draw(indices)), layout.block_at(data.draw(indices))
    shared = any(
        left.version == right.version and left.overlaps(right) for left in networks(one) for right in networks(two)
    )
    assert shared == (one.index == two.index)


@given(ANY_POOL, st.data())
def test_an_address_of_the_pool_is_in_the_block_that_counting_finds(pool: AddressPool, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(pool.spec.subnets) - 1))
    entry, bits = pool.spec.subnets[position], pool.spec.block_size_bits
    mine = [kind(text) for kind, text in ((IPv4Network, entry.ipv4), (IPv6Network, entry.ipv6)) if text is not None]
    offset = data.draw(st.integers(0, mine[0].num_addresses - 1))
    before = 0
    for earlier in pool.spec.subnets[:position]:
        text = earlier.ipv4 or earlier.ipv6 or ""
        whole = IPv4Network(text) if earlier.ipv4 else IPv6Network(text)
        before += whole.num_addresses // 2**bits
    block = parse_layout(pool).block_at(before + offset // 2**bits)
    # The same offset in both families.
    assert [network.network_address + offset % 2**bits for network in networks(block)] == [
        network.network_address + offset for network in mine
    ]


@given(ANY_POOL, st.data())
def test_names_and_indices_are_one_to_one(pool: AddressPool, data: st.DataObject) -> None:
    layout = parse_layout(pool)
    index = data.draw(st.integers(0, layout.size - 1))
    block = layout.block_at(index)
    assert (block.index, block.name) == (index, block_name(NAME, index))
    assert parse_block_index(NAME, block.name) == index


@given(st.text(max_size=12))
def test_a_text_that_is_read_as_an_index_is_the_name_of_its_block(text: str) -> None:
    index = parse_block_index(NAME, f"{NAME}-{text}")
    assert index is None or block_name(NAME, index) == f"{NAME}-{text}"


@given(pools(), st.sets(st.integers(0, 80)))
def test_a_planned_block_is_the_first_that_is_not_used(pool: AddressPool, used: set[int]) -> None:
    planned = plan_block(pool, used)
    free = [index for index in range(parse_layout(pool).size) if index not in used]
    assert (None if planned is None else planned.index) == (free[0] if free else None)


@st.composite
def crowded(draw: st.DrawFn, bits: int) -> tuple[SubnetSet, ...]:
    """Entries of any families within 64 addresses of each, so that many overlap."""
    entries: list[SubnetSet] = []
    for _ in range(draw(st.integers(1, 4))):
        host_bits = draw(st.integers(bits, 6))
        ipv4, ipv6 = draw(st.sampled_from(FAMILIES))
        place = st.integers(0, (64 >> host_bits) - 1)
        entries.append(
            SubnetSet(
                ipv4=f"10.0.0.{draw(place) << host_bits}/{32 - host_bits}" if ipv4 else None,
                ipv6=f"fd00::{draw(place) << host_bits:x}/{128 - host_bits}" if ipv6 else None,
            )
        )
    return tuple(entries)


@given(st.integers(0, 3).flatmap(lambda bits: st.tuples(st.just(bits), crowded(bits), crowded(bits))))
def test_exactly_the_blocks_that_share_addresses_are_withheld(
    drawn: tuple[int, tuple[SubnetSet, ...], tuple[SubnetSet, ...]],
) -> None:
    bits, subnets, others = drawn
    mixed = make_pool(*subnets, bits=bits)
    other = replace(make_pool(*others, bits=bits), metadata=ObjectMeta(name="other"))
    layout = parse_layout(mixed, [other])
    shared: list[int] = []
    for block in all_blocks(layout):
        before = [*subnets[: _entry_of(layout, block.index)], *others]
        theirs = [network for entry in before for network in _networks_of(entry)]
        if any(mine.version == its.version and mine.overlaps(its) for mine in networks(block) for its in theirs):
            shared.append(block.index)
    assert [index for index in range(layout.size) if layout.withheld_until(index) is not None] == shared
    assert layout.capacity() == layout.size - len(shared)
    given_blocks = [block for block in all_blocks(layout) if layout.withheld_until(block.index) is None]
    for family in (4, 6):
        found = spans([network for block in given_blocks for network in networks(block) if network.version == family])
        assert all(left[1] < right[0] for left, right in pairwise(found)), "no address twice"
    planned = plan_next(layout, set())
    assert planned == (given_blocks[0] if given_blocks else None)


def _networks_of(entry: SubnetSet) -> list[IPv4Network | IPv6Network]:
    return [kind(text) for kind, text in ((IPv4Network, entry.ipv4), (IPv6Network, entry.ipv6)) if text is not None]


def _entry_of(layout: PoolLayout, index: int) -> int:
    ends = list(accumulate(subnet.blocks for subnet in layout.subnets))
    return next(position for position, end in enumerate(ends) if index < end)


@given(pools(), st.data())
def test_a_change_that_is_allowed_moves_no_block(pool: AddressPool, data: st.DataObject) -> None:
    changed = data.draw(changes(pool))
    if validate_pool(changed) or validate_pool_update(pool, changed):
        return
    before, after = parse_layout(pool), parse_layout(changed)
    assert after.size >= before.size
    assert [after.block_at(block.index) for block in all_blocks(before)] == all_blocks(before)


@given(pools(), st.data())
def test_a_change_that_would_move_or_take_a_block_is_refused(pool: AddressPool, data: st.DataObject) -> None:
    changed = data.draw(changes(pool))
    if validate_pool(changed):
        return
    before, after = parse_layout(pool), parse_layout(changed)
    kept = after.size >= before.size and all(after.block_at(block.index) == block for block in all_blocks(before))
    if not kept:
        assert validate_pool_update(pool, changed) != []


@given(pools(), pools())
def test_growing_at_the_end_is_no_forbidden_change(pool: AddressPool, other: AddressPool) -> None:
    bits = pool.spec.block_size_bits
    grown = type(pool)(
        metadata=pool.metadata,
        spec=type(pool.spec)(block_size_bits=bits, subnets=(*pool.spec.subnets, *other.spec.subnets)),
    )
    assert validate_pool_update(pool, grown) == []
