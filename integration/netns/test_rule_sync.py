"""Rules with selectors, as `ip -j rule` prints them."""

from ipaddress import ip_network
from random import Random
from typing import Any

import pytest

from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.rule import Rule, RuleChanges, RuleClaim
from coil.netlink.connection import Connection
from coil.netlink.rule import ensure_rules, read_rules, sync_rules
from integration.netns.netns import Netns

pytestmark = pytest.mark.kernel

MAIN, OURS = 254, 30
CLAIM = RuleClaim(protocol=OURS, priorities=frozenset({1000, 1800, 1900, *range(2000, 2003), 2100}))


def rule(priority: int, table: int, *, family: Family = Family.IPV4, **selectors: Any) -> Rule:
    return Rule(family=family, priority=priority, table=table, protocol=OURS, **selectors)


CLIENT = [
    rule(1800, MAIN, destination=ip_network("169.254.0.0/16")),
    rule(1900, 117),
    rule(2000, MAIN, destination=ip_network("10.0.0.0/8")),
    rule(2001, MAIN, destination=ip_network("172.16.0.0/12")),
    rule(2002, MAIN, destination=ip_network("192.168.0.0/16")),
    rule(2100, 118),
    rule(1800, MAIN, family=Family.IPV6, destination=ip_network("fe80::/10")),
    rule(2000, MAIN, family=Family.IPV6, destination=ip_network("fc00::/7")),
]
OTHERS = [
    rule(2000, 118, iif=LinkName("eth0")),
    rule(2000, 118, family=Family.IPV6, iif=LinkName("eth0")),
    rule(1000, 1003, mark=26),
    rule(1000, 1003, mark=0),
    rule(1000, 1003, mark=0x80, mask=0x80),
    rule(1000, 1003, mark=0, mask=0xF0),
    rule(2000, 118),
    rule(2000, MAIN),
    rule(2000, 118, source=ip_network("192.0.2.0/24")),
    rule(2000, 118, family=Family.IPV6, source=ip_network("2001:db8::/32")),
]


def sync(netns: Netns, wanted: list[Rule]) -> RuleChanges:
    def synced() -> RuleChanges:
        with Connection() as connection:
            return sync_rules(wanted, claim=CLAIM, connection=connection)

    return netns.call(synced)


def printed(netns: Netns) -> list[tuple[int, str, str, str]]:
    """Priority, destination, link or mark, and table of each rule of ours that `ip` knows; IPv4 comes first."""
    rules = [entry for family in ("-4", "-6") for entry in netns.read(family, "rule", "show")]
    return [
        (
            entry["priority"],
            f"{entry['dst']}/{entry['dstlen']}" if "dst" in entry else "",
            entry.get("iif", entry.get("fwmark", "")),
            entry["table"],
        )
        for entry in rules
        if entry["protocol"] == str(OURS)
    ]


def test_the_clients_rules(host: Netns) -> None:
    changes = sync(host, CLIENT)
    assert (set(changes.adds), changes.deletes) == (set(CLIENT), ())
    assert printed(host) == [
        (1800, "169.254.0.0/16", "", "main"),
        (1900, "", "", "117"),
        (2000, "10.0.0.0/8", "", "main"),
        (2001, "172.16.0.0/12", "", "main"),
        (2002, "192.168.0.0/16", "", "main"),
        (2100, "", "", "118"),
        (1800, "fe80::/10", "", "main"),
        (2000, "fc00::/7", "", "main"),
    ]
    assert not sync(host, CLIENT)
    sync(host, [])
    assert printed(host) == []


def test_links_and_marks(host: Netns) -> None:
    sync(host, OTHERS[:3])
    assert printed(host) == [(1000, "", "0x1a", "1003"), (2000, "", "eth0", "118"), (2000, "", "eth0", "118")]


def test_bits_of_marks(host: Netns) -> None:
    sync(host, OTHERS[4:6])
    found = [entry for entry in host.read("rule") if entry["priority"] == 1000]
    assert [(entry["fwmark"], entry["fwmask"]) for entry in found] == [("0", "0xf0"), ("0x80", "0x80")]


@pytest.mark.parametrize("seed", range(8))
def test_any_set_becomes_any_other(host: Netns, seed: int) -> None:
    random = Random(seed)
    every = CLIENT + OTHERS
    for _ in range(4):
        wanted = random.sample(every, random.randrange(len(every)))
        sync(host, wanted)
        assert not sync(host, wanted)
        assert len(printed(host)) == len(wanted)
        assert set(host.call(_read)) >= set(wanted)


def _read() -> list[Rule]:
    with Connection() as connection:
        return read_rules(connection)


def test_a_rule_with_selectors_survives_the_end_of_one_that_has_less(host: Netns) -> None:
    """Asked to delete the rule for every packet, the kernel takes the first of that priority, table and protocol."""
    selective = rule(2000, MAIN, destination=ip_network("10.0.0.0/8"))
    sync(host, [selective])
    sync(host, [selective, rule(2000, MAIN)])
    sync(host, [selective])
    assert printed(host) == [(2000, "10.0.0.0/8", "", "main")]


def test_what_is_not_claimed_is_left(host: Netns) -> None:
    for words in (
        "priority 2000 table 117 protocol 3",
        "priority 2003 table 117 protocol 30",
        "priority 2000 tos 0x10 table 117 protocol 30",
        "priority 2000 not to 192.0.2.0/24 table 117 protocol 30",
        "priority 2000 ipproto tcp table 117 protocol 30",
        "priority 2000 blackhole protocol 30",
    ):
        host.ip("rule", "add", *words.split())
    before = host.read("rule")
    assert not sync(host, [])
    sync(host, CLIENT)
    sync(host, [])
    assert host.read("rule") == before


def test_rules_that_select_are_none_of_a_hosts_business(host: Netns) -> None:
    def ensured() -> RuleChanges:
        with Connection() as connection:
            return ensure_rules([rule(2000, 116)], connection)

    sync(host, CLIENT[:1] + OTHERS[:1])
    before = printed(host)
    assert host.call(ensured).adds == (rule(2000, 116),)
    assert set(printed(host)) == {*before, (2000, "", "", "116")}
    assert not host.call(ensured)
