"""Tables compared with what is wanted, again and again, without libnftables' reading them. The oracle is `nft -j`, and
what the library reads.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coil.eip.change_steps import STEP, delete_effort, split_changes
from coil.eip.claim import Eip
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_set import ARP_EIPS, EVERYWHERE, NEXT, NODE_IPS, NODES, SETS, TIMEOUTS, VALID
from coil.kernel.family import Family
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue
from coil.nft import element_sync
from coil.nft.element_sync import TableReconciler, change_elements, load_elements, refresh_timeouts
from coil.nft.netfilter import NetfilterSocket
from integration.netns.eip_world import GATEWAY_NODE, REF, TABLES, nft, view
from integration.netns.listed_elements import read_elements
from integration.netns.netns import Netns
from integration.netns.test_eip_elements import alive, crowded_index, not_empty, ruleset
from tests.coil.eip.packet_oracle import World
from tests.coil.eip.worlds import tell, worlds

pytestmark = pytest.mark.kernel

MANY = 100_000
FIVE_TIMES_A_SECOND = 0.2
LOOKS, ENOUGH = 100, 5

SOME: Elements = {
    SETS[Family.IPV4].classes: {"10.0.0.1": "1:1", "10.0.0.2": "2:ffff"},
    SETS[Family.IPV6].classes: {"fd01::1": "1:2", str(IPv6Address("::ffff:a00:1")): "1:2"},
    SETS[Family.IPV4].subnet_classes: {"0.0.0.0/8": "1:3", "1.0.0.0-1.0.0.4": "1:4", "1.0.0.5": "1:5"},
    SETS[Family.IPV6].subnet_classes: {"fd02::/16": "1:6", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff": "1:7"},
    SETS[Family.IPV4].ranges[1]: {("1:2", "203.0.113.9"): "3:1", ("2:ffff", "198.51.100.3-198.51.100.9"): "3:2"},
    SETS[Family.IPV6].ranges[15]: {("1:2", "::/0"): "3:1", ("1:3", "fd00::1-fd00::3"): "3:2"},
    SETS[Family.IPV6].cluster_ranges: {("1:2", "fd01::/16"): "3:1"},
    EVERYWHERE: {"1:2": "3:2"},
    NEXT: {"1:2": "3:2"},
    VALID: {"754974721": None},
    SETS[Family.IPV4].eips: {"3:2": "203.0.113.50"},
    SETS[Family.IPV6].eips: {"3:2": "2001:db8::50"},
    SETS[Family.IPV4].ways: {"3:1": 0x26000100, "3:2": 0x26000000},
    NODE_IPS: {"3:3": None},
    SETS[Family.IPV4].cluster: {"10.0.0.0/8": None, "255.255.255.255": None},
    SETS[Family.IPV6].cluster: {"::/0": None},
    SETS[Family.IPV4].guarded: {"10.1.0.0/16": None, "10.2.0.0/16": None, "10.3.0.1": None},
    NODES: {"02:00:00:00:00:01": 0x26000100},
    ARP_EIPS: {"203.0.113.50": None},
}


class Kept:
    """Of the namespace; counts transactions."""

    def __init__(self, netns: Netns) -> None:
        self._netns = netns
        self.transactions: list[int] = []
        self.tables = TableReconciler(TABLES, transaction=self._note, split=split_changes)

    def _note(self, elements: int) -> nullcontext[None]:
        self.transactions.append(elements)
        return nullcontext()

    def close(self) -> None:
        self.tables.close()

    def load(self, elements: Elements) -> bool:
        self.transactions.clear()
        return self._netns.call(lambda: self.tables.load(elements))

    def change(self, changes: ElementChanges) -> None:
        self._netns.call(lambda: self.tables.change(changes))


@pytest.fixture
def kept(host: Netns) -> Iterator[Kept]:
    with closing(Kept(host)) as kept:
        yield kept


@contextmanager
def library_unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever lists a table fails."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("listed")

    with monkeypatch.context() as patch:
        patch.setattr(element_sync, "list_table", fail)
        yield


@contextmanager
def refreshed_timeouts(netns: Netns) -> Iterator[Callable[[], int]]:
    """Five times a second; how often until now."""
    over = threading.Event()
    done: list[None] = []

    def refresh() -> None:
        line = NetfilterSocket()
        while not over.wait(FIVE_TIMES_A_SECOND):
            refresh_timeouts(TIMEOUTS, 600, line)
            done.append(None)
        line.close()

    thread = threading.Thread(target=lambda: netns.call(refresh))
    thread.start()
    try:
        yield lambda: len(done)
    finally:
        over.set()
        thread.join()


def test_steps_are_as_short_as_the_set_is_large_by_then(kept: Kept) -> None:
    name = SETS[Family.IPV4].ranges[1]
    first = SOME[name]
    more: dict[ElementKey, ElementValue] = {
        ("1:2", f"198.18.{number // 256}.{number % 256}"): "1:2" for number in range(512)
    }
    keys = tuple(more)

    def longest() -> int:
        return max(map(len, kept.tables.split(ElementChanges(deletes={name: keys[128:]}))))

    kept.load(SOME)
    kept.change(ElementChanges(adds={name: more}))
    assert longest() == STEP // delete_effort(len(first) + 512)
    kept.change(ElementChanges(deletes={name: keys[:128]}))
    assert longest() == STEP // delete_effort(len(first) + 384)
    kept.load(SOME)
    assert longest() == len(keys[128:]), "a small set has nothing to compare"


COMMANDS = [
    "flush map inet coil-eip class4",
    "add element inet coil-eip class4 { 10.0.0.3 : 1:1 }",
    "delete element inet coil-eip class4 { 10.0.0.1 }\nadd element inet coil-eip class4 { 10.0.0.1 : 1:9 }",
    "delete element inet coil-eip cluster4 { 10.0.0.0/8 }",
    "add element inet coil-eip cluster4 { 11.0.0.0-11.0.0.7 }",
    "add element inet coil-eip range4_1 { 1:2 . 10.0.0.0/8 : 7:7 }",
    "add element inet coil-eip range4_1 { 1:2 . 10.0.0.1 : 7:7 }",
    "add element inet coil-eip nodes { 02:00:00:00:00:02 : 7 }",
    "flush map inet coil-eip range6_f",
    "flush set arp coil-eip eips",
    "flush chain inet coil-eip prerouting",
    "insert rule inet coil-eip decided accept",
    "insert rule inet coil-eip prerouting counter drop",
    "add set inet coil-eip more { type ipv4_addr; }",
    "add map inet coil-eip more { type ipv4_addr : mark; }",
    "add counter inet coil-eip more",
    "add chain inet coil-eip more",
    "add chain inet coil-eip more { type filter hook input priority 0; policy drop; }",
    "add chain inet coil-eip more\nadd rule inet coil-eip onward jump more",
    "add chain inet coil-eip onward { policy drop; }",
    "flush table inet coil-eip",
    "delete table inet coil-eip",
    "delete table arp coil-eip",
    "flush ruleset",
    "delete table inet coil-eip\nadd table inet coil-eip\nadd map inet coil-eip class4 { type ipv4_addr : mark; }",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_somebody_else_did_is_mended(
    host: Netns, kept: Kept, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    assert kept.load(SOME)
    before = ruleset(host)
    with library_unread(monkeypatch):
        assert not kept.load(SOME)
        nft(host, command)
        assert ruleset(host) != before
        assert kept.load(SOME)
        # Where nothing is left, what is looked up comes before what leads to it.
        assert len(kept.transactions) == (2 if command == "flush ruleset" else 1)
        assert not kept.load(SOME)
        assert not kept.transactions
    assert ruleset(host) == before
    assert not host.call(lambda: load_elements(TABLES, SOME))


def test_what_an_earlier_process_left(host: Netns, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    host.call(lambda: load_elements(TABLES, SOME))
    assert not kept.load(SOME)
    nft(host, "flush chain inet coil-eip prerouting")
    with library_unread(monkeypatch):
        assert kept.load(SOME)
    assert not host.call(lambda: load_elements(TABLES, SOME))


def test_what_changes_by_itself_is_no_difference(host: Netns, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what others have in tables of their own, even of that name."""
    kept.load(SOME)
    host.call(lambda: refresh_timeouts(TIMEOUTS, 599_900))
    nft(
        host, "add table ip coil-eip\nadd chain ip coil-eip prerouting\nadd table inet other\nadd chain inet other more"
    )
    with library_unread(monkeypatch):
        assert not kept.load(SOME)
        assert "timeout 9m59s900ms" in alive(host)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(worlds(), min_size=2, max_size=4))
def test_the_kernel_has_what_the_index_has(host: Netns, steps: list[World]) -> None:
    """As the library reads it, and as it is read here: after what is changed as elements, and what is only compared."""
    index = DataPlaneIndex(clock=time.monotonic)
    index.set_held([ip_address("203.0.113.50"), ip_address("2001:db8::50"), ip_address("2001:db8::ffff:1:50")])
    with closing(Kept(host)) as kept:
        for place, world in enumerate(steps):
            tell(index, world)
            changes = index.take_changes()
            if place % 2:
                host.call(lambda changes=changes: change_elements(TABLES, changes))  # type: ignore[misc]
            else:
                kept.load(index.elements())
            assert not kept.load(index.elements())
            assert not_empty(host.call(lambda: read_elements(TABLES))) == index.elements()


@pytest.mark.slow
def test_a_hundred_thousand_while_timeouts_are_refreshed(
    host: Netns, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = DataPlaneIndex(clock=time.monotonic)
    index.set_own(GATEWAY_NODE)
    index.set_policies([view(eip=Eip(ipv4=IPv4Address("203.0.113.50"), ipv6=IPv6Address("2001:db8::50")))])
    first = {Family.IPV4: int(IPv4Address("10.0.0.0")), Family.IPV6: int(IPv6Address("fd01::"))}
    sources = [IPv4Address(first[Family.IPV4] + number) for number in range(MANY // 2)]
    more = [IPv6Address(first[Family.IPV6] + number) for number in range(MANY // 2)]
    index.set_sources(REF, dict.fromkeys([*sources, *more], GATEWAY_NODE))
    elements = index.elements()
    assert kept.load(elements)
    with refreshed_timeouts(host) as refreshes, library_unread(monkeypatch):
        for _ in range(LOOKS):
            assert not kept.load(elements)
            if refreshes() > ENOUGH:
                break
        assert refreshes() > ENOUGH, "they were refreshed meanwhile, or this is no proof"

        nft(host, "delete element inet coil-eip class4 { 10.0.0.7 }")
        nft(host, "add element inet coil-eip class6 { fd03::1 : 1:9 }")
        assert kept.load(elements)
        assert kept.transactions == [2]

        nft(host, "insert rule inet coil-eip prerouting accept")
        assert kept.load(elements)
        assert kept.transactions == [0]

        nft(host, "flush map inet coil-eip class4")
        assert kept.load(elements)
        assert sum(kept.transactions) == MANY // 2
        assert max(kept.transactions) == STEP
        assert not kept.load(elements)
    nft(host, "flush ruleset")
    with library_unread(monkeypatch):
        assert kept.load(elements)
    assert not_empty(host.call(lambda: read_elements(TABLES))) == elements


def test_many_ranges_go_at_once(host: Netns, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = crowded_index(range(700)).elements(), crowded_index(range(650, 1300)).elements()
    kept.load(first)
    with library_unread(monkeypatch):
        assert kept.load(second)
        nft(host, "flush chain inet coil-eip prerouting")
        assert kept.load(first)
        assert not kept.load(first)
    assert not_empty(host.call(lambda: read_elements(TABLES))) == first


def test_a_change_that_is_refused_is_made_again(host: Netns, kept: Kept) -> None:
    """What a change has not found is what the comparison finds."""
    kept.load(SOME)
    nft(host, "delete element inet coil-eip class4 { 10.0.0.1 }")
    kept.load({})
    assert host.call(lambda: read_elements(TABLES))[SETS[Family.IPV4].classes] == {}
    host.call(lambda: change_elements(TABLES, ElementChanges(adds=SOME)))
    assert not kept.load(SOME)
