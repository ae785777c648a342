"""Rules as written here, read by pyroute2, and rules as others write them."""

import struct
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
from pyroute2.netlink.rtnl.fibmsg import fibmsg

from coil.kernel.family import Family
from coil.kernel.foreign_rule import ForeignRule, RuleAction
from coil.kernel.link import LinkName
from coil.kernel.rule import Rule
from coil.netlink.rule import append_rule, delete_rule, new_rule, parse_foreign_rule, parse_rule
from coil.netlink.wire import attribute, attribute_s32, attribute_text, attribute_u8, attribute_u32
from tests.coil.netlink.oracle import read

PLAIN = Rule(family=Family.IPV4, priority=2000, table=117, protocol=30)
PRIVATE = replace(PLAIN, destination=ip_network("172.16.0.0/12"), table=254)
PRIVATE6 = replace(PLAIN, family=Family.IPV6, destination=ip_network("fc00::/7"))
INCOMING = replace(PLAIN, iif=LinkName("eth0"), table=118)
MARKED = replace(PLAIN, priority=1000, mark=26, table=1003)
UNMARKED = replace(MARKED, mark=0)
SENT = replace(PLAIN, source=ip_network("10.1.0.7/32"), table=10_001)
BIT = replace(MARKED, mark=0x80, mask=0x80)
BITS = replace(MARKED, mark=0x4000, mask=0xFF00)
SENT6 = replace(PLAIN, family=Family.IPV6, source=ip_network("fd00::/80"), destination=ip_network("fd00::/64"))
ONWARD = replace(PRIVATE, table=0, goto=2001)
ALL = replace(PRIVATE, iif=LinkName("eth0"), mark=0xFFFFFFFF)


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("table", [116, 70_000])
def test_a_rule_for_every_packet(family: Family, table: int) -> None:
    rule = Rule(family=family, priority=2000, table=table, protocol=30)
    request = new_rule(rule)
    message = read(fibmsg, request)
    assert (message["family"], message["action"], message["src_len"], message["dst_len"]) == (family, 1, 0, 0)
    assert (message.get("priority"), message.get("table"), message.get("protocol")) == (2000, table, 30)
    assert [message.get(name) for name in ("dst", "iifname", "fwmark", "fwmask")] == [None] * 4
    assert parse_rule(request.body) == rule


@pytest.mark.parametrize("rule", [PRIVATE, PRIVATE6, INCOMING, MARKED, UNMARKED, BIT, BITS, SENT, SENT6, ONWARD, ALL])
@pytest.mark.parametrize("verb", [new_rule, append_rule, delete_rule])
def test_a_rule_with_selectors(rule: Rule, verb: Any) -> None:
    request = verb(rule)
    message = read(fibmsg, request)
    assert (message["family"], message["action"]) == (rule.family, 1 if rule.goto is None else 2)
    for name, network in (("dst", rule.destination), ("src", rule.source)):
        assert message[f"{name}_len"] == (network.prefixlen if network else 0)
        assert message.get(name) == (str(network.network_address) if network else None)
    assert (message.get("table"), message.get("goto")) == (rule.table, rule.goto)
    assert message.get("iifname") == rule.iif
    assert message.get("fwmark") == rule.mark
    assert message.get("fwmask") == (None if rule.mark is None else rule.mask)
    assert parse_rule(request.body) == rule


@pytest.mark.parametrize("rule", [PLAIN, PRIVATE, MARKED])
def test_a_rule_that_selects_by_what_is_not_known_is_nobody_to_us(rule: Rule) -> None:
    body = new_rule(rule).body
    inverted = body[:8] + b"\2\0\0\0" + body[12:]  # FIB_RULE_INVERT
    assert parse_rule(inverted) is None
    assert parse_rule(body + attribute_u32(20, 1)) is None  # FRA_UID_RANGE
    assert parse_rule(body + attribute_u32(14, 0)) is None  # FRA_SUPPRESS_PREFIXLEN
    assert parse_rule(body + attribute_u32(14, 0xFFFFFFFF)) == rule
    assert parse_rule(body + attribute_u32(10, 0x100) + attribute_u32(16, 0xFF)) is None  # FRA_FWMARK, FRA_FWMASK


@pytest.mark.parametrize("rule", [PRIVATE, PRIVATE6, INCOMING, MARKED, UNMARKED, BIT, SENT, SENT6, ONWARD, ALL])
def test_a_rule_that_could_be_ours_is_read_as_somebodys(rule: Rule) -> None:
    found = parse_foreign_rule(new_rule(rule).body)
    assert found == ForeignRule(
        family=rule.family,
        priority=rule.priority,
        action=RuleAction.LOOKUP if rule.goto is None else RuleAction.GOTO,
        protocol=rule.protocol,
        table=rule.table,
        goto=rule.goto or 0,
        source=rule.source,
        destination=rule.destination,
        iif=rule.iif,
        mark=rule.mark,
    )


FOREIGN = ForeignRule(family=Family.IPV4, priority=2000, action=RuleAction.LOOKUP, table=117, protocol=30)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (attribute_s32(14, 0), replace(FOREIGN, suppressed=0)),  # FRA_SUPPRESS_PREFIXLEN
        (attribute_s32(14, -1), FOREIGN),
        (attribute_text(17, "eth0"), replace(FOREIGN, local=True)),  # FRA_OIFNAME
        (attribute_u8(19, 1), replace(FOREIGN, local=True)),  # FRA_L3MDEV
        (attribute(20, struct.pack("=II", 1000, 2000)), replace(FOREIGN, local=True)),  # FRA_UID_RANGE
        (attribute(20, struct.pack("=II", 0, 2000)), FOREIGN),
        (attribute(24, struct.pack("=HH", 53, 53)), replace(FOREIGN, narrowed=True)),  # FRA_DPORT_RANGE
    ],
)
def test_a_rule_that_ours_cannot_be(more: bytes, expected: ForeignRule) -> None:
    assert parse_foreign_rule(new_rule(PLAIN).body + more) == expected


def test_the_header_of_a_rule_of_somebody() -> None:
    """family, dst_len, src_len, tos, table, res1, res2, action, flags: struct fib_rule_hdr of linux/fib_rules.h."""
    priority = attribute_u32(6, 100)
    assert parse_foreign_rule(struct.pack("=BBBBBBBBI", 2, 0, 0, 0x10, 77, 0, 0, 1, 2) + priority) == replace(
        FOREIGN, priority=100, table=77, protocol=0, narrowed=True, inverted=True
    )
    for action in (RuleAction.BLACKHOLE, RuleAction.UNREACHABLE, RuleAction.PROHIBIT, RuleAction.NOP):
        body = struct.pack("=BBBBBBBBI", 10, 0, 0, 0, 0, 0, 0, action, 0)
        assert parse_foreign_rule(body) == ForeignRule(family=Family.IPV6, priority=0, action=action)
    assert parse_foreign_rule(struct.pack("=BBBBBBBBI", 128, 0, 0, 0, 77, 0, 0, 1, 0)) is None, "RTNL_FAMILY_IPMR"
    assert parse_foreign_rule(struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 77, 0, 0, 5, 0)) is None, "no such action"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (FOREIGN, "rule 2000 from all lookup 117"),
        (
            replace(FOREIGN, inverted=True, source=ip_network("10.0.0.0/8"), destination=ip_network("192.0.2.0/24")),
            "rule 2000 not from 10.0.0.0/8 to 192.0.2.0/24 lookup 117",
        ),
        (
            replace(FOREIGN, iif=LinkName("eth0"), mark=0x100, action=RuleAction.GOTO, goto=3000),
            "rule 2000 from all iif eth0 fwmark 0x100 goto 3000",
        ),
        (replace(FOREIGN, local=True, action=RuleAction.BLACKHOLE), "rule 2000 from all … blackhole"),
    ],
)
def test_a_rule_of_somebody_in_words(rule: ForeignRule, words: str) -> None:
    assert str(rule) == words
