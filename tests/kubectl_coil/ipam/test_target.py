"""What `kubectl coil ipam show` is asked about, as it is written."""

from ipaddress import ip_address

import pytest

from kubectl_coil.ipam.target import (
    AddressTarget,
    NodeTarget,
    PodTarget,
    PoolTarget,
    Target,
    TargetError,
    parse_target,
)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.7", AddressTarget(ip_address("10.0.0.7"))),
        ("fd00::0007", AddressTarget(ip_address("fd00::7"))),
        ("pool/default", PoolTarget("default")),
        ("addresspools/default", PoolTarget("default")),
        ("no/worker-1.example.com", NodeTarget("worker-1.example.com")),
        ("pod/web-0", PodTarget("shop", "web-0")),
        ("po/bank/web-0", PodTarget("bank", "web-0")),
    ],
)
def test_forms(text: str, target: Target) -> None:
    assert parse_target(text, namespace="shop") == target


@pytest.mark.parametrize("target", ["10.0.0.7", "pool/default", "node/n1", "pod/bank/web-0"])
def test_as_text_it_is_what_was_asked(target: str) -> None:
    assert str(parse_target(target, namespace="shop")) == target


@pytest.mark.parametrize(
    "text",
    ["web-0", "10.0.0.256", "10.0.0.0/24", "pool/", "pool/../nodes", "pod/a/b/c", "pod/", "service/x", "/", "node/A"],
)
def test_other_words_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(TargetError, match="pod/NAMESPACE/NAME"):
        parse_target(text, namespace="shop")
