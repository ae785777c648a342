"""Carving, for any valid pool: its blocks are its addresses, each once, and nothing that happens later moves one."""

from ipaddress import IPv4Network, IPv6Network

from hypothesis import given
from hypothesis import strategies as st

from coil.crd.address_pool import AddressPool
from coil.crd.pool_validation import validate_pool, validate_pool_update
from coil.ipam.layout import PlannedBlock, PoolLayout, block_name, parse_block_index, parse_layout, plan_block
from tests.coil.ipam.pool_shape import MOST_BITS, NAME, changes, pools

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
