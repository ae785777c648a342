"""Our nftables tables in the kernel: written once, changed in one transaction, and doing what they are for. The oracle
is `nft`, and what sockets see.
"""

import json
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coil.egress.gateway import UPLINK
from coil.egress.router_plan import plan_table
from coil.kernel.nft_table import ChainType, Hook, NftChain, NftTable, Priority, Verdict
from coil.nft.netfilter import NftError
from coil.nft.table_sync import CounterValue, delete_table, read_counters, sync_table
from integration.netns.forged_packet import impossible_tcp
from integration.netns.netns import Netns
from tests.coil.nft.tables import CLIENT, ENI, ENI_PORTS, IPV4_ROUTER, MOVED_ROUTER, ROUTER, nft_tables

pytestmark = pytest.mark.kernel

_SECONDS = 60.0


def nft(netns: Netns, *arguments: str) -> str:
    """What `nft` says inside."""
    command = ["ip", "netns", "exec", netns.name, "nft", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS).stdout


def rules(netns: Netns, table: str) -> dict[str, list[str]]:
    """The lines of each chain of a table, as `nft` prints them."""
    chains: dict[str, list[str]] = {}
    chain = ""
    for line in map(str.strip, nft(netns, "--stateless", "list", "table", "inet", table).splitlines()):
        if line.startswith("chain"):
            chain = line.split()[1]
            chains[chain] = []
        elif chain and line not in {"", "}"}:
            chains[chain].append(line)
    return chains


def sync(netns: Netns, table: NftTable) -> bool:
    return netns.call(lambda: sync_table(table))


def test_a_routers_table(host: Netns) -> None:
    assert sync(host, ROUTER)
    assert rules(host, "coil_router") == {
        "from_tunnels": [
            "ip daddr 224.0.0.0/4 drop",
            "iifname . ip saddr @clients_ipv4 ip daddr @destinations_ipv4 return",
            'iifname . ip saddr @clients_ipv4 counter name "other_destination_ipv4" drop',
            'meta nfproto ipv4 counter name "unknown_client_ipv4" drop',
            "ip6 daddr ff00::/8 drop",
            "iifname . ip6 saddr @clients_ipv6 ip6 daddr @destinations_ipv6 return",
            'iifname . ip6 saddr @clients_ipv6 counter name "other_destination_ipv6" drop',
            'meta nfproto ipv6 counter name "unknown_client_ipv6" drop',
            "drop",
        ],
        "prerouting": [
            "type filter hook prerouting priority raw; policy accept;",
            "meta iiftype ipip jump from_tunnels",
            "meta iiftype ipip6 jump from_tunnels",
        ],
        "forward": [
            "type filter hook forward priority filter; policy accept;",
            'meta nfproto ipv4 ct state invalid counter name "invalid_ipv4" drop',
            'meta nfproto ipv6 ct state invalid counter name "invalid_ipv6" drop',
            'oifname "eth0" ip saddr != 10.64.0.3 counter name "masqueraded_ipv4"',
            'oifname "eth0" ip6 saddr != fd64::3 counter name "masqueraded_ipv6"',
        ],
        "postrouting": [
            "type nat hook postrouting priority srcnat; policy accept;",
            'oifname "eth0" ip saddr != 10.64.0.3 masquerade',
            'oifname "eth0" ip6 saddr != fd64::3 masquerade',
        ],
    }


def test_a_clients_table(host: Netns) -> None:
    assert sync(host, CLIENT)
    assert rules(host, "coil_client") == {
        "input": [
            "type filter hook input priority mangle; policy accept;",
            'iifname "eth0" ct state new ct mark set 0x00000002',
        ],
        "output": [
            "type route hook output priority mangle; policy accept;",
            "ct mark 0x00000002 meta mark set ct mark",
        ],
    }


@pytest.mark.parametrize("table", [ROUTER, CLIENT, ENI, *ENI_PORTS])
def test_what_is_right_is_not_touched(host: Netns, table: NftTable) -> None:
    sync(host, table)
    before = nft(host, "--handle", "list", "ruleset")
    assert not sync(host, table)
    assert nft(host, "--handle", "list", "ruleset") == before


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(tables=st.lists(nft_tables(), min_size=2, max_size=4))
def test_any_table_becomes_any_other_and_then_stays(host: Netns, tables: list[NftTable]) -> None:
    for table in tables:
        sync(host, table)
        assert not sync(host, table)
    listing = stateless(host)
    host.call(lambda: delete_table("coil_test"))
    sync(host, tables[-1])
    assert listing == stateless(host)


def stateless(netns: Netns) -> list[str]:
    """The table as `nft -j` has it, without handles and in an order of its own."""
    entries = json.loads(nft(netns, "--json", "list", "table", "inet", "coil_test"))["nftables"]
    kept = [
        {
            kind: {key: value for key, value in content.items() if key not in {"handle", "packets", "bytes"}}
            for kind, content in entry.items()
        }
        for entry in entries
    ]
    chains = sorted({entry["rule"]["chain"] for entry in kept if "rule" in entry})
    ordered = [entry for chain in chains for entry in kept if entry.get("rule", {}).get("chain") == chain]
    return [json.dumps(entry) for entry in ordered] + sorted(json.dumps(entry) for entry in kept if "rule" not in entry)


def test_what_somebody_else_did_to_it_is_mended(host: Netns) -> None:
    sync(host, ROUTER)
    before = rules(host, "coil_router")
    for command in (
        "flush chain inet coil_router forward",
        "add rule inet coil_router postrouting drop",
        "add chain inet coil_router other",
        "flush table inet coil_router",
        "delete table inet coil_router",
    ):
        nft(host, *command.split())
        assert sync(host, ROUTER)
        assert rules(host, "coil_router") == before


def test_other_tables_are_left_alone(host: Netns) -> None:
    for family in ("inet", "ip"):
        nft(host, "add", "table", family, "coil_other")
    sync(host, ROUTER)
    assert host.call(lambda: delete_table("coil_router"))
    assert not host.call(lambda: delete_table("coil_router"))
    assert nft(host, "list", "tables").split() == ["table", "inet", "coil_other", "table", "ip", "coil_other"]


def test_a_table_of_our_name_in_another_family_is_another(host: Netns) -> None:
    nft(host, "add", "table", "ip", "coil_router")
    assert not host.call(lambda: delete_table("coil_router"))
    assert sync(host, ROUTER)
    assert not sync(host, ROUTER)


def test_a_refusal_says_what_and_why_and_changes_nothing(host: Netns) -> None:
    sync(host, ROUTER)
    before = nft(host, "list", "ruleset")
    impossible = NftChain(
        name="forward",
        type=ChainType.FILTER,
        hook=Hook.FORWARD,
        priority=Priority.FILTER,
        rules=((Verdict.MASQUERADE,),),
    )
    with pytest.raises(NftError, match=r"write table inet coil_router: .*not supported"):
        sync(host, NftTable(name="coil_router", chains=(impossible,)))
    assert nft(host, "list", "ruleset") == before


def test_counters_of_a_table_that_is_not_there(host: Netns) -> None:
    with pytest.raises(NftError, match="read the counters of table inet coil_router: there is no such table"):
        host.call(lambda: read_counters("coil_router"))


def test_threads_in_different_namespaces_do_not_disturb_each_other(new_netns: Callable[[], Netns]) -> None:
    namespaces = [new_netns() for _ in range(4)]
    tables = (ROUTER, IPV4_ROUTER, MOVED_ROUTER)

    def work(number: int) -> None:
        for turn in range(12):
            table = tables[(number + turn) % 3]
            sync(namespaces[number], table)
            counted = namespaces[number].call(lambda: read_counters("coil_router"))
            assert counted.keys() == set(table.counters)

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(work, range(4)))
    for number, netns in enumerate(namespaces):
        assert not sync(netns, tables[(number + 11) % 3])


@pytest.fixture
def routed(host: Netns, new_netns: Callable[[], Netns]) -> tuple[Netns, Netns, Netns]:
    """inside, router (this is `host`), outside; the router's uplink eth0 leads to the outside."""
    inside, outside = new_netns(), new_netns()
    for end, name, number in ((inside, "in0", 1), (outside, "eth0", 2)):
        host.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", end.name)
        for netns, link, last in ((host, name, 3), (end, "eth0", 9)):
            netns.ip("link", "set", link, "up")
            netns.ip("address", "add", f"10.{number}.0.{last}/24", "dev", link)
            netns.ip("address", "add", f"fd0{number}::{last}/64", "dev", link, "nodad")
    for version, gateway in (("-4", "10.1.0.3"), ("-6", "fd01::3")):
        inside.ip(version, "route", "add", "default", "via", gateway)
    host.set_sysctl("net/ipv4/ip_forward", "1")
    host.set_sysctl("net/ipv6/conf/all/forwarding", "1")
    return inside, host, outside


def datagram_socket(netns: Netns, version: int) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    made = netns.call(lambda: socket.socket(family, socket.SOCK_DGRAM))
    made.settimeout(_SECONDS)
    return made


@pytest.mark.parametrize("address", ["10.2.0.9", "fd02::9"])
def test_what_is_forwarded_is_masqueraded_and_counted(routed: tuple[Netns, Netns, Netns], address: str) -> None:
    inside, router, outside = routed
    table = router_table("10.2.0.3", "fd02::3")
    sync(router, table)
    version = ip_address(address).version
    with datagram_socket(inside, version) as asking, datagram_socket(outside, version) as answering:
        answering.bind((address, 7))
        seen: set[str] = set()
        for _ in range(3):
            asking.sendto(b"question", (address, 7))
            question, peer = answering.recvfrom(64)
            seen.add(peer[0])
            answering.sendto(question, peer)
            asking.recv(64)
    assert seen == {"10.2.0.3" if version == 4 else "fd02::3"}
    size = 3 * ((20 if version == 4 else 40) + 8 + len(b"question"))
    counters = router.call(lambda: read_counters("coil_router"))
    assert counters.pop(f"masqueraded_ipv{version}") == CounterValue(3, size)
    assert set(counters.values()) == {CounterValue(0, 0)}
    assert not sync(router, table)


def router_table(*addresses: str) -> NftTable:
    return plan_table([ip_address(address) for address in addresses], UPLINK)


def test_what_the_router_itself_sends_is_not_masqueraded(routed: tuple[Netns, Netns, Netns]) -> None:
    _, router, outside = routed
    sync(router, router_table("10.2.0.3", "fd02::3"))
    with datagram_socket(router, 4) as asking, datagram_socket(outside, 4) as answering:
        answering.bind(("10.2.0.9", 7))
        asking.bind(("10.2.0.3", 4321))
        asking.sendto(b"question", ("10.2.0.9", 7))
        assert answering.recvfrom(64)[1] == ("10.2.0.3", 4321)
    assert router.call(lambda: read_counters("coil_router"))["masqueraded_ipv4"] == CounterValue(0, 0)


def test_what_belongs_to_no_connection_is_dropped_and_counted(routed: tuple[Netns, Netns, Netns]) -> None:
    inside, router, _ = routed
    sync(router, router_table("10.2.0.3", "fd02::3"))
    with inside.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)) as raw:
        raw.sendto(impossible_tcp(ip_address("10.1.0.9"), ip_address("10.2.0.9")), ("10.2.0.9", 0))
    counted = router.call(lambda: read_counters("coil_router"))
    assert counted["invalid_ipv4"] == CounterValue(1, 40)
    assert counted["masqueraded_ipv4"] == CounterValue(0, 0)
