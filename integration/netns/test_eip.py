"""Floating addresses: on their link, answered for by the kernel, and announced to the hosts on the segment."""

import asyncio
import re
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, ip_address, ip_interface

import pytest

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, MacAddress
from coil.kernel.vxlan import Vxlan
from coil.netlink.arp_responder import ArpResponder, LinkAnswers, open_arp_socket
from coil.netlink.error import NetlinkError
from coil.netlink.overlay import OverlayNetwork
from integration.netns.netns import Netns, exchange
from integration.netns.segment import Ear, Host, Segment
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

EIP4, EIP6 = ip_address("10.1.0.99"), ip_address("fd00:1::99")
EIPS = (EIP4, EIP6)
SOL_PACKET, PACKET_STATISTICS = 263, 6  # linux/socket.h, linux/if_packet.h
FAR4, FAR6 = ip_address("203.0.113.9"), ip_address("2001:db8::9")


@pytest.fixture
def segment(new_netns: Callable[[], Netns]) -> Segment:
    return Segment(new_netns)


@pytest.fixture
def node(segment: Segment) -> Host:
    return segment.host(1)


@pytest.fixture
async def overlay(node: Host) -> AsyncIterator[OverlayNetwork]:
    async with OverlayNetwork(node.netns.path) as overlay:
        await overlay.ensure_eip_device()
        yield overlay


async def ensure_tunnel(overlay: OverlayNetwork, node: Host) -> None:
    vxlan = Vxlan(
        name=LinkName("egress.vxlan"),
        vni=100,
        port=7789,
        mac=MacAddress("0a:00:00:00:00:01"),
        mtu=1450,
        local=node.ipv4,
        parent=LinkName("eth0"),
        addresses=(ip_interface("172.31.0.1/16"),),
    )
    await overlay.ensure_tunnel(vxlan)


def addresses(host: Netns) -> set[str]:
    """All addresses of the link, with their prefix lengths."""
    link = host.link("egress.eip")
    assert link is not None
    assert "UP" in link["flags"]
    return {f"{each['local']}/{each['prefixlen']}" for each in link["addr_info"]}


def proxies(host: Netns) -> set[tuple[str, str, str | None]]:
    entries = host.read("-6", "neighbour", "show", "proxy")
    return {(entry["dst"], entry["dev"], entry.get("protocol")) for entry in entries}


# --- the addresses


async def test_the_link_is_a_dummy_or_else_a_bridge_without_ports(node: Host, overlay: OverlayNetwork) -> None:
    link = node.netns.link("egress.eip")
    assert link is not None
    assert link["linkinfo"]["info_kind"] in ("dummy", "bridge")
    assert addresses(node.netns) == set(), "none that it was not given"
    node.netns.ip("link", "set", "egress.eip", "down")
    await overlay.ensure_eip_device()
    await overlay.ensure_eip_device()
    assert addresses(node.netns) == set()


async def test_exactly_the_addresses_that_are_wanted(node: Host, overlay: OverlayNetwork) -> None:
    routes = [node.netns.read(family, "route", "show", "table", "main") for family in ("-4", "-6")]
    changes = await overlay.sync_eips(EIPS)
    assert set(map(str, changes.added)) == {"10.1.0.99/32", "fd00:1::99/128"} == addresses(node.netns)
    assert changes.removed == ()
    assert not await overlay.sync_eips(EIPS)
    assert [node.netns.read(family, "route", "show", "table", "main") for family in ("-4", "-6")] == routes
    for stranger in ("10.1.0.98/32", "10.1.0.99/24", "198.51.100.1/24", "fd00:1::98/128", "fe80::1/64"):
        node.netns.ip("address", "add", stranger, "dev", "egress.eip")
    node.netns.ip("address", "delete", "fd00:1::99/128", "dev", "egress.eip")
    await overlay.sync_eips([EIP6, FAR4])
    assert addresses(node.netns) == {"fd00:1::99/128", "203.0.113.9/32"}
    gone = await overlay.sync_eips([])
    assert set(map(str, gone.removed)) == {"fd00:1::99/128", "203.0.113.9/32"}
    assert addresses(node.netns) == set()


async def test_in_ipv6_the_links_where_an_address_is_looked_for_answer_for_it(
    node: Host, overlay: OverlayNetwork
) -> None:
    node.netns.ip("-6", "neighbour", "add", "proxy", "fd00:1::77", "dev", "eth0")
    others = {("fd00:1::77", "eth0", None)}
    await overlay.sync_eips([*EIPS, FAR6])
    assert proxies(node.netns) == {("fd00:1::99", "eth0", "30"), *others}, "there is no parent yet"
    await ensure_tunnel(overlay, node)
    await overlay.sync_eips([*EIPS, FAR6])
    assert proxies(node.netns) == {("fd00:1::99", "eth0", "30"), ("2001:db8::9", "eth0", "30"), *others}
    await overlay.sync_eips([EIP4])
    assert proxies(node.netns) == others


@pytest.mark.parametrize("address", EIPS)
async def test_hosts_reach_a_floating_address(
    segment: Segment, node: Host, overlay: OverlayNetwork, address: IPAddress
) -> None:
    client = segment.host(2)
    await overlay.sync_eips(EIPS)
    assert exchange(client.netns, node.netns, address) == str(client.ipv4 if address.version == 4 else client.ipv6)
    assert client.neighbours()[str(address)] == node.mac


# --- announcements


@pytest.mark.parametrize("address", EIPS)
async def test_an_announcement_moves_an_address_that_hosts_know(segment: Segment, address: IPAddress) -> None:
    old, new, client = segment.host(1), segment.host(2), segment.host(3)
    async with OverlayNetwork(old.netns.path) as before, OverlayNetwork(new.netns.path) as after:
        for overlay in (before, after):
            await overlay.ensure_eip_device()
        await before.sync_eips(EIPS)
        exchange(client.netns, old.netns, address)
        assert client.neighbours()[str(address)] == old.mac
        await before.sync_eips([])
        await after.sync_eips(EIPS)
        assert client.neighbours()[str(address)] == old.mac, "nobody has told it"
        await after.announce([address])
        wait_until(lambda: client.neighbours()[str(address)] == new.mac, what="the new hardware address")
        exchange(client.netns, new.netns, address)


async def test_what_an_announcement_consists_of(segment: Segment, node: Host, overlay: OverlayNetwork) -> None:
    listener = segment.host(2)
    await overlay.sync_eips(EIPS)
    with Ear(listener.netns) as ear:
        await overlay.announce(EIPS)
        frames = ear.wait_for(*EIPS)
    announcements = [frame for frame in frames if EIP4.packed in frame or EIP6.packed in frame]
    assert [frame[12:14] for frame in announcements] == [b"\x08\x06", b"\x86\xdd"]
    # From their bytes alone.
    arp, advertisement = announcements
    assert arp[:12].hex(":") == f"ff:ff:ff:ff:ff:ff:{node.mac}"
    assert arp[20:22] == b"\0\1"
    assert (arp[28:32], arp[38:42]) == (EIP4.packed, EIP4.packed)
    assert advertisement[:12].hex(":") == f"33:33:00:00:00:01:{node.mac}"
    assert (advertisement[20], advertisement[21]) == (58, 255)
    assert ip_address(advertisement[22:38]).is_link_local
    assert ip_address(advertisement[38:54]) == ip_address("ff02::1")
    assert (advertisement[54], advertisement[58] & 0xE0) == (136, 0x20)
    assert ip_address(advertisement[62:78]) == EIP6
    assert advertisement[80:86].hex(":") == node.mac


async def test_an_address_of_no_network_is_announced_on_the_parent(
    segment: Segment, node: Host, overlay: OverlayNetwork
) -> None:
    listener = segment.host(2)
    await overlay.sync_eips([FAR4, FAR6])
    with Ear(listener.netns) as ear:
        await overlay.announce([FAR4, FAR6, *EIPS])
        frames = ear.wait_for(*EIPS)
        assert not any(FAR4.packed in frame or FAR6.packed in frame for frame in frames), "on which link?"
        await ensure_tunnel(overlay, node)
        await overlay.announce([FAR4, FAR6])
        frames = ear.wait_for(FAR4, FAR6)
    assert len([frame for frame in frames if FAR4.packed in frame]) == 1
    assert len([frame for frame in frames if FAR6.packed in frame]) == 1


async def test_an_address_is_announced_on_each_link_with_its_network_and_no_other(
    new_netns: Callable[[], Netns], node: Host, overlay: OverlayNetwork
) -> None:
    ears = {}
    for name, address in (("eth1", "10.1.200.1/16"), ("eth2", "10.2.0.1/16")):
        other = new_netns()
        node.netns.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", other.name)
        node.netns.ip("address", "add", address, "dev", name)
        node.netns.ip("link", "set", name, "up")
        other.ip("link", "set", "eth0", "up")
        ears[name] = Ear(other)
    ears["eth0"] = Ear(node.netns)
    last = {"eth0": EIP4, "eth1": EIP4, "eth2": ip_address("10.2.0.99")}
    await overlay.announce([EIP4, last["eth2"]])
    frames = {name: ear.wait_for(last[name]) for name, ear in ears.items()}
    heard = {name: [frame for frame in each if EIP4.packed in frame] for name, each in frames.items()}
    assert {name: len(frames) for name, frames in heard.items()} == {"eth0": 1, "eth1": 1, "eth2": 0}
    assert heard["eth1"][0][6:12] != heard["eth0"][0][6:12], "each with its own hardware address"
    for ear in ears.values():
        ear.__exit__()


async def test_on_excluded_links_nothing_is_announced_nor_answered_for(
    new_netns: Callable[[], Netns], segment: Segment, node: Host
) -> None:
    client, public, other = segment.host(2), new_netns(), ip_address("10.2.0.99")
    node.netns.ip("link", "add", "public", "type", "veth", "peer", "name", "eth0", "netns", public.name)
    node.netns.ip("address", "add", "10.2.0.1/16", "dev", "public")
    node.netns.ip("link", "set", "public", "up")
    public.ip("link", "set", "eth0", "up")
    node.netns.set_sysctl("net/ipv4/conf/all/arp_ignore", "1")
    excluded = (re.compile("th0$"),)
    async with OverlayNetwork(node.netns.path, excluded=excluded) as overlay:
        await overlay.ensure_eip_device()
        await overlay.sync_eips([*EIPS, other])
        assert proxies(node.netns) == set()
        with Ear(client.netns) as near, Ear(public) as far:
            await overlay.announce([*EIPS, other])
            far.wait_for(other)
            await asyncio.to_thread(exchange, client.netns, node.netns, node.ipv4)
            frames = near.wait_for(node.ipv4)
        assert not any(address.packed in frame for frame in frames for address in EIPS)
        async with answering(overlay, {EIP4}):
            assert not await resolves(client, node, EIP4)
            assert not await resolves(client, node, EIP6)


async def test_what_is_held_no_more_is_not_announced(segment: Segment, overlay: OverlayNetwork) -> None:
    listener = segment.host(2)
    await overlay.sync_eips(EIPS)
    asked: list[IPAddress] = []

    def is_held(address: IPAddress) -> bool:
        asked.append(address)
        return address == EIP6

    with Ear(listener.netns) as ear:
        await overlay.announce(EIPS, is_held=is_held)
        frames = ear.wait_for(EIP6)
    assert asked == list(EIPS)
    assert not any(EIP4.packed in frame for frame in frames)


async def test_a_filter_for_output_stops_advertisements(segment: Segment, node: Host, overlay: OverlayNetwork) -> None:
    listener = segment.host(2)
    await overlay.sync_eips(EIPS)
    rules = (
        "table inet fence { chain out { type filter hook output priority 0; icmpv6 type nd-neighbor-advert drop; }; }"
    )
    node.netns.call(lambda: subprocess.run(["nft", rules], check=True, timeout=60))
    with Ear(listener.netns) as ear:
        with pytest.raises(NetlinkError, match=r"cannot announce fd00:1::99 on eth0: .*no filter may be in the way"):
            await overlay.announce([EIP6, EIP4])
        frames = ear.wait_for(EIP4)  # The others were tried.
    assert not any(EIP6.packed in frame for frame in frames)


# --- the node around it


async def test_the_parent_is_the_link_with_the_node_s_address(node: Host, overlay: OverlayNetwork) -> None:
    node.netns.ip("link", "set", "eth0", "mtu", "1400")
    await overlay.sync_eips(EIPS)
    for address in (node.ipv4, node.ipv6):
        parent = await overlay.parent_of(address)
        assert (parent.name, parent.mac, parent.mtu) == ("eth0", node.mac, 1400)
        assert {ip_interface("10.1.0.1/16"), ip_interface("fd00:1::1/64")} <= set(parent.interfaces)
    for other in (EIP4, ip_address("127.0.0.1"), ip_address("10.1.0.2")):
        with pytest.raises(NetlinkError, match=f"no Ethernet link that is up has the node's address {other}"):
            await overlay.parent_of(other)


@pytest.mark.parametrize("holder", ["lo", "node0"])
@pytest.mark.parametrize("version", [4, 6])
async def test_the_parent_of_a_node_that_speaks_bgp_is_the_link_by_which_packets_leave(
    node: Host, overlay: OverlayNetwork, holder: str, version: int
) -> None:
    """Its address is alone on a link by which nothing leaves, and is what other nodes send to."""
    node.netns.ip("link", "set", "eth0", "mtu", "1400")
    if holder != "lo":
        node.netns.ip("link", "add", holder, "type", "bridge")
        node.netns.ip("link", "set", holder, "up")
    own, other = ("198.51.100.7/32", "2001:db8:9::7/128")[:: 1 if version == 4 else -1]
    for address in (own, other):
        node.netns.ip("address", "add", address, "dev", holder)
    hop = ("10.1.0.2", "fd00:1::2")[version == 6]
    with pytest.raises(NetlinkError, match="there is no route to a router"):
        await overlay.parent_of(ip_interface(own).ip)
    for destination in ("default", ("203.0.113.0/24", "2001:db8:8::/64")[version == 6]):
        # It may be told of every network, and have no default route.
        node.netns.ip(f"-{version}", "route", "add", destination, "via", hop, "dev", "eth0")
        parent = await overlay.parent_of(ip_interface(own).ip)
        assert (parent.name, parent.mac, parent.mtu) == ("eth0", node.mac, 1400)
        assert parent.interfaces[:2] == tuple(sorted((ip_interface(own), ip_interface(other)), key=Family.of))
        assert {ip_interface("10.1.0.1/16"), ip_interface("fd00:1::1/64")} <= set(parent.interfaces)
        node.netns.ip(f"-{version}", "route", "delete", destination, "via", hop, "dev", "eth0")


async def test_sysctls_are_written_where_they_differ_and_named_where_they_are_not_ours(
    node: Host, overlay: OverlayNetwork
) -> None:
    for path in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
        node.netns.set_sysctl(path, "0")
    await overlay.ensure_sysctls([Family.IPV4])
    assert node.netns.sysctl("net/ipv6/conf/all/forwarding") == "0"
    await overlay.ensure_sysctls(tuple(Family))
    assert node.netns.sysctl("net/ipv4/ip_forward") == "1"
    assert node.netns.sysctl("net/ipv6/conf/all/forwarding") == "1"
    node.netns.set_sysctl("net/ipv4/conf/eth0/arp_ignore", "1")
    await overlay.sync_eips(EIPS)
    assert node.netns.sysctl("net/ipv4/conf/eth0/arp_ignore") == "0"
    assert node.netns.sysctl("net/ipv6/conf/eth0/proxy_ndp") == "1"
    node.netns.set_sysctl("net/ipv4/conf/all/arp_ignore", "1")
    await overlay.ensure_sysctls([Family.IPV4])
    assert node.netns.sysctl("net/ipv4/conf/all/arp_ignore") == "1", "somebody has set it on purpose"


# --- where the kernel does not answer


@asynccontextmanager
async def answering(overlay: OverlayNetwork, held: Collection[IPAddress]) -> AsyncIterator[None]:
    task = asyncio.create_task(overlay.answer(lambda address: address in held))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def resolves(client: Host, node: Host, address: IPAddress) -> bool:
    """Whether a host that knows nothing yet learns from ARP that the node has the address."""
    client.netns.ip("neighbour", "flush", "dev", "eth0")
    with client.netns.socket(address) as sending:
        sending.connect_ex((str(address), 9))
    known: dict[str, str | None] = {}

    def ended() -> bool:
        entries = {entry["dst"]: entry for entry in client.netns.read("neighbour", "show", "dev", "eth0")}
        entry = entries.get(str(address), {})
        known["mac"] = entry.get("lladdr")
        return known["mac"] is not None or "FAILED" in entry.get("state", ())

    await asyncio.to_thread(wait_until, ended, what=f"an answer for {address}, or none")
    return known["mac"] == node.mac


@pytest.mark.parametrize("level", ["1", "2"])
async def test_with_strict_arp_the_agent_answers_for_what_it_holds(
    segment: Segment, node: Host, overlay: OverlayNetwork, level: str
) -> None:
    client, held = segment.host(2), {EIP4}
    node.netns.set_sysctl("net/ipv4/conf/all/arp_ignore", level)
    await overlay.sync_eips([*EIPS, FAR4])
    assert not await resolves(client, node, EIP4)
    async with answering(overlay, held):
        assert await resolves(client, node, EIP4)
        assert await asyncio.to_thread(exchange, client.netns, node.netns, EIP4) == str(client.ipv4)
        assert await resolves(client, node, node.ipv4), "the kernel answers for what is the link's own"
        held.clear()
        assert not await resolves(client, node, EIP4), "a lease that has lapsed"
        held.add(EIP4)
        assert await resolves(client, node, EIP4)
        await overlay.sync_eips([EIP6])
        assert not await resolves(client, node, EIP4), "it has left"


async def test_what_has_left_is_not_answered_for_though_the_kernel_refuses(
    segment: Segment, node: Host, overlay: OverlayNetwork
) -> None:
    client = segment.host(2)
    node.netns.set_sysctl("net/ipv4/conf/all/arp_ignore", "1")
    await overlay.sync_eips(EIPS)
    async with answering(overlay, EIPS):
        assert await resolves(client, node, EIP4)
        node.netns.ip("link", "delete", "egress.eip")
        with pytest.raises(NetlinkError, match=r"no link egress\.eip"):
            await overlay.sync_eips([EIP6])
        assert not await resolves(client, node, EIP4)


async def test_where_the_kernel_answers_nobody_else_does(segment: Segment, node: Host, overlay: OverlayNetwork) -> None:
    client = segment.host(2)
    node.netns.set_sysctl("net/ipv4/conf/all/arp_ignore", "1")
    await overlay.sync_eips(EIPS)
    node.netns.set_sysctl("net/ipv4/conf/all/arp_ignore", "0")
    await overlay.sync_eips(EIPS)
    async with answering(overlay, ()):
        assert await resolves(client, node, EIP4), "that of the kernel"
    node.netns.set_sysctl("net/ipv4/conf/all/arp_ignore", "1")
    async with answering(overlay, EIPS):
        assert not await resolves(client, node, EIP4), "it has not been told to"


class Listener:
    """A socket for ARP requests, and how many it was given."""

    def __init__(self, node: Host) -> None:
        self.socket = node.netns.call(open_arp_socket)
        self.responder = ArpResponder(self.socket)
        self.count = 0

    def look(self) -> int:
        """The kernel begins its count anew with each look."""
        packets, _ = struct.unpack("=II", self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self.count += packets
        return self.count


@pytest.mark.parametrize("others", [0, 260])
def test_requests_that_are_not_answered_do_not_wake_the_process(node: Host, others: int) -> None:
    """Those of pods, which come by links of their own; and all of them, while nothing is to be answered."""
    mac, addresses = MacAddress("0a:00:00:00:00:01"), frozenset({IPv4Address("10.1.0.99")})
    names = (LinkName("pod"), LinkName("more"))
    for name in names:
        node.netns.ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        for end in (name, f"{name}-end"):
            node.netns.ip("link", "set", end, "up")
    indices = node.netns.call(lambda: {name: socket.if_nametoindex(name) for name in names})
    answers = {name: LinkAnswers(indices[name], mac, addresses) for name in names}
    unused = {LinkName(f"no{number}"): LinkAnswers(10_000 + number, mac, addresses) for number in range(others)}
    sender = node.netns.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
    # A frame is handed to the youngest socket first: what the witness has been given, the other one has, or never will.
    witness, listener = Listener(node), Listener(node)
    with sender, witness.socket, listener.socket:
        witness.responder.set_answers(answers)

        def heard() -> int:
            """Of a request by each of the links."""
            before, wanted = listener.look(), witness.look() + len(names)
            for name in names:
                sender.sendto(arp(node, sender="10.1.0.2", target=EIP4), (f"{name}-end", 0x0806))
            wait_until(lambda: witness.look() >= wanted, what="the requests")
            return listener.look() - before

        assert heard() == 0
        listener.responder.set_answers(unused | {name: answers[name] for name in names[1:]})
        assert heard() == (2 if others else 1), "too many links are not told apart"
        listener.responder.set_answers({})
        assert heard() == 0


def arp(client: Host, *, sender: str, target: IPAddress, operation: int = 1) -> bytes:
    mac = bytes.fromhex(client.mac.replace(":", ""))
    ends = mac + ip_address(sender).packed, bytes(6) + target.packed
    return b"\xff" * 6 + mac + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, operation) + b"".join(ends)


async def test_only_who_asks_for_an_address_is_answered(segment: Segment, node: Host, overlay: OverlayNetwork) -> None:
    client, other = segment.host(2), ip_address("10.1.0.98")
    node.netns.set_sysctl("net/ipv4/conf/all/arp_ignore", "1")
    await overlay.sync_eips(EIPS)
    silent = [
        arp(client, sender=str(EIP4), target=EIP4),
        arp(client, sender=str(client.ipv4), target=other),
        arp(client, sender=str(client.ipv4), target=EIP4, operation=2),
        arp(client, sender=str(client.ipv4), target=EIP4)[:40],
    ]

    def ask() -> bytes:
        with client.netns.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))) as raw:
            raw.settimeout(30)
            raw.bind(("eth0", 0x0806))
            for frame in (*silent, arp(client, sender="0.0.0.0", target=EIP4)):
                raw.send(frame)
            while True:
                frame, (_, _, kind, *_) = raw.recvfrom(64)
                if kind != socket.PACKET_OUTGOING:
                    return bytes(frame)

    async with answering(overlay, EIPS):
        answer = await asyncio.to_thread(ask)
    mac, asked = (bytes.fromhex(host.mac.replace(":", "")) for host in (node, client))
    assert answer[:14] == asked + mac + b"\x08\x06"
    assert answer[20:22] == b"\0\2"
    assert answer[22:42] == mac + EIP4.packed + asked + bytes(4), "RFC 5227: the probe's sender has no address"


# --- what others change


@pytest.mark.parametrize(
    "command",
    [
        "address delete 10.1.0.99/32 dev egress.eip",
        "address add 10.1.0.98/32 dev egress.eip",
        "address delete fd00:1::99/128 dev egress.eip",
        "link set egress.eip down",
        "link delete egress.eip",
        "link delete egress.vxlan",
        "link set egress.vxlan down",
        "link set eth0 down",
        "link set eth0 mtu 1400",
        "address delete 10.1.0.1/16 dev eth0",
        "rule delete priority 1700",
    ],
)
async def test_what_others_change_is_told_of(node: Host, overlay: OverlayNetwork, command: str) -> None:
    await ensure_tunnel(overlay, node)
    await overlay.sync_marks({0x26000200: (ip_address("172.31.0.2"),)})
    await overlay.sync_eips(EIPS)
    # A process that finds all in place has no changes of its own to hear of.
    async with OverlayNetwork(node.netns.path) as later:
        await later.parent_of(node.ipv4)
        await ensure_tunnel(later, node)
        await later.ensure_eip_device()
        node.netns.ip(*command.split())
        await later.changed()


async def test_what_others_change_is_repaired(node: Host, overlay: OverlayNetwork) -> None:
    for spoil in (
        "link delete egress.eip",
        "link set egress.eip down",
        "address flush dev egress.eip",
        "-6 neighbour delete proxy fd00:1::99 dev eth0",
    ):
        await overlay.ensure_eip_device()
        await overlay.sync_eips(EIPS)
        before = addresses(node.netns), proxies(node.netns)
        assert all(before)
        node.netns.ip(*spoil.split())
        await overlay.ensure_eip_device()
        await overlay.sync_eips(EIPS)
        assert (addresses(node.netns), proxies(node.netns)) == before
