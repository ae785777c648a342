"""What is egressgateway's, and what only looks like it."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Final

import pytest

from coil.crd.names import NodeName
from coil.eip.egressgateway import IPTABLES, owns_link, owns_set, select_rules, tunnel_mac
from coil.kernel.family import Family
from coil.kernel.link import Link, LinkName, LinkState, MacAddress
from coil.kernel.rule import Rule
from coil.kernel.vxlan import VXLAN_KIND, VxlanState

NODE: Final = NodeName("management-cluster-server1")
LINK: Final = Link(
    name=LinkName("egress.vxlan"),
    index=7,
    mtu=1450,
    state=LinkState.UP,
    carrier=True,
    mac=MacAddress("66:78:e2:db:52:a2"),
    kind=VXLAN_KIND,
)
STATE: Final = VxlanState(vni=100, port=7789, local=ip_address("10.0.0.1"), learning=False, plain=False, bound=True)
MARK: Final = 0x26B7B4E4
RULE: Final = Rule(family=Family.IPV4, priority=99, table=MARK, protocol=0, mark=MARK)


def test_the_hardware_address_of_a_node_is_the_one_that_was_seen_in_the_wild() -> None:
    assert tunnel_mac(NODE) == "66:78:e2:db:52:a2"
    assert tunnel_mac(NodeName("management-cluster-server2")) == "66:78:4b:6c:67:84"


def test_a_link_is_its_by_the_hardware_address_or_by_all_default_values() -> None:
    other = MacAddress("02:00:00:00:00:01")
    assert owns_link(LINK, STATE, NODE)
    assert owns_link(replace(LINK, name=LinkName("vx.egw")), replace(STATE, vni=5, port=4790), NODE)
    assert owns_link(replace(LINK, mac=other), STATE, NODE)
    for link, state in (
        (LINK, replace(STATE, bound=False, plain=True)),  # Coil's, which keeps the hardware address of the node
        (LINK, replace(STATE, learning=True)),
        (replace(LINK, mac=other), replace(STATE, vni=101)),
        (replace(LINK, mac=other), replace(STATE, port=4789)),
        (replace(LINK, mac=other, name=LinkName("egress.vxlan2")), STATE),
    ):
        assert not owns_link(link, state, NODE)


def test_rules_of_its_nodes_lead_to_the_table_of_their_mark() -> None:
    ipv6 = replace(RULE, family=Family.IPV6)
    without_priority = replace(RULE, priority=32764)
    assert select_rules([RULE, ipv6, without_priority], ()) == [RULE, ipv6, without_priority]


@pytest.mark.parametrize(
    "rule",
    [
        replace(RULE, table=700),
        replace(RULE, mask=0xFF000000, mark=0x26000000, table=0x26000000),
        replace(RULE, mark=0x26000000, table=0x26000000),
        replace(RULE, mark=0x27000001, table=0x27000001),
        replace(RULE, source=ip_network("10.9.0.0/24")),
        replace(RULE, destination=ip_network("10.9.0.0/24")),
        replace(RULE, iif=LinkName("eth0")),
        replace(RULE, protocol=30, priority=1700),
        replace(RULE, mark=None),
        replace(RULE, mark=39, table=600),
    ],
    ids=str,
)
def test_other_rules_are_not_its(rule: Rule) -> None:
    assert select_rules([rule], ()) == []


def test_rules_with_other_marks_are_its_where_their_tables_lead_over_its_tunnel() -> None:
    configured = replace(RULE, mark=0x31000001, table=0x31000001)
    replies = replace(RULE, mark=39, table=600, priority=32765)
    assert select_rules([configured, replies], {0x31000001, 600}) == [configured, replies]
    assert select_rules([replace(configured, priority=98), replace(replies, mark=40)], {0x31000001, 600}) == []


@pytest.mark.parametrize(
    ("name", "kind", "owned"),
    [
        ("egress-cluster-cidr-ipv4", "hash:net", True),
        ("egress-cluster-cidr-ipv6", "hash:net", True),
        ("egress-src-v4-738bb014438bdbfe7", "hash:net", True),
        ("egress-dst-v6-738bb014438bdbfe7", "hash:net", True),
        ("egress-dst-v6-738bb014438bdbfe7", "hash:ip", False),
        ("egress-dst-v5-738bb014438bdbfe7", "hash:net", False),
        ("egress-src-v4-738bb014438bdbfe", "hash:net", False),
        ("egress-cluster-cidr-ipv40", "hash:net", False),
        ("my-egress-cluster-cidr-ipv4", "hash:net", False),
        ("egress-foreign", "hash:net", False),
    ],
)
def test_sets_are_its_by_name_and_kind(name: str, kind: str, owned: bool) -> None:
    assert owns_set(name, kind) is owned


@pytest.mark.parametrize(
    ("comment", "owned"),
    [
        ("egw:Lh98b3mb9WlZrgw7", True),
        ("egw:c2Rxsf_p-hXQYsiG", True),
        ("SNAT for egress traffic", False),
        ("cali:6gwbT8clXdHdC1b1", False),
        ("about egw:Lh98b3mb9WlZrgw7", False),
        ("egw:Lh98b3mb9WlZrgw7 ", False),
        ("egw:short", False),
    ],
)
def test_rules_are_its_by_the_comment_with_their_hash(comment: str, owned: bool) -> None:
    assert IPTABLES.owns(comment) is owned
