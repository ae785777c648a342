"""The rules that a gateway, and a policy, keeps by itself."""

from typing import Any

import pytest

from coil.crd.eip_validation import validate_gateway, validate_policy, validate_policy_update
from coil.crd.validation import FieldError, select_new
from tests.coil.crd.eip_object import PODS, gateway, policy

RANGES = "spec.ranges"
SELECTOR = "spec.nodeSelector.selector"
TWICE = "has addresses that an earlier entry has; each is to be there once"
APPLIED = "spec.appliedTo"


def said(errors: list[FieldError]) -> list[str]:
    return [str(error) for error in errors]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"ranges": {"policy": "Random", "ipv4": [""], "ipv6": [""]}},
        {"ranges": {"ipv4": ["10.6.0.1", "10.6.0.3-10.6.0.5", "10.6.1.1/26"]}},
        {"ranges": {"ipv6": ["fd00::/64"]}},
        {"ranges": {"ipv4": ["10.6.0.1-10.6.0.4"], "ipv6": ["fd00::1", "fd00::10-fd00::12"]}},
        {"nodeSelector": {"selector": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}},
        {"allowedNamespaces": {}},
        {"ippools": {"ipv4": ["10.6.0.1-10.6.0.4"], "ipv4DefaultEIP": "10.6.0.4", "ipv6": [""], "ipv6DefaultEIP": ""}},
        {"ippools": {"ipv6": ["fd00::1"]}, "ranges": {"ipv4": ["10.6.0.1"]}},
    ],
)
def test_a_good_gateway(spec: dict[str, Any]) -> None:
    assert validate_gateway(gateway(**spec)) == []


@pytest.mark.parametrize(
    ("spec", "errors"),
    [
        (
            {"nodeSelector": {"selector": {}}},
            [f"{SELECTOR}: must not be empty: it would have every node carry addresses"],
        ),
        (
            {"nodeSelector": {"selector": {"matchLabels": {"a b": "c"}}}},
            [f"{SELECTOR}.matchLabels: the key 'a b' must"],
        ),
        (
            {"nodeSelector": {"selector": {"matchExpressions": [{"key": "a", "operator": "Is", "values": ["b"]}]}}},
            [f"{SELECTOR}.matchExpressions[0].operator: 'Is' must be one of In, NotIn, Exists, DoesNotExist"],
        ),
        (
            {"nodeSelector": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
            [f"{SELECTOR}.matchExpressions[0].values: In and NotIn need values, Exists and DoesNotExist have none"],
        ),
        (
            {"allowedNamespaces": {"matchExpressions": [{"key": "a/b/c", "operator": "Exists"}]}},
            ["spec.allowedNamespaces.matchExpressions[0]: the key 'a/b/c' must"],
        ),
        (
            {"ippools": {"ipv4": ["10.6.0.1"], "ipv4DefaultEIP": "10.6.0.2", "ipv6DefaultEIP": "fd00::x"}},
            [
                "spec.ippools.ipv4DefaultEIP: '10.6.0.2' is not an address of the gateway",
                "spec.ippools.ipv6DefaultEIP: ",
            ],
        ),
        (
            {"ippools": {"ipv4": ["10.6.0.1", "nonsense"]}, "ranges": {"ipv4": ["10.6.0.1"]}},
            [f"spec.ippools.ipv4[0]: '10.6.0.1' {TWICE}", "spec.ippools.ipv4[1]: 'nonsense'"],
        ),
        (
            {"ippools": {"ipv4": ["10.6.0.1", "10.6.0.2"], "ipv6": ["fd00::1"]}},
            ["spec.ippools: must have equally many addresses of both families, not 2 of IPv4 and 1 of IPv6"],
        ),
        ({"ranges": {"limit": 0}}, [f"{RANGES}.limit: must be at least 1"]),
        (
            {"nodeSelector": {"selector": {"matchLabels": {"a": "b"}}, "limit": -1}},
            ["spec.nodeSelector.limit: must be at least 1"],
        ),
        (
            {"ranges": {"ipv4": ["10.6.0.1", "nonsense"], "ipv6": ["fd00::1"]}},
            [f"{RANGES}.ipv4[1]: 'nonsense' is not an IP address; write 10.6.0.1"],
        ),
        (
            {"ranges": {"ipv4": ["10.6.0.1-10.6.0.9", "10.6.0.9"]}},
            [f"{RANGES}.ipv4[1]: '10.6.0.9' {TWICE}"],
        ),
        (
            {"ranges": {"ipv4": ["10.6.0.0/30"], "ipv6": ["fd00::/64"]}},
            [f"{RANGES}: must have equally many addresses of both families, not 4 of IPv4 and {2**64} of IPv6"],
        ),
        (
            {"ranges": {"ipv4": ["127.0.0.1"]}},
            [f"{RANGES}.ipv4[0]: '127.0.0.1' has addresses that no node can have: 127.0.0.0/8 (loopback)"],
        ),
        (
            {"ranges": {"ipv4": ["10.0.0.0-255.255.255.255"]}},
            [f"{RANGES}.ipv4[0]: '10.0.0.0-255.255.255.255' has addresses that no node can have: 127.0.0.0/8"],
        ),
        (
            {"ranges": {"ipv6": ["fe80::1", "ff02::1"]}},
            [
                f"{RANGES}.ipv6[0]: 'fe80::1' has addresses that no node can have: fe80::/10 (link-local)",
                f"{RANGES}.ipv6[1]: 'ff02::1' has addresses that no node can have: ff00::/8 (multicast)",
            ],
        ),
    ],
)
def test_a_bad_gateway(spec: dict[str, Any], errors: list[str]) -> None:
    found = said(validate_gateway(gateway(**spec)))
    assert len(found) == len(errors)
    for message, begins in zip(found, errors, strict=True):
        assert message.startswith(begins)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"egressIP": {"ipv4": "", "ipv6": "", "useNodeIP": False}},
        {"egressIP": {"ipv4": "10.6.1.21", "ipv6": "fd00::1"}},
        {"egressIP": {"useNodeIP": True}},
        {"appliedTo": {"podSelector": {}}},
        {"appliedTo": {"podSelector": {}, "podSubnet": []}},
        {"appliedTo": {"podSubnet": ["172.29.16.0/24", "fd00::1/126"]}},
        {"destSubnet": ["10.6.1.92/32", "fd00::92/128"]},
    ],
)
def test_a_good_policy(spec: dict[str, Any]) -> None:
    assert validate_policy(policy(**spec)) == []


@pytest.mark.parametrize(
    ("spec", "errors"),
    [
        ({"egressIP": {"ipv4": "fd00::1"}}, ["spec.egressIP.ipv4: 'fd00::1' is an IPv6 address, not IPv4"]),
        ({"egressIP": {"ipv6": "fd00:1"}}, ["spec.egressIP.ipv6: 'fd00:1' is not an IP address"]),
        (
            {"egressIP": {"ipv4": "10.6.1.21", "useNodeIP": True}},
            ["spec.egressIP: must not ask for an address and for the node's own (useNodeIP)"],
        ),
        ({"appliedTo": {}}, [f"{APPLIED}: must have either a podSelector or a podSubnet"]),
        (
            {"appliedTo": {**PODS, "podSubnet": ["172.29.16.0/24"]}},
            [f"{APPLIED}: must have either a podSelector or a podSubnet"],
        ),
        (
            {"appliedTo": {"podSubnet": ["fd00:1/126"]}},
            [f"{APPLIED}.podSubnet[0]: 'fd00:1/126' is not a network in CIDR notation"],
        ),
        (
            {"appliedTo": {"podSelector": {"matchLabels": {"app": "a b"}}}},
            [f"{APPLIED}.podSelector.matchLabels[app]: the value 'a b' must have at most 63 characters"],
        ),
        ({"destSubnet": ["10.6.1.92"]}, ["spec.destSubnet[0]: '10.6.1.92' is not a network in CIDR notation"]),
        ({"name": "n" * 64}, ["metadata.name: must be no more than 63 characters"]),
    ],
)
def test_a_bad_policy(spec: dict[str, Any], errors: list[str]) -> None:
    found = said(validate_policy(policy(**spec)))
    assert len(found) == len(errors)
    for message, begins in zip(found, errors, strict=True):
        assert message.startswith(begins)


def test_gateway_and_address_of_a_policy_stay() -> None:
    old = policy(egressGatewayName="eg1", egressIP={"ipv4": "10.6.1.21"})
    same = policy(egressGatewayName="eg1", egressIP={"ipv4": "10.6.1.21", "ipv6": ""}, destSubnet=["10.0.0.0/8"])
    assert validate_policy_update(old, same) == []
    other = policy(egressGatewayName="", egressIP={"useNodeIP": True})
    assert [error.path for error in validate_policy_update(old, other)] == ["spec.egressGatewayName", "spec.egressIP"]


def test_what_was_wrong_before_is_no_news_at_another_position() -> None:
    before = validate_policy(policy(destSubnet=["10.0.0.0/8", "x"]))
    assert select_new(validate_policy(policy(destSubnet=["x"])), before) == []
    worse = select_new(validate_policy(policy(destSubnet=["x", "y"])), before)
    assert [error.path for error in worse] == ["spec.destSubnet[1]"]
