"""Elements in the kernel's sets: loaded whole, changed one by one, compared and mended. The oracle is `nft -j`, and a
table that was loaded from nothing.
"""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coil.crd.egress_gateway import PolicyRef
from coil.eip.change_steps import split_changes
from coil.eip.claim import Eip
from coil.eip.classification import PolicyView
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_set import ALIVE, ARP_EIPS, NODES, SETS, TIMEOUTS
from coil.eip.eip_table import EipTableOptions, plan_eip_tables
from coil.kernel.family import Family
from coil.kernel.nft_element import ElementChanges, Elements, diff_elements
from coil.kernel.nft_table import TableFamily
from coil.nft.element_sync import change_elements, load_elements, refresh_timeouts
from coil.nft.netfilter import NftError
from coil.nft.table_sync import delete_table, sync_table
from integration.netns.eip_world import GATEWAY_NODE, MARKS, REF, TABLES, nft, view
from integration.netns.listed_elements import read_elements
from integration.netns.netns import Netns
from tests.coil.eip.packet_oracle import World
from tests.coil.eip.worlds import tell, worlds

pytestmark = pytest.mark.kernel

_SECONDS = 60.0


def load(netns: Netns, elements: Elements) -> bool:
    return netns.call(lambda: load_elements(TABLES, elements))


def ruleset(netns: Netns) -> list[dict[str, Any]]:
    """Everything, without what no two namespaces have in common; the order counts among rules only."""
    command = ["ip", "netns", "exec", netns.name, "nft", "-j", "list", "ruleset"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS).stdout
    entries = [
        {kind: {key: value for key, value in content.items() if key not in {"handle", "packets", "bytes"}}}
        for entry in json.loads(listed)["nftables"]
        for kind, content in entry.items()
    ]
    for entry in entries:
        for content in entry.values():
            if "elem" in content:
                content["elem"] = sorted(map(json.dumps, content["elem"]))
    return sorted(
        entries, key=lambda entry: json.dumps({kind: body.get("chain", body) for kind, body in entry.items()})
    )


def not_empty(elements: Elements) -> Elements:
    return {name: words for name, words in elements.items() if words}


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(worlds(), min_size=1, max_size=4))
def test_the_kernel_has_what_the_index_has(host: Netns, new_netns: Callable[[], Netns], steps: list[World]) -> None:
    """After a load over whatever was there, and after each change."""
    index = DataPlaneIndex(clock=time.monotonic)
    index.set_held([ip_address("203.0.113.50"), ip_address("2001:db8::50"), ip_address("2001:db8::ffff:1:50")])
    tell(index, steps[0])
    index.take_changes()
    load(host, index.elements())
    assert not load(host, index.elements())
    for world in steps[1:]:
        tell(index, world)
        changes = index.take_changes()
        host.call(lambda changes=changes: change_elements(TABLES, changes))  # type: ignore[misc]
        assert not_empty(host.call(lambda: read_elements(TABLES))) == index.elements()
        assert not load(host, index.elements())
    fresh = new_netns()
    load(fresh, index.elements())
    assert ruleset(host) == ruleset(fresh)


SOME: Elements = {
    SETS[Family.IPV4].classes: {"10.0.0.1": "1:1"},
    SETS[Family.IPV4].ranges[1]: {("1:1", "203.0.113.9"): "3:1", ("1:1", "198.51.100.0/24"): "3:2"},
    SETS[Family.IPV4].ways: {"3:1": 0x26000100, "3:2": 0x26000000},
    SETS[Family.IPV4].cluster: {"10.0.0.0/8": None},
    NODES: {"02:00:00:00:00:01": 0x26000100},
    ARP_EIPS: {"203.0.113.50": None},
}


@pytest.mark.parametrize(
    "command",
    [
        "flush map inet coil-eip class4",
        "add element inet coil-eip class4 { 10.0.0.2 : 1:1 }",
        "delete element inet coil-eip cluster4 { 10.0.0.0/8 }",
        "add element inet coil-eip range4_1 { 1:2 . 10.0.0.0/8 : 7:7 }",
        "flush set arp coil-eip eips",
        "flush chain inet coil-eip prerouting",
        "insert rule inet coil-eip decided accept",
        "add set inet coil-eip more { type ipv4_addr; }",
        "add chain inet coil-eip more",
        "flush table inet coil-eip",
        "delete table inet coil-eip",
        "delete table arp coil-eip",
        "flush ruleset",
    ],
)
def test_what_somebody_else_did_is_mended(host: Netns, command: str) -> None:
    load(host, SOME)
    before = ruleset(host)
    nft(host, command)
    assert ruleset(host) != before
    assert load(host, SOME)
    assert ruleset(host) == before
    assert not load(host, SOME)


def test_rules_alone_leave_elements_as_they_are(host: Netns) -> None:
    load(host, SOME)
    before = ruleset(host)
    nft(host, "flush chain inet coil-eip prerouting")
    assert [host.call(lambda table=table: sync_table(table)) for table in TABLES] == [True, False]  # type: ignore[misc]
    assert ruleset(host) == before


def test_an_earlier_version_is_replaced(host: Netns) -> None:
    """Its sets are of other types, so nothing of them stays."""
    nft(host, "add table inet coil-eip\nadd map inet coil-eip class4 { type ipv4_addr : mark; }")
    nft(host, "add element inet coil-eip class4 { 10.0.0.1 : 7 }\nadd chain inet coil-eip old")
    nft(host, "add rule inet coil-eip old meta mark set ip saddr map @class4")
    load(host, SOME)
    assert not_empty(host.call(lambda: read_elements(TABLES))) == SOME
    assert not load(host, SOME)


def test_one_transaction(host: Netns) -> None:
    """Where the second table cannot be, there is no first, nor any element."""
    nft(host, "add table arp coil-eip\nadd table ip other")
    impossible = replace(TABLES[1], chains=(replace(TABLES[1].chains[0], rules=TABLES[0].chains[-1].rules),))
    with pytest.raises(NftError, match="load table inet coil-eip and table arp coil-eip: "):
        host.call(lambda: load_elements((TABLES[0], impossible), SOME))
    assert "coil-eip" not in nft(host, "list tables inet")


def test_a_pod_more_is_one_element(host: Netns) -> None:
    index = index_of_one_pod()
    load(host, index.elements())
    index.take_changes()
    index.set_sources(REF, {ip_address("10.1.0.2"): GATEWAY_NODE, ip_address("10.1.0.3"): GATEWAY_NODE})
    changes = index.take_changes()
    assert len(changes) == 1
    host.call(lambda: change_elements(TABLES, changes))
    assert not load(host, index.elements())


def test_a_refused_change_changes_nothing(host: Netns) -> None:
    load(host, SOME)
    before = ruleset(host)
    classes = SETS[Family.IPV4].classes
    changes = ElementChanges(deletes={classes: ("10.0.0.1", "10.0.0.9")}, adds={NODES: {"02:00:00:00:00:02": 5}})
    with pytest.raises(NftError, match="change 3 elements"):
        host.call(lambda: change_elements(TABLES, changes))
    assert ruleset(host) == before


def index_of_one_pod() -> DataPlaneIndex:
    index = DataPlaneIndex(clock=time.monotonic)
    index.set_own(GATEWAY_NODE)
    index.set_policies([view(eip=Eip(ipv4=ip_address("203.0.113.50")), destinations=(ip_network("0.0.0.0/1"),))])  # type: ignore[arg-type]
    index.set_sources(REF, {ip_address("10.1.0.2"): GATEWAY_NODE})
    return index


def crowded_index(policies: range) -> DataPlaneIndex:
    """Each with two destinations of each family, and a pod."""
    index = DataPlaneIndex(clock=time.monotonic)
    index.set_own(GATEWAY_NODE)
    everything = []
    for number in policies:
        nets = (ip_network((0xC6120000 + 8 * number, 30)), ip_network((0xC6120000 + 8 * number + 5, 32)))
        nets6 = tuple(ip_network(((0xFD06 << 112) + (number << 16) + last, 126)) for last in (0, 8))
        eip = Eip(ipv4=IPv4Address(0xCB007100 + number), ipv6=IPv6Address((0xFD07 << 112) + number))
        ref = PolicyRef(namespace="default", name=f"p{number}")
        everything.append(PolicyView(ref=ref, destinations=(*nets, *nets6), eip=eip, node=GATEWAY_NODE))
        pods = (IPv4Address(0x0A010000 + number), IPv6Address((0xFD01 << 112) + number))
        index.set_sources(ref, dict.fromkeys(pods, GATEWAY_NODE))
    index.set_policies(everything)
    return index


def test_many_ranges_go_at_once(host: Netns, new_netns: Callable[[], Netns]) -> None:
    """By changes, by the comparison after a start, and by both where others have changed the rules meanwhile."""
    index = crowded_index(range(700))
    load(host, index.elements())
    assert not_empty(host.call(lambda: read_elements(TABLES))) == index.elements()
    index.take_changes()
    sizes = {name: len(words) for name, words in index.elements().items()}
    for number in range(600):
        index.remove_policy(PolicyRef(namespace="default", name=f"p{number}"))
    changes = index.take_changes()
    steps = list(split_changes(changes, sizes))
    assert len(steps) > 1
    for step in steps:
        host.call(lambda step=step: change_elements(TABLES, step))  # type: ignore[misc]
    assert not load(host, index.elements())
    fresh = new_netns()
    load(fresh, index.elements())
    assert ruleset(host) == ruleset(fresh)

    other = crowded_index(range(650, 1300)).elements()
    assert load(host, other)
    assert not_empty(host.call(lambda: read_elements(TABLES))) == other
    nft(host, "insert rule inet coil-eip decided accept\nflush chain inet coil-eip prerouting")
    assert load(host, index.elements())
    assert ruleset(host) == ruleset(fresh)


def test_no_more_rules_whatever_there_is(host: Netns) -> None:
    load(host, {})
    rules = sum("rule" in entry for entry in ruleset(host))
    load(host, {**SOME, NODES: {f"02:00:00:00:00:{last:02x}": mark for last, mark in enumerate(MARKS.values())}})
    assert sum("rule" in entry for entry in ruleset(host)) == rules


def alive(netns: Netns) -> str:
    return "".join(nft(netns, f"list set {family} coil-eip alive") for family in ("inet", "arp"))


def test_refreshed_timeouts(host: Netns) -> None:
    load(host, SOME)
    before = ruleset(host)
    for _ in range(2):
        host.call(lambda: refresh_timeouts(TIMEOUTS, 599_900))
        text = alive(host)
        assert all(f"{word} timeout 9m59s900ms" in text for word in ("ipv4", "ipv6", "request", "reply"))
        assert not load(host, SOME)
        assert "timeout 9m59s900ms" in alive(host)
    host.call(lambda: refresh_timeouts(TIMEOUTS, 0))
    assert ruleset(host) == before


def test_a_refresh_without_a_table(host: Netns) -> None:
    with pytest.raises(NftError, match="refresh"):
        host.call(lambda: refresh_timeouts(((ALIVE, ("ipv4",)),), 600))


def test_nothing_is_left(host: Netns) -> None:
    before = ruleset(host)
    load(host, SOME)
    assert host.call(lambda: delete_table("coil-eip"))
    assert host.call(lambda: delete_table("coil-eip", TableFamily.ARP))
    assert not host.call(lambda: delete_table("coil-eip", TableFamily.ARP))
    assert ruleset(host) == before


def test_options(host: Netns) -> None:
    for keep_source in (True, False):
        tables = plan_eip_tables(EipTableOptions(keep_source=keep_source))
        assert host.call(lambda tables=tables: load_elements(tables, {}))  # type: ignore[misc]
        assert ("snat ip to ip saddr" in nft(host, "list table inet coil-eip")) is keep_source


def test_differences() -> None:
    assert diff_elements(SOME, SOME) == ElementChanges()
    assert not diff_elements(SOME, SOME)
    assert diff_elements({NODES: {"a": 1, "b": 2}}, {NODES: {"a": 3}}) == ElementChanges(
        deletes={NODES: ("a", "b")}, adds={NODES: {"a": 3}}
    )
