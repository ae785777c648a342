"""The flags of an admission server."""

import pytest

from coil.admission.settings import parse_hosts, parse_open_endpoint
from coil.runtime.endpoint import Endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        (":9443", Endpoint("", 9443)),
        ("0.0.0.0:9443", Endpoint("0.0.0.0", 9443)),
        ("[::1]:0", Endpoint("::1", 0)),
    ],
)
def test_without_a_host_it_is_open_to_all(text: str, endpoint: Endpoint) -> None:
    assert parse_open_endpoint(text) == endpoint


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("192.0.2.1", ("192.0.2.1",)),
        ("webhook.example.com, FD00:0::1,192.0.2.1,192.0.2.1", ("webhook.example.com", "fd00::1", "192.0.2.1")),
    ],
)
def test_hosts(text: str, hosts: tuple[str, ...]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize("text", [",", "a b", "https://x", "192.0.2.0/24", "x" * 300])
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(ValueError, match="host names or addresses"):
        parse_hosts(text)
