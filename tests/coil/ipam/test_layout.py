"""Carving pools into blocks: examples. What holds for every pool is in `test_layout_property`."""

from ipaddress import IPv4Network, IPv6Network

import pytest

from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.meta import ObjectMeta
from coil.crd.names import PoolName
from coil.ipam.layout import InvalidPoolError, parse_block_index, parse_layout, plan_block

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
    with pytest.raises(InvalidPoolError, match=r"spec\.subnets\[0\]\.ipv4: '10\.2\.0\.0/33' is not a network"):
        plan_block(pool(SubnetSet(ipv4="10.2.0.0/33")), set())


def test_host_bits_count_for_nothing() -> None:
    tidy, untidy = SubnetSet(ipv4="10.2.0.0/16", ipv6="fd00::/112"), SubnetSet(ipv4="10.2.9.1/16", ipv6="fd00::7/112")
    assert parse_layout(pool(untidy)) == parse_layout(pool(tidy))


def test_a_block_of_either_family_in_one_pool() -> None:
    layout = parse_layout(pool(SubnetSet(ipv4="10.2.0.0/27"), SubnetSet(ipv6="fd00::/123")))
    blocks = [layout.block_at(index) for index in range(layout.size)]
    assert [(block.ipv4, block.ipv6) for block in blocks] == [
        (IPv4Network("10.2.0.0/27"), None),
        (None, IPv6Network("fd00::/123")),
    ]


def test_addresses_that_no_pod_can_have_are_withheld_and_indices_stay() -> None:
    everything = pool(SubnetSet(ipv4="0.0.0.0/0"))
    layout = parse_layout(everything)
    assert layout.size == 2**27
    planned = plan_block(everything, set())
    assert planned is not None
    assert (planned.index, planned.ipv4) == (2**19, IPv4Network("1.0.0.0/27"))
    link_local = (169 * 256 + 254) * 2**11
    assert layout.withheld == (
        (0, 2**19 - 1),
        (127 * 2**19, 128 * 2**19 - 1),
        (link_local, link_local + 2**11 - 1),
        (224 * 2**19, 240 * 2**19 - 1),
        (2**27 - 1, 2**27 - 1),
    )
    assert layout.capacity() == 2**27 - 18 * 2**19 - 2**11 - 1
    assert layout.capacity({0, 7, 2**19, 2**27 - 1}) == layout.capacity() + 3, "what exists counts"
    (told,) = layout.conflicts
    assert str(told).startswith("spec.subnets[0].ipv4: 0.0.0.0/0 has addresses that no pod can have: 0.0.0.0/8")


def test_an_entry_gives_nothing_of_an_earlier_one_or_of_another_pool() -> None:
    mine = pool(SubnetSet(ipv4="10.2.0.64/26"), SubnetSet(ipv4="10.2.0.0/24"))
    other = pool(SubnetSet(ipv4="10.2.0.200/29"), bits=3)
    other = AddressPool(metadata=ObjectMeta(name="other"), spec=other.spec)
    layout = parse_layout(mine, [other])
    # 10.2.0.64/27, 10.2.0.96/27, then 10.2.0.0/27 to 10.2.0.224/27: of those the third, the fourth and the seventh.
    assert layout.withheld == ((4, 5), (8, 8))
    assert [error.path for error in layout.conflicts] == ["spec.subnets[1].ipv4"] * 2


@pytest.mark.parametrize(
    "name", ["", "pool", "pool-", "pool-x", "pool-01", "pool--1", "pool-1-v1", "other-1", "pool-٣"]
)
def test_other_names_have_no_index(name: str) -> None:
    assert parse_block_index(NAME, name) is None
