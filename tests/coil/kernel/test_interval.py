"""Ranges of addresses against sets of numbers."""

from ipaddress import ip_network
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family
from coil.kernel.interval import Span, intersect, parse_span, span_of, span_word, spans_of, subtract, touching, unite

_spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))), max_size=6)


def numbers(spans: list[Span]) -> set[int]:
    return {number for first, last in spans for number in range(first, last + 1)}


@given(_spans, _spans)
def test_as_sets(some: list[Span], others: list[Span]) -> None:
    here, there = unite(some), unite(others)
    assert numbers(here) == numbers(some)
    assert numbers(subtract(here, there)) == numbers(some) - numbers(others)
    assert numbers(intersect(here, there)) == numbers(some) & numbers(others)
    assert touching(here, there) == [span for span in here if numbers([span]) & numbers(others)]
    for spans, distance in ((here, 1), (subtract(here, there), 1), (intersect(here, there), 0)):
        assert all(first > last + distance for (_, last), (first, _) in pairwise(spans))


@pytest.mark.parametrize(
    ("span", "family", "word"),
    [
        ((0, 2**32 - 1), Family.IPV4, "0.0.0.0/0"),
        ((0x0A000000, 0x0A0000FF), Family.IPV4, "10.0.0.0/24"),
        ((0x0A000001, 0x0A000002), Family.IPV4, "10.0.0.1-10.0.0.2"),
        ((0x0A000001, 0x0A000001), Family.IPV4, "10.0.0.1"),
        (span_of(ip_network("fd00::/127")), Family.IPV6, "fd00::/127"),
    ],
)
def test_words(span: Span, family: Family, word: str) -> None:
    assert span_word(span, family) == word
    assert parse_span(word) == span


def test_families_are_kept_apart() -> None:
    networks = [ip_network("10.0.0.0/9"), ip_network("fd00::/8"), ip_network("10.128.0.0/9")]
    assert spans_of(networks, Family.IPV4) == [span_of(ip_network("10.0.0.0/8"))]
