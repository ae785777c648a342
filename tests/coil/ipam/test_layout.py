"""Carving pools into blocks."""

from ipaddress import IPv4Network, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.meta import ObjectMeta
from coil.crd.names import PoolName
from coil.ipam.layout import InvalidPoolError, block_name, parse_block_index, parse_layout, plan_block

NAME = PoolName("pool")


def pool(*subnets: SubnetSet, bits: int = 5) -> AddressPool:
    return AddressPool(metadata=ObjectMeta(name=NAME), spec=AddressPoolSpec(block_size_bits=bits, subnets=subnets))


DOCUMENTED = pool(SubnetSet(ipv4="10.2.0.0/16", ipv6="fd01:203:405:607::/112"))
TWO_SUBNETS = pool(SubnetSet(ipv4="10.2.0.0/26"), SubnetSet(ipv4="192.168.7.0/25"))


def test_the_block_of_the_design_document() -> None:
    block = parse_layout(DOCUMENTED).block_at(16)
    assert block.name == "pool-16"
    assert block.ipv4 == IPv4Network("10.2.2.0/27")
    assert block.ipv6 == IPv6Network("fd01:203:405:607::200/123")


def test_subnets_are_walked_in_order() -> None:
    layout = parse_layout(TWO_SUBNETS)
    assert layout.size == 6
    assert [str(layout.block_at(index).ipv4) for index in range(6)] == [
        "10.2.0.0/27",
        "10.2.0.32/27",
        "192.168.7.0/27",
        "192.168.7.32/27",
        "192.168.7.64/27",
        "192.168.7.96/27",
    ]


@pytest.mark.parametrize("index", [-1, 6, 2**70])
def test_there_is_no_block_outside_the_pool(index: int) -> None:
    with pytest.raises(IndexError):
        parse_layout(TWO_SUBNETS).block_at(index)


def test_blocks_of_one_address() -> None:
    layout = parse_layout(pool(SubnetSet(ipv4="203.0.113.8/31"), bits=0))
    assert [str(layout.block_at(index).ipv4) for index in range(layout.size)] == ["203.0.113.8/32", "203.0.113.9/32"]


def test_an_enormous_pool_is_no_trouble() -> None:
    enormous = pool(SubnetSet(ipv6="fd00::/64"))
    layout = parse_layout(enormous)
    assert layout.size == 2**59
    assert layout.block_at(2**59 - 1).ipv6 == IPv6Network("fd00::ffff:ffff:ffff:ffe0/123")
    planned = plan_block(enormous, {0, 1, 2**58})
    assert planned is not None
    assert planned.index == 2


@pytest.mark.parametrize(
    ("used", "index"),
    [
        (set(), 0),
        ({0}, 1),
        ({1}, 0),
        ({0, 1, 3}, 2),
        ({0, 1, 2, 3, 4}, 5),
        (set(range(6)), None),
        (set(range(9)), None),
    ],
)
def test_the_lowest_clear_index_is_next(used: set[int], index: int | None) -> None:
    planned = plan_block(TWO_SUBNETS, used)
    assert (None if planned is None else planned.index) == index


def test_an_invalid_pool_gives_nothing_and_says_why() -> None:
    with pytest.raises(InvalidPoolError, match=r"spec\.subnets\[0\]\.ipv4: '10\.2\.0\.1/16' has host bits set"):
        plan_block(pool(SubnetSet(ipv4="10.2.0.1/16")), set())


@given(st.integers(min_value=0))
def test_names_and_indices_belong_together(index: int) -> None:
    assert parse_block_index(NAME, block_name(NAME, index)) == index


@pytest.mark.parametrize(
    "name", ["", "pool", "pool-", "pool-x", "pool-01", "pool--1", "pool-1-v1", "other-1", "pool-٣"]
)
def test_other_names_have_no_index(name: str) -> None:
    assert parse_block_index(NAME, name) is None


@st.composite
def pools(draw: st.DrawFn) -> AddressPool:
    """Valid pools of a few small subnets, of either family or both, apart from each other."""
    bits = draw(st.integers(0, 6))
    ipv4, ipv6 = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    entries = []
    for number, extra in enumerate(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))):
        host_bits = bits + extra
        entries.append(
            SubnetSet(
                ipv4=f"10.{number}.0.0/{32 - host_bits}" if ipv4 else None,
                ipv6=f"fd00:{number}::/{128 - host_bits}" if ipv6 else None,
            )
        )
    return pool(*entries, bits=bits)


@given(pools())
def test_blocks_tile_their_pool(some: AddressPool) -> None:
    layout = parse_layout(some)
    blocks = [layout.block_at(index) for index in range(layout.size)]
    bits = some.spec.block_size_bits
    for family in ("ipv4", "ipv6"):
        carved = [network for block in blocks if (network := getattr(block, family)) is not None]
        whole = [getattr(entry, family) for entry in some.spec.subnets if getattr(entry, family) is not None]
        assert {network.num_addresses for network in carved} <= {2**bits}
        starts = sorted(int(network.network_address) for network in carved)
        assert len(set(starts)) == len(starts), "no two blocks share an address"
        assert len(carved) == (layout.size if whole else 0)
        for network in carved:
            assert any(network.subnet_of(type(network)(entry)) for entry in whole)


@given(pools(), st.data())
def test_both_families_of_a_block_have_the_same_place(some: AddressPool, data: st.DataObject) -> None:
    layout = parse_layout(some)
    block = layout.block_at(data.draw(st.integers(0, layout.size - 1)))
    if block.ipv4 is None or block.ipv6 is None:
        return
    for entry in some.spec.subnets:
        assert entry.ipv4 is not None
        assert entry.ipv6 is not None
        ipv4, ipv6 = IPv4Network(entry.ipv4), IPv6Network(entry.ipv6)
        if block.ipv4.subnet_of(ipv4):
            place4 = int(block.ipv4.network_address) - int(ipv4.network_address)
            place6 = int(block.ipv6.network_address) - int(ipv6.network_address)
            assert place4 == place6


@given(pools(), st.sets(st.integers(0, 80)))
def test_a_planned_block_is_the_first_that_is_not_used(some: AddressPool, used: set[int]) -> None:
    size = parse_layout(some).size
    planned = plan_block(some, used)
    free = [index for index in range(size) if index not in used]
    assert (None if planned is None else planned.index) == (free[0] if free else None)


@given(pools())
def test_growing_at_the_end_moves_no_block(some: AddressPool) -> None:
    entry = some.spec.subnets[0]
    host_bits = 6 + some.spec.block_size_bits
    more = SubnetSet(
        ipv4=f"172.16.0.0/{32 - host_bits}" if entry.ipv4 else None,
        ipv6=f"fdff::/{128 - host_bits}" if entry.ipv6 else None,
    )
    before = parse_layout(some)
    after = parse_layout(pool(*some.spec.subnets, more, bits=some.spec.block_size_bits))
    assert after.size == before.size + 64
    assert all(after.block_at(index) == before.block_at(index) for index in range(before.size))
