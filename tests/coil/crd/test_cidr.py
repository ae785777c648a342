"""Networks in manifests."""

from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.cidr import (
    Span,
    Version,
    count_addresses,
    merge_spans,
    parse_address,
    parse_ipv4_cidr,
    parse_ipv6_cidr,
    parse_span,
    parse_spans,
)


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_every_ipv4_network_is_read_back(address: object, prefix: int) -> None:
    network = IPv4Network(f"{address}/{prefix}", strict=False)
    assert parse_ipv4_cidr(str(network)) == network


@given(st.ip_addresses(v=6), st.integers(0, 128))
def test_every_ipv6_network_is_read_back(address: object, prefix: int) -> None:
    network = IPv6Network(f"{address}/{prefix}", strict=False)
    assert parse_ipv6_cidr(str(network)) == network
    assert parse_ipv6_cidr(network.exploded) == network


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "CIDR notation"),
        ("10.0.0.0", "CIDR notation"),
        ("10.0.0.0/", "CIDR notation"),
        ("/8", "CIDR notation"),
        ("10.0.0.0/255.0.0.0", "CIDR notation"),
        ("10.0.0.0/33", "CIDR notation"),
        ("10.0.0.0/08", "CIDR notation"),
        ("10.0.0.0/+8", "CIDR notation"),
        ("10.0.0.0/8 ", "CIDR notation"),
        ("10.0.0.0/8\n", "CIDR notation"),
        ("10.0.0/8", "CIDR notation"),
        ("10.0.0.010/32", "CIDR notation"),
        ("10.0.0.0/٨", "CIDR notation"),
        ("fe80::%eth0/64", "CIDR notation"),
        ("10.0.0.1/8", "host bits set; the network is 10.0.0.0/8"),
        ("fd00::/64", "is an IPv6 network, not IPv4"),
    ],
)
def test_what_is_no_ipv4_network(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_ipv4_cidr(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fd00::/129", "CIDR notation"),
        ("fd00:::/64", "CIDR notation"),
        ("fd00::1/64", "host bits set; the network is fd00::/64"),
        ("10.0.0.0/8", "is an IPv4 network, not IPv6"),
    ],
)
def test_what_is_no_ipv6_network(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_ipv6_cidr(text)


@given(st.text(alphabet="0123456789abcdef:./% \n", max_size=30))
def test_any_text_is_a_network_of_one_family_or_a_value_error(text: str) -> None:
    readings = []
    for parse in (parse_ipv4_cidr, parse_ipv6_cidr):
        with suppress(ValueError):
            readings.append(parse(text))
    assert len(readings) <= 1


MOST = {4: 2**32 - 1, 6: 2**128 - 1}


def v4(text: str) -> int:
    return int(IPv4Address(text))


def v6(text: str) -> int:
    return int(IPv6Address(text))


@pytest.mark.parametrize(
    ("text", "version", "span"),
    [
        ("10.6.0.1", 4, (v4("10.6.0.1"), v4("10.6.0.1"))),
        ("10.6.0.1-10.6.0.10", 4, (v4("10.6.0.1"), v4("10.6.0.10"))),
        ("10.6.0.1-10.6.0.1", 4, (v4("10.6.0.1"), v4("10.6.0.1"))),
        ("10.6.0.0/26", 4, (v4("10.6.0.0"), v4("10.6.0.63"))),
        # The proposal's own example has host bits.
        ("10.6.0.1/26", 4, (v4("10.6.0.0"), v4("10.6.0.63"))),
        ("0.0.0.0/0", 4, (0, MOST[4])),
        ("fd00::1", 6, (v6("fd00::1"), v6("fd00::1"))),
        ("fd00::1-fd00::a", 6, (v6("fd00::1"), v6("fd00::a"))),
        ("fd00::/64", 6, (v6("fd00::"), v6("fd00::ffff:ffff:ffff:ffff"))),
        ("FD00::A", 6, (v6("fd00::a"), v6("fd00::a"))),
    ],
)
def test_what_a_text_means(text: str, version: Version, span: Span) -> None:
    assert parse_span(text, version) == span


@pytest.mark.parametrize(
    ("text", "version", "message"),
    [
        ("", 4, "'' is not an IP address; write 10.6.0.1, 10.6.0.1-10.6.0.10 or 10.6.0.0/26"),
        ("10.6.0.256", 4, "'10.6.0.256' is not an IP address; write"),
        ("10.06.0.1", 4, "'10.06.0.1' is not an IP address; write"),
        (" 10.6.0.1", 4, "' 10.6.0.1' is not an IP address; write"),
        ("10.6.0.1-10", 4, "'10' is not an IP address; write"),
        ("10.6.0.1-", 4, "'' is not an IP address; write"),
        ("10.6.0.1-10.6.0.2-10.6.0.3", 4, "'10.6.0.2-10.6.0.3' is not an IP address; write"),
        ("10.6.0.0/24-10.6.1.0/24", 4, "'10.6.0.0/24' is not an IP address; write"),
        ("10.6.0.0/33", 4, "'10.6.0.0/33' is not a network in CIDR notation; write"),
        ("10.6.0.0/255.255.255.0", 4, "'10.6.0.0/255.255.255.0' is not a network in CIDR notation; write"),
        ("10.6.0.10-10.6.0.1", 4, "'10.6.0.10-10.6.0.1' ends before it begins; write 10.6.0.1-10.6.0.10"),
        ("fd00::1", 4, "'fd00::1' is an IPv6 address, not IPv4; write 10.6.0.1"),
        ("10.6.0.1-fd00::1", 4, "'fd00::1' is an IPv6 address, not IPv4; write 10.6.0.1"),
        ("10.6.0.0/24", 6, "'10.6.0.0/24' is an IPv4 network, not IPv6; write fd00::1"),
        ("fe80::1%eth0", 6, "'fe80::1%eth0' is not an IP address; write fd00::1"),
        ("fd00:1/126", 6, "'fd00:1/126' is not a network in CIDR notation; write fd00::1"),
    ],
)
def test_what_is_said_of_nonsense(text: str, version: Version, message: str) -> None:
    with pytest.raises(ValueError, match="write") as error:
        parse_span(text, version)
    assert str(error.value).startswith(message)


def test_empty_texts_of_a_list_mean_nothing() -> None:
    assert parse_spans(["", "10.6.0.1", ""], 4) == [(v4("10.6.0.1"), v4("10.6.0.1"))]
    with pytest.raises(ValueError, match="nonsense"):
        parse_spans(["10.6.0.1", "nonsense"], 4)


def test_an_address_says_its_family() -> None:
    assert parse_address("10.6.0.1", 4) == IPv4Address("10.6.0.1")
    with pytest.raises(ValueError, match="IPv4 address, not IPv6"):
        parse_address("10.6.0.1", 6)


NUMBER = st.integers(0, 40)
SPANS = st.lists(st.tuples(NUMBER, NUMBER).map(lambda pair: (min(pair), max(pair))), max_size=8)


@given(SPANS)
def test_merged_spans_are_the_same_addresses_and_as_few_as_can_be(spans: list[Span]) -> None:
    merged = merge_spans(spans)
    meant = {number for first, last in spans for number in range(first, last + 1)}
    assert [number for first, last in merged for number in range(first, last + 1)] == sorted(meant)
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(merged))
    assert count_addresses(spans) == len(meant)


@given(st.sampled_from((4, 6)), st.data())
def test_a_range_that_is_written_is_read_again(version: Version, data: st.DataObject) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, MOST[version]), min_size=2, max_size=2)))
    kind = IPv4Address if version == 4 else IPv6Address
    assert parse_span(f"{kind(ends[0])}-{kind(ends[1])}", version) == tuple(ends)
