"""The mesh of the EIP gateways: the tunnel's link, its peers, and the ways by mark, as `ip` and `bridge` see them."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface
from random import Random
from typing import Any

import pytest

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, MacAddress
from coil.kernel.vxlan import OverlayPeer, Vxlan
from coil.netlink.error import NetlinkError
from coil.netlink.ethtool import has_tx_checksum
from coil.netlink.overlay import OverlayNetwork
from integration.netns.netns import Netns
from integration.netns.segment import Ear, Host, Segment, exchange_marked, stable_state

pytestmark = pytest.mark.kernel

ELSEWHERE = {4: ip_address("203.0.113.7"), 6: ip_address("2001:db8::7")}


def tunnel_mac(number: int) -> MacAddress:
    return MacAddress(f"0a:00:00:00:{number >> 8:02x}:{number & 255:02x}")


def tunnel_addresses(number: int) -> tuple[IPAddress, IPAddress]:
    return IPv4Address("172.31.0.0") + number, IPv6Address("fd11::") + number


def mark_of(number: int) -> int:
    return 0x26000000 | number << 8


def vxlan(number: int, *, local: IPAddress, lengths: tuple[int, int] = (16, 112)) -> Vxlan:
    return Vxlan(
        name=LinkName("egress.vxlan"),
        vni=100,
        port=7789,
        mac=tunnel_mac(number),
        mtu=1430,
        local=local,
        parent=LinkName("eth0"),
        addresses=tuple(
            ip_interface(f"{address}/{length}")
            for address, length in zip(tunnel_addresses(number), lengths, strict=True)
        ),
    )


def peer(number: int, underlay: IPAddress | None = None) -> OverlayPeer:
    return OverlayPeer(
        mac=tunnel_mac(number),
        tunnel=tunnel_addresses(number),
        underlay=underlay or IPv4Address("10.1.0.0") + number,
    )


@pytest.fixture
def segment(new_netns: Callable[[], Netns]) -> Segment:
    return Segment(new_netns)


@pytest.fixture
def node(segment: Segment) -> Host:
    return segment.host(1)


@pytest.fixture
async def overlay(node: Host) -> AsyncIterator[OverlayNetwork]:
    async with OverlayNetwork(node.netns.path) as overlay:
        yield overlay


def tunnel(host: Netns) -> dict[str, Any]:
    link = host.link("egress.vxlan")
    assert link is not None
    return link


def forwarding(host: Netns) -> set[tuple[str, str]]:
    """Hardware and underlay addresses of all entries of the tunnel's link."""
    command = ["bridge", "-n", host.name, "-json", "-details", "fdb", "show", "dev", "egress.vxlan"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    entries = json.loads(output)
    assert all((entry["state"], entry["flags"]) == ("permanent", ["self"]) for entry in entries)
    return {(entry["mac"], entry["dst"]) for entry in entries}


def neighbours(host: Netns) -> set[tuple[str, str]]:
    return {
        (entry["dst"], entry["lladdr"])
        for family in ("-4", "-6")
        for entry in host.read(family, "neighbour", "show", "dev", "egress.vxlan", "nud", "permanent")
    }


def known(peers: list[OverlayPeer]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    return (
        {(peer.mac, str(peer.underlay)) for peer in peers},
        {(str(address), peer.mac) for peer in peers for address in peer.tunnel},
    )


def paths(host: Netns, family: str) -> dict[int, tuple[int, str]]:
    """Of each mark with a rule of ours its table and where that leads."""
    found: dict[int, tuple[int, str]] = {}
    routes = {route["table"]: route for route in host.read(family, "route", "show", "table", "all", "proto", "30")}
    for rule in host.read(family, "rule"):
        if (rule["priority"], rule["protocol"]) == (1700, "30"):
            assert "fwmask" not in rule, "all of it"
            route = routes[rule["table"]]
            assert (route["dst"], route["dev"]) == ("default", "egress.vxlan")
            assert "onlink" in route["flags"]
            found[int(rule["fwmark"], 16)] = (int(rule["table"]), route["gateway"])
    return found


def expected_routes(numbers: list[int], family: int) -> dict[int, tuple[int, str]]:
    return {
        mark_of(number): (mark_of(number), str(address))
        for number in numbers
        for address in tunnel_addresses(number)
        if address.version == family
    }


# --- the tunnel's link


@pytest.mark.parametrize("family", Family)
async def test_the_link_is_what_was_asked_for(node: Host, overlay: OverlayNetwork, family: Family) -> None:
    local = node.ipv4 if family is Family.IPV4 else node.ipv6
    assert await overlay.ensure_tunnel(vxlan(1, local=local)) is True
    link = tunnel(node.netns)
    assert (link["address"], link["mtu"], "UP" in link["flags"]) == (tunnel_mac(1), 1430, True)
    data = link["linkinfo"]["info_data"]
    assert link["linkinfo"]["info_kind"] == "vxlan"
    assert (data["id"], data["port"], data["learning"]) == (100, 7789, False)
    assert data.get("local", data.get("local6")) == str(local)
    assert {(each["local"], each["prefixlen"]) for each in link["addr_info"]} == {("172.31.0.1", 16), ("fd11::1", 112)}
    assert node.netns.sysctl("net/ipv4/conf/egress.vxlan/rp_filter") == "2"
    assert await overlay.ensure_tunnel(vxlan(1, local=local)) is False
    assert tunnel(node.netns) == link


async def test_what_can_be_changed_is_changed_in_place(node: Host, overlay: OverlayNetwork) -> None:
    await overlay.ensure_tunnel(vxlan(1, local=node.ipv4))
    await overlay.sync_peers([peer(2)])
    index = tunnel(node.netns)["ifindex"]
    node.netns.ip("address", "add", "10.1.0.201/16", "dev", "eth0")
    for command in (
        "link set egress.vxlan type vxlan learning",
        "link set egress.vxlan address 0a:ff:ff:ff:ff:ff mtu 1280",
        "address flush dev egress.vxlan",
        "address add 198.51.100.1/24 dev egress.vxlan",
    ):
        node.netns.ip(*command.split())
    moved = replace(vxlan(1, local=ip_address("10.1.0.201")), mtu=1400)
    assert await overlay.ensure_tunnel(moved) is False
    link = tunnel(node.netns)
    assert (link["ifindex"], link["address"], link["mtu"]) == (index, tunnel_mac(1), 1400)
    data = link["linkinfo"]["info_data"]
    assert (data["local"], data["learning"]) == ("10.1.0.201", False)
    assert {each["local"] for each in link["addr_info"]} == {"172.31.0.1", "fd11::1"}
    assert forwarding(node.netns) == known([peer(2)])[0]
    node.netns.ip("link", "set", "egress.vxlan", "down")
    assert await overlay.ensure_tunnel(moved) is False
    assert "UP" in tunnel(node.netns)["flags"]


async def test_checksums_inside_are_the_kernel_s_if_so_asked(node: Host, overlay: OverlayNetwork) -> None:
    def offloaded() -> bool:
        return node.netns.call(lambda: has_tx_checksum(LinkName("egress.vxlan")))

    wanted = vxlan(1, local=node.ipv4)
    without = replace(wanted, checksum_offload=False)
    await overlay.ensure_tunnel(wanted)
    assert offloaded()
    for _ in range(2):
        await overlay.ensure_tunnel(without)
        assert not offloaded()
    # Who has switched it off by other means is left alone.
    await overlay.ensure_tunnel(wanted)
    assert not offloaded()
    node.netns.ip("link", "delete", "egress.vxlan")
    await overlay.ensure_tunnel(without)
    assert not offloaded()
    with pytest.raises(NetlinkError, match=r"checksum offload of nosuch: No such device"):
        node.netns.call(lambda: has_tx_checksum(LinkName("nosuch")))


@pytest.mark.parametrize(
    "options",
    ["id 101 dstport 7789 local 10.1.0.1", "id 100 dstport 4789 local 10.1.0.1", "id 100 dstport 7789 local fd00:1::1"],
)
async def test_a_link_that_cannot_be_changed_is_made_anew(node: Host, overlay: OverlayNetwork, options: str) -> None:
    node.netns.ip("link", "add", "egress.vxlan", "type", "vxlan", *options.split())
    index = tunnel(node.netns)["ifindex"]
    assert await overlay.ensure_tunnel(vxlan(1, local=node.ipv4)) is True
    assert tunnel(node.netns)["ifindex"] != index
    assert await overlay.ensure_tunnel(vxlan(1, local=node.ipv4)) is False


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("link add egress.vxlan type bridge", r"no VXLAN \(bridge\).*ip link delete egress.vxlan"),
        ("link add other type vxlan id 100 dstport 7789 local 10.1.0.1", "another link has VNI 100 on port 7789"),
    ],
)
async def test_somebody_else_s_link_is_told_of_and_left(
    node: Host, overlay: OverlayNetwork, link: str, words: str
) -> None:
    node.netns.ip(*link.split())
    before = node.netns.link_names()
    with pytest.raises(NetlinkError, match=words):
        await overlay.ensure_tunnel(vxlan(1, local=node.ipv4))
    assert node.netns.link_names() == before


# --- peers


@pytest.mark.parametrize("seed", range(3))
async def test_peers_converge_from_any_start(node: Host, overlay: OverlayNetwork, seed: int) -> None:
    random = Random(seed)
    await overlay.ensure_tunnel(vxlan(1, local=node.ipv4))
    for command in (
        "fdb append 00:00:00:00:00:00 dev egress.vxlan dst 10.1.0.77 self permanent",
        "fdb add 0a:00:00:00:00:03 dev egress.vxlan dst 10.1.0.78 self permanent",
        "fdb append 0a:00:00:00:00:04 dev egress.vxlan dst 10.1.0.4 self permanent",
        "fdb append 0a:00:00:00:00:04 dev egress.vxlan dst 10.1.0.79 self permanent",
    ):
        # An all-zeros entry may have several remotes, any other only by way of `append`, which the kernel may refuse.
        subprocess.run(
            ["bridge", "-n", node.netns.name, *command.split()], capture_output=True, check=False, timeout=10
        )
    node.netns.ip("neighbour", "add", "172.31.0.3", "lladdr", "0a:ff:ff:ff:ff:ff", "dev", "egress.vxlan")
    node.netns.ip("neighbour", "add", "172.31.9.9", "lladdr", "0a:ff:ff:ff:ff:ff", "dev", "egress.vxlan")
    node.netns.ip("neighbour", "add", "10.1.0.99", "lladdr", "0a:ff:ff:ff:ff:ff", "dev", "eth0")
    for _ in range(6):
        numbers = random.sample(range(2, 30), random.randrange(1, 20))
        wanted = [peer(number, IPv4Address("10.1.0.0") + random.randrange(2, 250)) for number in numbers]
        await overlay.sync_peers(wanted)
        assert (forwarding(node.netns), neighbours(node.netns)) == known(wanted)
        assert not await overlay.sync_peers(wanted)
    assert node.neighbours()["10.1.0.99"] == "0a:ff:ff:ff:ff:ff", "on another link, so not ours"
    await overlay.sync_peers([])
    assert (forwarding(node.netns), neighbours(node.netns)) == (set(), set())


async def test_a_thousand_peers_and_their_marks_are_as_exact_as_one(node: Host, overlay: OverlayNetwork) -> None:
    await overlay.ensure_tunnel(vxlan(1, local=node.ipv4))
    numbers = list(range(2, 1002))
    wanted = [peer(number) for number in numbers]
    changes = await overlay.sync_peers(wanted)
    assert (len(changes.entry_puts), len(changes.neighbour_puts)) == (1000, 2000)
    assert (forwarding(node.netns), neighbours(node.netns)) == known(wanted)
    await overlay.sync_marks({mark_of(number): tunnel_addresses(number) for number in numbers})
    assert paths(node.netns, "-4") == expected_routes(numbers, 4)
    assert paths(node.netns, "-6") == expected_routes(numbers, 6)
    fewer = await overlay.sync_peers(wanted[1:])
    assert (len(fewer.entry_deletes), len(fewer.neighbour_deletes), len(fewer.entry_puts)) == (1, 2, 0)
    less = await overlay.sync_marks({mark_of(number): tunnel_addresses(number) for number in numbers[1:]})
    assert (len(less.rules.deletes), len(less.deletes), len(less.rules.adds), len(less.puts)) == (2, 2, 0, 0)


async def test_without_the_link_there_is_nothing_to_synchronise(overlay: OverlayNetwork) -> None:
    with pytest.raises(NetlinkError, match=r"there is no link egress\.vxlan"):
        await overlay.sync_peers([peer(2)])
    with pytest.raises(NetlinkError, match=r"there is no link egress\.vxlan"):
        await overlay.sync_marks({})
    with pytest.raises(NetlinkError, match=r"there is no link egress\.eip"):
        await overlay.sync_eips([])
    with pytest.raises(ValueError, match=r"is egress\.vxlan, not other"):
        await overlay.ensure_tunnel(replace(vxlan(1, local=ip_address("10.1.0.1")), name=LinkName("other")))


# --- marks


@pytest.mark.parametrize("seed", range(2))
async def test_marks_converge_and_others_rules_and_routes_stay(node: Host, overlay: OverlayNetwork, seed: int) -> None:
    random = Random(seed)
    await overlay.ensure_tunnel(vxlan(1, local=node.ipv4, lengths=(32, 128)))
    others = (
        "rule add priority 1700 fwmark 0x5 table 5 protocol 31",
        "rule add priority 1800 to 169.254.0.0/16 table 254 protocol 30",
        "rule add priority 2000 table 116 protocol 30",
        "route add 192.0.2.0/24 dev egress.vxlan table 637534720 protocol 31",
    )
    before = stable_state(node.netns)
    for command in others:
        node.netns.ip(*command.split())
    foreign = node.netns.read("rule"), node.netns.read("route", "show", "table", "all", "proto", "31")
    # What an earlier process left: a mark that leads elsewhere, a rule without a table, a table without a rule.
    for command in (
        f"rule add priority 1700 fwmark {mark_of(3):#x} table {mark_of(4)} protocol 30",
        f"rule add priority 1700 fwmark {mark_of(9):#x} table {mark_of(9)} protocol 30",
        f"route add default via 172.31.0.88 dev egress.vxlan onlink table {mark_of(3)} protocol 30",
        f"route add default via 172.31.0.89 dev egress.vxlan onlink table {mark_of(99)} protocol 30",
        f"-6 route add default via fd11::89 dev egress.vxlan onlink table {mark_of(99)} protocol 30",
    ):
        node.netns.ip(*command.split())
    numbers: list[int] = []
    for _ in range(4):
        numbers = random.sample(range(2, 12), random.randrange(1, 8))
        wanted = {mark_of(number): tunnel_addresses(number) for number in numbers}
        await overlay.sync_marks(wanted)
        for family in (4, 6):
            assert paths(node.netns, f"-{family}") == expected_routes(numbers, family)
        assert not await overlay.sync_marks(wanted)
    tables = {route["table"] for route in node.netns.read("route", "show", "table", "all", "proto", "30")}
    assert tables == {str(mark_of(number)) for number in numbers}, "no table without a rule"
    await overlay.sync_marks({})
    assert (node.netns.read("rule"), node.netns.read("route", "show", "table", "all", "proto", "31")) == foreign
    for command in others:
        node.netns.ip(*command.replace(" add ", " delete ").split())
    assert stable_state(node.netns) == before


@pytest.mark.parametrize("family", ["-4", "-6"])
async def test_routes_of_marks_that_others_flush_are_told(node: Host, overlay: OverlayNetwork, family: str) -> None:
    """As a daemon does it that knows no routes but its own."""
    await overlay.ensure_tunnel(vxlan(1, local=node.ipv4))
    marks = {mark_of(number): tunnel_addresses(number) for number in (2, 3)}
    await overlay.sync_marks(marks)
    with suppress(TimeoutError):
        while True:  # our own changes are told as well
            async with asyncio.timeout(0.5):
                await overlay.changed()
    node.netns.ip(family, "route", "flush", "table", str(mark_of(2)))
    async with asyncio.timeout(60):
        await overlay.changed()
    assert len((await overlay.sync_marks(marks)).puts) == 1


async def test_packets_without_a_mark_of_another_node_skip_the_marks(node: Host, overlay: OverlayNetwork) -> None:
    await overlay.ensure_tunnel(vxlan(1, local=node.ipv4))
    for _ in range(2):
        await overlay.sync_marks({mark_of(2): tunnel_addresses(2)})
        for family in ("-4", "-6"):
            gates = [rule for rule in node.netns.read(family, "rule") if rule["priority"] in (1699, 1701)]
            assert [(rule.get("goto"), rule.get("fwmark"), "not" in rule) for rule in gates] == [
                (1701, "0x26000000", True),
                (1701, "0x26000000", False),
                (None, None, False),
            ]
        # Somebody takes one away: the next comparison puts it back.
        node.netns.ip("rule", "delete", "priority", "1701")
    for mark, device in ((mark_of(2), "egress.vxlan"), (0, "eth0"), (0x26000000, "eth0"), (0x12000000, "eth0")):
        node.netns.ip("route", "replace", "default", "via", "10.1.0.250")
        found = node.netns.read("route", "get", "203.0.113.9", "mark", hex(mark))
        assert found[0]["dev"] == device


# --- packets


@pytest.mark.parametrize("underlay", Family)
@pytest.mark.parametrize("lengths", [(16, 112), (32, 128)])
async def test_marked_packets_reach_the_peer_through_the_tunnel(
    segment: Segment, underlay: Family, lengths: tuple[int, int]
) -> None:
    nodes = [segment.host(1), segment.host(2)]
    overlays = [OverlayNetwork(host.netns.path) for host in nodes]
    around = {host.number: host.ipv4 if underlay is Family.IPV4 else host.ipv6 for host in nodes}
    async with overlays[0], overlays[1]:
        for overlay, host, other in zip(overlays, nodes, reversed(nodes), strict=True):
            await overlay.ensure_tunnel(vxlan(host.number, local=around[host.number], lengths=lengths))
            await overlay.sync_peers([peer(other.number, around[other.number])])
            await overlay.sync_marks({mark_of(other.number): tunnel_addresses(other.number)})
            # The way back, which in the whole is that of a connection's mark.
            for address in tunnel_addresses(other.number):
                host.netns.ip("route", "replace", str(address), "dev", "egress.vxlan")
        client, server = (host.netns for host in nodes)
        # What wraps a packet keeps its mark, so it must not be a node's: else that were sent into the tunnel, too.
        for command in (
            "add table inet marks",
            "add chain inet marks out { type filter hook postrouting priority 0; }",
            "add rule inet marks out oifname egress.vxlan meta mark set 0x12000000",
        ):
            client.call(partial(subprocess.run, ["nft", command], check=True, timeout=60))
        # As on any node: the loose reverse path filter wants some way to where a packet comes from.
        client.ip("route", "add", "default", "via", "10.1.0.250")
        for address in ELSEWHERE.values():
            server.ip("address", "add", f"{address}/{address.max_prefixlen}", "dev", "lo")
            with Ear(client) as outside, Ear(client, "egress.vxlan") as inside:
                source = exchange_marked(client, server, address, mark=mark_of(2))
                assert ip_address(source) in tunnel_addresses(1)
                assert all(tunnel_mac(1) in (_mac(frame, 0), _mac(frame, 6)) for frame in inside.frames())
                assert not any(address.packed in frame[14:54] for frame in outside.frames()), "but in the tunnel"


def _mac(frame: bytes, offset: int) -> str:
    return frame[offset : offset + 6].hex(":")


# --- the end of it


async def test_cleaning_up_leaves_no_trace_and_takes_nothing_else(node: Host, overlay: OverlayNetwork) -> None:
    node.netns.ip("rule", "add", "priority", "1700", "fwmark", "0x5", "table", "5", "protocol", "31")
    node.netns.ip("-6", "neighbour", "add", "proxy", "fd00:1::77", "dev", "eth0")
    before = stable_state(node.netns), node.netns.read("-6", "neighbour", "show", "proxy")
    for _ in range(2):
        await overlay.ensure_sysctls(tuple(Family))
        await overlay.ensure_tunnel(vxlan(1, local=node.ipv4))
        await overlay.sync_peers([peer(number) for number in range(2, 30)])
        await overlay.sync_marks({mark_of(number): tunnel_addresses(number) for number in range(2, 30)})
        await overlay.ensure_eip_device()
        await overlay.sync_eips([ip_address("10.1.0.99"), ip_address("fd00:1::99"), ip_address("203.0.113.9")])
        await overlay.clean_up()
        assert (stable_state(node.netns), node.netns.read("-6", "neighbour", "show", "proxy")) == before
        await overlay.clean_up()


async def test_links_of_our_names_that_are_no_links_of_ours_are_not_cleaned_up(
    node: Host, overlay: OverlayNetwork
) -> None:
    node.netns.ip("link", "add", "egress.vxlan", "type", "bridge")
    node.netns.ip("link", "add", "egress.eip", "type", "vxlan", "id", "5", "dstport", "4789", "local", "10.1.0.1")
    await overlay.clean_up()
    assert {"egress.vxlan", "egress.eip"} <= node.netns.link_names()
    with pytest.raises(NetlinkError, match=r"neither of dummy and bridge.*ip link delete egress\.eip"):
        await overlay.ensure_eip_device()
