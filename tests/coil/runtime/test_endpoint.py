"""Addresses to listen on, in the spelling of Go; without a host, the loopback."""

import pytest

from coil.runtime.endpoint import Endpoint, parse_endpoint, parse_open_endpoint


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":9386", "127.0.0.1", 9386),
        ("0.0.0.0:9386", "0.0.0.0", 9386),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::]:9386", "::", 9386),
        ("[fd00::1]:65535", "fd00::1", 65535),
        ("localhost:80", "localhost", 80),
    ],
)
def test_accepted(text: str, host: str, port: int) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint == Endpoint(host, port)
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9386", 'an address such as ":9386"'),
        ("", 'an address such as ":9386"'),
        (":", "a port from 0 to 65535"),
        (":http", "a port from 0 to 65535"),
        (":65536", "a port from 0 to 65535"),
        (":-1", "a port from 0 to 65535"),
        (":٩", "a port from 0 to 65535"),
        ("::1:9386", "an IPv6 address in brackets"),
        ("[127.0.0.1]:9386", "an IPv6 address between the brackets"),
        ("[]:9386", "an IPv6 address between the brackets"),
        ("http//x:80", "an address or a host name"),
    ],
)
def test_refused_saying_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_endpoint(text)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        (":9443", Endpoint("", 9443)),
        ("0.0.0.0:9443", Endpoint("0.0.0.0", 9443)),
        ("[::1]:0", Endpoint("::1", 0)),
    ],
)
def test_one_that_is_open_to_all_without_a_host(text: str, endpoint: Endpoint) -> None:
    assert parse_open_endpoint(text) == endpoint
