"""The rules of security groups, from Neutron's words to a node's."""

from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family
from coil.neutron.port_rules import (
    MOST_RULES,
    Direction,
    PortRule,
    RuleProtocol,
    admits_everything,
    make_rule_set,
    parse_rule,
    resolve_rules,
)
from coil.neutron.resource import SecurityGroupId, SecurityGroupRule

OWN = SecurityGroupId("own")
MEMBERS = {OWN: (ip_network("10.1.0.0/16"), ip_network("fd00:1::/64"))}


@pytest.mark.parametrize(
    ("rule", "texts"),
    [
        ({}, ["ingress 0.0.0.0/0"]),
        ({"ethertype": "IPv6", "direction": "egress"}, ["egress ::/0"]),
        ({"remote_ip_prefix": "192.0.2.7/24"}, ["ingress 192.0.2.0/24"]),
        ({"remote_group_id": OWN}, ["ingress 10.1.0.0/16"]),
        ({"remote_group_id": OWN, "ethertype": "IPv6"}, ["ingress fd00:1::/64"]),
        ({"protocol": "tcp", "port_range_min": 80, "port_range_max": 80}, ["ingress 0.0.0.0/0 tcp 80"]),
        ({"protocol": "6", "port_range_min": 80, "port_range_max": 90}, ["ingress 0.0.0.0/0 tcp 80-90"]),
        ({"protocol": "UDP"}, ["ingress 0.0.0.0/0 udp"]),
        ({"protocol": "icmp"}, ["ingress 0.0.0.0/0 icmp"]),
        ({"protocol": "ipv6-icmp", "port_range_min": 128, "ethertype": "IPv6"}, ["ingress ::/0 icmp 128"]),
        ({"protocol": "icmp", "ethertype": "IPv6"}, ["ingress ::/0 icmp"]),
    ],
)
def test_what_neutron_says_is_said_to_the_node(rule: dict[str, Any], texts: list[str]) -> None:
    given_rule = SecurityGroupRule(**{"direction": "ingress", "ethertype": "IPv4", **rule})
    resolved = resolve_rules([given_rule], MEMBERS)
    assert (list(map(str, resolved.rules)), resolved.left_out) == (texts, ())


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"protocol": "vrrp"}, "the protocol vrrp"),
        ({"protocol": "icmp", "port_range_min": 3, "port_range_max": 4}, "the code 4 of ICMP"),
        ({"remote_group_id": SecurityGroupId("other")}, "its remote group other"),
        ({"protocol": "58"}, "the protocol 58"),
        ({"remote_address_group_id": "ag"}, "its address group ag"),
        ({"ethertype": "IPX"}, "the ethertype IPX"),
    ],
)
def test_what_a_node_has_no_words_for_admits_nothing(rule: dict[str, Any], reason: str) -> None:
    given_rule = SecurityGroupRule(**{"id": "1", "direction": "ingress", "ethertype": "IPv4", **rule})
    resolved = resolve_rules([given_rule], MEMBERS)
    assert resolved.rules == ()
    (sentence,) = resolved.left_out
    assert reason in sentence


def test_there_is_a_limit() -> None:
    rules = [
        SecurityGroupRule(
            direction="ingress", ethertype="IPv4", protocol="tcp", port_range_min=port, port_range_max=port
        )
        for port in range(1, MOST_RULES + 8)
    ]
    resolved = resolve_rules(rules, MEMBERS)
    assert len(resolved.rules) == MOST_RULES
    assert resolved.left_out == (f"7 rules: a port has {MOST_RULES} at most",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ingress",
        "both 10.0.0.0/8",
        "ingress 10.0.0.1/8",
        "ingress 10.0.0.0/8 gre",
        "ingress 10.0.0.0/8 tcp 90-80",
        "ingress 10.0.0.0/8 tcp 65536",
        "ingress 10.0.0.0/8 icmp 3-4",
        "ingress 10.0.0.0/8 icmp 256",
        "ingress 10.0.0.0/8 tcp 80; drop",
    ],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_rule(text)


networks = st.sampled_from(
    [ip_network(text) for text in ("0.0.0.0/0", "10.0.0.0/8", "10.0.0.1/32", "::/0", "fd00::/8")]
)
ports = st.tuples(st.integers(0, 65535), st.integers(0, 65535)).map(sorted)


@st.composite
def port_rules(draw: st.DrawFn) -> PortRule:
    protocol = draw(st.sampled_from([None, *RuleProtocol]))
    first, last = draw(ports)
    if protocol is None:
        first, last = 0, 65535
    elif protocol is RuleProtocol.ICMP:
        first, last = draw(st.sampled_from([(0, 255), (8, 8), (128, 128)]))
    return PortRule(draw(st.sampled_from(Direction)), draw(networks), protocol, first, last)


@given(rules=st.lists(port_rules(), max_size=8))
def test_a_set_of_rules_says_the_same_in_any_order_and_is_read_as_it_was_written(rules: list[PortRule]) -> None:
    made = make_rule_set(rules)
    assert make_rule_set(reversed(rules)) == made
    assert make_rule_set(parse_rule(str(rule)) for rule in made) == made
    for direction in Direction:
        for family in Family:
            passes = any(each.admits_all and (each.direction, each.family) == (direction, family) for each in rules)
            assert admits_everything(made, [family], direction) == passes
