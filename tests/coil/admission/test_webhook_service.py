"""The flags of an admission server."""

import pytest

from coil.admission.webhook_service import parse_hosts


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
