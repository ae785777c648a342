"""Networks in manifests."""

from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.cidr import parse_ipv4_cidr, parse_ipv6_cidr


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
