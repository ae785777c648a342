"""Searching: words, addresses however they are written, networks."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.page.query import LENGTH, host_network, parse_networks, parse_query


@pytest.mark.parametrize(
    ("query", "texts", "expected"),
    [
        ("web", ["apps/web-1"], True),
        ("WEB", ["apps/web-1"], True),
        ("web apps", ["apps/web-1", "x"], True),
        ("web lab", ["apps/web-1"], False),
        ("apps/web", ["apps/web-1"], True),
        ("", ["anything"], False),
        ("   ", ["anything"], False),
    ],
)
def test_words(query: str, texts: list[str], expected: bool) -> None:
    assert parse_query(query).matches(texts) is expected


@pytest.mark.parametrize(
    ("query", "address", "expected"),
    [
        ("10.1.0.1", "10.1.0.1", True),
        ("10.1.0.1", "10.1.0.10", False),
        ("fd00:0:0::0007", "fd00::7", True),
        ("FD00::7", "fd00::7", True),
        ("10.1.0.0/30", "10.1.0.3", True),
        ("10.1.0.1/30", "10.1.0.3", True),
        ("10.1.0.0/30", "10.1.0.4", False),
        ("10.1.0.0/30", "fd00::1", False),
    ],
)
def test_addresses_and_networks(query: str, address: str, expected: bool) -> None:
    assert parse_query(query).matches([], [host_network(ip_address(address))]) is expected


def test_all_parts_must_be_found() -> None:
    query = parse_query("web 10.1.0.1")
    here, there = host_network(ip_address("10.1.0.1")), host_network(ip_address("10.1.0.2"))
    assert query.matches(["apps/web"], [here])
    assert not query.matches(["apps/web"], [there])
    assert not query.matches(["apps/db"], [here])


def test_an_address_that_is_being_typed_is_a_word() -> None:
    assert parse_query("10.1.").words == ("10.1.",)
    assert parse_query("10.1.").matches(["10.1.0.7"])


def test_one_address() -> None:
    assert parse_query("10.1.0.1").is_one_address
    assert not parse_query("10.1.0.0/30").is_one_address
    assert not parse_query("10.1.0.1 web").is_one_address


@given(st.text(max_size=400))
def test_any_text_is_a_query(text: str) -> None:
    query = parse_query(text)
    assert len(query.text) <= LENGTH
    assert bool(query) == bool(query.text.split())


def test_malformed_networks_cover_nothing() -> None:
    assert parse_networks("10.1.0.0/27", "nonsense") == [ip_network("10.1.0.0/27")]
    assert parse_networks(None, "") == []
