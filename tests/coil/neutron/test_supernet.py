"""Which part of the supernet a namespace gets."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.neutron.supernet import Supernet, SupernetExhaustedError, overlap

SMALL = Supernet(ip_network("10.0.0.0/8"), 11)


def test_the_first_free_part_is_chosen() -> None:
    assert SMALL.choose([]) == ip_network("10.0.0.0/11")
    assert SMALL.choose([ip_network("10.0.0.0/11")]) == ip_network("10.32.0.0/11")
    assert SMALL.choose([ip_network("10.32.0.0/11")]) == ip_network("10.0.0.0/11")


def test_whatever_overlaps_a_part_takes_it() -> None:
    taken = [
        ip_network("10.31.255.0/24"),
        ip_network("10.32.0.0/11"),
        ip_network("10.64.0.0/10"),
        ip_network("fd00::/16"),
    ]
    assert SMALL.choose(taken) == ip_network("10.128.0.0/11")
    with pytest.raises(SupernetExhaustedError, match="all 8 parts"):
        SMALL.choose([ip_network("0.0.0.0/0")])


def test_a_huge_supernet_takes_no_longer() -> None:
    supernet = Supernet(ip_network("fd00::/16"), 64)
    assert supernet.choose([ip_network("fd00::/64"), ip_network("fd00:0:0:1::/64")]) == ip_network("fd00:0:0:2::/64")


@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 255)))
def test_a_chosen_part_overlaps_nothing(parts: set[int], smaller: set[int]) -> None:
    taken = [ip_network(f"10.{part * 32}.0.0/11") for part in parts] + [
        ip_network(f"10.{each}.7.0/24") for each in smaller
    ]
    free = [part for part in range(8) if part not in parts and part not in {each // 32 for each in smaller}]
    if not free:
        with pytest.raises(SupernetExhaustedError):
            SMALL.choose(taken)
        return
    assert SMALL.choose(taken) == ip_network(f"10.{min(free) * 32}.0.0/11")


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(6, 24)), max_size=12))
def test_the_parts_that_are_taken_are_counted(prefixes: list[tuple[int, int]]) -> None:
    taken = [ip_network((f"10.{each}.0.0", length), strict=False) for each, length in prefixes]
    parts = [ip_network(f"10.{part * 32}.0.0/11") for part in range(8)]
    assert SMALL.count_taken(taken) == sum(any(part.overlaps(each) for each in taken) for part in parts)
    assert SMALL.count_taken([ip_network("fd00::/8"), ip_network("192.168.0.0/16")]) == 0


@pytest.mark.parametrize("length", [7, 31, 32])
def test_parts_that_make_no_sense_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="no part"):
        Supernet(ip_network("10.0.0.0/8"), length)


def test_an_overlap_is_named() -> None:
    one, other = ip_network("10.0.0.0/8"), ip_network("10.1.0.0/16")
    assert overlap([one, ip_network("fd00::/16")], [ip_network("192.168.0.0/16"), other]) == (one, other)
    assert overlap([one], [ip_network("11.0.0.0/8")]) is None
