"""Ranges as numbers: places and addresses are inverse, and size costs nothing."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.eip.address_range import RangeError, parse_ranges
from coil.kernel.family import Family

SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=6)
BASE = int(IPv4Address("10.0.0.0"))


def texts(spans: list[tuple[int, int]]) -> list[str]:
    return [f"{IPv4Address(BASE + first)}-{IPv4Address(BASE + first + more)}" for first, more in spans]


@given(SPANS)
def test_every_address_has_one_place_in_order(spans: list[tuple[int, int]]) -> None:
    ranges = parse_ranges(texts(spans), Family.IPV4)
    meant = sorted({BASE + first + step for first, more in spans for step in range(more + 1)})
    assert ranges.size == len(meant)
    assert [int(ranges.nth(index)) for index in range(ranges.size)] == meant
    assert [ranges.index(IPv4Address(number)) for number in meant] == list(range(len(meant)))
    for number in range(BASE - 1, BASE + 345):
        assert (IPv4Address(number) in ranges) == (number in meant)


@given(SPANS, SPANS)
def test_overlap_is_an_address_in_both(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    left, right = parse_ranges(texts(one), Family.IPV4), parse_ranges(texts(other), Family.IPV4)
    shared = {left.nth(index) for index in range(left.size)} & {right.nth(index) for index in range(right.size)}
    assert left.overlaps(right) == right.overlaps(left) == bool(shared)


def test_a_huge_range_is_two_numbers() -> None:
    ranges = parse_ranges(["2001:db8::/64", "2001:db8:0:2::/64"], Family.IPV6)
    assert ranges.size == 2**65
    assert ranges.nth(2**64) == IPv6Address("2001:db8:0:2::")
    assert ranges.index(IPv6Address("2001:db8:0:2::")) == 2**64
    assert len(ranges.spans) == 2
    assert parse_ranges(["0.0.0.0/0"], Family.IPV4).size == 2**32


@pytest.mark.parametrize(
    ("spelled", "size"), [("10.6.0.1", 1), ("10.6.0.1-10.6.0.10", 10), ("10.6.0.1/26", 64), ("", 0)]
)
def test_spellings(spelled: str, size: int) -> None:
    assert parse_ranges([spelled], Family.IPV4).size == size


@pytest.mark.parametrize("spelled", ["10.6.0.10-10.6.0.1", "fd00::1", "10.6.0.256", "10.6.0.0/33", "x", "10.6.0.1-"])
def test_nonsense_is_named(spelled: str) -> None:
    with pytest.raises(RangeError, match=spelled.split("-", maxsplit=1)[0].replace(".", r"\.")):
        parse_ranges(["10.6.0.1", spelled], Family.IPV4)


@pytest.mark.parametrize("index", [-1, 4])
def test_there_is_no_address_outside(index: int) -> None:
    with pytest.raises(IndexError):
        parse_ranges(["10.6.0.0/30"], Family.IPV4).nth(index)


@pytest.mark.parametrize("text", ["10.6.0.4", "::a06:1"])
def test_what_is_not_in_it_has_no_place(text: str) -> None:
    with pytest.raises(ValueError, match="not in the ranges"):
        parse_ranges(["10.6.0.0/30"], Family.IPV4).index(ip_address(text))
