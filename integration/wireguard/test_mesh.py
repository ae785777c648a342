"""What goes between two nodes is read by nobody and forged by nobody, and arrives whole."""

import os
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from ipaddress import IPv4Address, ip_address
from itertools import product
from typing import Final

import pytest

from coil.kernel.family import Family
from coil.netlink.overlay import OverlayNetwork
from integration.netns.eip_world import packets
from integration.netns.forged_packet import IPV4, IPV6, octets, udp
from integration.netns.netns import Netns
from integration.netns.segment import Ear, Host, Segment, exchange_marked
from integration.packet_capture import Capture
from integration.patience import wait_until
from integration.vm.run import INSIDE_VARIABLE
from integration.wireguard.mesh_node import ENCRYPTED, PLAIN, PORT, WIREGUARD_PORT, MeshNode, meet_all

pytestmark = pytest.mark.kernel

WORDS: Final = (b"question\n", b"answer\n")
"""What `exchange_marked` says."""
_SECONDS: Final = 60.0
families = pytest.mark.parametrize("family", Family, ids=lambda family: f"inside-{family.name}")
underlays = pytest.mark.parametrize("underlay", Family, ids=lambda family: f"around-{family.name}")


@pytest.fixture(scope="session", autouse=True)
def wireguard() -> None:
    """Skips where the kernel has none, but for the virtual machine, whose kernel has."""
    if shutil.which("modprobe"):
        subprocess.run(["modprobe", "--quiet", "wireguard"], check=False, timeout=_SECONDS)
    command = ["unshare", "--net", "ip", "link", "add", "name", "wg", "type", "wireguard"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        assert INSIDE_VARIABLE not in os.environ, done.stderr
        pytest.skip("this kernel has no WireGuard")


@pytest.fixture
def segment(new_netns: Callable[[], Netns]) -> Segment:
    return Segment(new_netns)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def make_node(
    segment: Segment, stack: AsyncExitStack, number: int, *, underlay: Family = Family.IPV4, plain: bool = False
) -> MeshNode:
    host = segment.host(number)
    host.netns.ip("link", "set", "lo", "up")
    overlay = await stack.enter_async_context(OverlayNetwork(host.netns.path))
    return MeshNode(host, overlay, underlay=underlay, options=PLAIN if plain else ENCRYPTED)


async def make_pair(
    segment: Segment, stack: AsyncExitStack, *, underlay: Family = Family.IPV4, plain: bool = False
) -> tuple[MeshNode, MeshNode]:
    """Two nodes that reach each other."""
    first, second = [await make_node(segment, stack, number, underlay=underlay, plain=plain) for number in (1, 2)]
    await meet_all(first, second)
    first.lead_to(second)
    second.lead_to(first)
    return first, second


def exchange(node: MeshNode, other: MeshNode, family: Family) -> None:
    """A question to the other, and its answer."""
    asking = exchange_marked(node.host.netns, other.host.netns, other.inside(family), mark=0)
    assert asking == str(node.inside(family))


def _datagram() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def say(node: MeshNode, other: MeshNode, word: bytes) -> None:
    """A packet to the other through the tunnel; nobody answers."""
    with node.host.netns.call(_datagram) as asking:
        asking.sendto(word, (str(other.inside(Family.IPV4)), 9))


@families
@underlays
async def test_nobody_on_the_wire_reads_what_is_sent(
    segment: Segment, stack: AsyncExitStack, family: Family, underlay: Family
) -> None:
    first, second = await make_pair(segment, stack, underlay=underlay)
    with Ear(second.host.netns) as wire, Capture(second.host.netns) as capture:
        exchange(first, second, family)
        assert not any(word in frame for word in WORDS for frame in wire.frames())
        wait_until(lambda: any(each.port == WIREGUARD_PORT for each in capture.packets()), what="encrypted packets")
        assert {each.port for each in capture.packets() if each.protocol == socket.IPPROTO_UDP} == {WIREGUARD_PORT}


@families
async def test_without_encryption_everybody_on_the_wire_does(
    segment: Segment, stack: AsyncExitStack, family: Family
) -> None:
    """The test above would tell."""
    first, second = await make_pair(segment, stack, plain=True)
    with Ear(second.host.netns) as wire:
        exchange(first, second, family)
        frames = wire.frames()
    assert all(any(word in frame for frame in frames) for word in WORDS)


@underlays
async def test_what_is_larger_than_a_packet_arrives_whole(
    segment: Segment, stack: AsyncExitStack, underlay: Family
) -> None:
    first, second = await make_pair(segment, stack, underlay=underlay)
    sent = os.urandom(1 << 20)
    for family in Family:
        beyond = second.inside(family)
        with ExitStack() as sockets:
            listener = sockets.enter_context(second.host.netns.socket(beyond))
            connection = sockets.enter_context(first.host.netns.socket(beyond))
            listener.bind((str(beyond), 0))
            listener.listen()
            connection.connect((str(beyond), listener.getsockname()[1]))
            accepted, _ = listener.accept()
            sockets.enter_context(accepted)
            accepted.settimeout(_SECONDS)
            received = bytearray()
            for start in range(0, len(sent), 1 << 14):
                connection.sendall(sent[start : start + (1 << 14)])
                while len(received) < start + (1 << 14):
                    received += accepted.recv(1 << 16)
        assert received == sent, family


def vxlan_of(sender: MeshNode, receiver: MeshNode, packet: bytes) -> bytes:
    """The packet as the one node sends it to the other through the tunnel (RFC 7348)."""
    macs = [octets(node.tunnel.status.tunnel.mac) for node in (receiver, sender)]
    return struct.pack("!II", 0x08000000, 100 << 8) + b"".join(macs) + ether_type(packet) + packet


def ether_type(packet: bytes) -> bytes:
    return struct.pack("!H", IPV4 if packet[0] >> 4 == 4 else IPV6)


def forge(attacker: Host, packet: bytes, *, to: Host) -> None:
    """A packet as it is, to the host's hardware address."""
    frame = octets(to.mac) + octets(attacker.mac) + ether_type(packet) + packet
    with attacker.netns.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) as raw:
        raw.bind(("eth0", 0))
        raw.send(frame)


FORGED: Final = [
    udp(ip_address(source), ip_address(inside), payload=b"forged within")
    for source, inside in (("192.0.2.66", "10.9.0.2"), ("2001:db8::66", "fd09::2"))
]
TUNNEL_ENDS: Final = [
    (ip_address(source), ip_address(destination))
    for source, destination in (("172.31.0.1", "172.31.0.2"), ("fd11::1", "fd11::2"))
]


@pytest.mark.parametrize("plain", [False, True], ids=["encrypted", "plain"])
@underlays
async def test_a_host_that_forges_a_nodes_address_gets_nothing_through(
    segment: Segment, stack: AsyncExitStack, underlay: Family, *, plain: bool
) -> None:
    """To the node's own address, and to those in the tunnel network; without encryption the first ones arrive."""
    first, second = await make_pair(segment, stack, underlay=underlay, plain=plain)
    attacker = segment.host(66)
    for node in (first, second):
        node.load_tables()
    ends = [(first.address, second.address), *([] if plain else TUNNEL_ENDS)]
    with Ear(second.host.netns, "egress.vxlan") as inside:
        for number, (end, packet) in enumerate(product(ends, FORGED), start=1):
            forged = vxlan_of(first, second, packet)
            forge(attacker, udp(*end, sport=9999, dport=PORT, payload=forged), to=second.host)
            if not plain:
                wait_for_drops(second, number)
        say(first, second, b"a packet of the node's")
        heard = inside.wait_for(first.inside(Family.IPV4))
    assert sum(b"forged within" in frame for frame in heard) == (len(FORGED) if plain else 0)


async def test_a_node_whose_key_nobody_knows_gets_nothing_through(segment: Segment, stack: AsyncExitStack) -> None:
    first, second = await make_pair(segment, stack)
    stranger = await make_node(segment, stack, 3)
    await stranger.meet(())
    await stranger.meet([second])
    stranger.lead_to(second)
    with Ear(second.host.netns, "egress.vxlan") as inside, Capture(second.host.netns) as capture:
        say(stranger, second, b"from a stranger")
        wait_until(lambda: any(each.source == stranger.address for each in capture.packets()), what="a handshake")
        say(first, second, b"from a node")
        heard = inside.wait_for(first.inside(Family.IPV4))
    assert any(b"from a node" in frame for frame in heard)
    assert not any(b"from a stranger" in frame for frame in heard)


POD: Final = IPv4Address("10.77.0.2")


def add_pod(node: MeshNode, pod: Netns) -> None:
    netns = node.host.netns
    netns.ip("link", "add", "pod0", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    for end, link, address in ((netns, "pod0", "10.77.0.1/24"), (pod, "eth0", f"{POD}/24")):
        end.ip("address", "add", address, "dev", link)
        end.ip("link", "set", link, "up")
    pod.ip("route", "add", "default", "via", "10.77.0.1")


def wait_for_drops(node: MeshNode, count: int, counter: str = "dropped_foreign") -> None:
    netns = node.host.netns
    wait_until(lambda: packets(netns, "coil-eip")[counter] == count, what=f"{count} packets are dropped")


async def test_what_pods_send_to_the_links_network_stays_on_their_node(
    segment: Segment, stack: AsyncExitStack, new_netns: Callable[[], Netns]
) -> None:
    """What the link carries has IPv4 addresses, whatever those of the Nodes are, and it has no way for others."""
    first, second = await make_pair(segment, stack)
    pod = new_netns()
    add_pod(first, pod)
    first.load_tables()
    with Ear(first.host.netns, "egress.wg") as encrypted, pod.call(_datagram) as plain:
        plain.sendto(b"of a pod", ("172.31.0.2", 9))
        wait_for_drops(first, 1)
        say(first, second, b"of the node")
        heard = encrypted.wait_for(first.inside(Family.IPV4))
    assert any(b"of the node" in frame for frame in heard)
    assert not any(b"of a pod" in frame for frame in heard)


async def test_a_node_that_an_attacker_has_reaches_the_tunnels_of_others_only(
    segment: Segment, stack: AsyncExitStack, new_netns: Callable[[], Netns]
) -> None:
    """It may encrypt what it likes; what is decrypted is neither for the other node's own services nor for its pods."""
    first, second = await make_pair(segment, stack)
    pod = new_netns()
    add_pod(second, pod)
    second.load_tables()
    attacker = first.host.netns
    [peer] = first.wireguard_peers()
    with attacker.call(_datagram) as plain, Ear(second.host.netns, "pod0") as at_pod:
        plain.bind(("172.31.0.1", 0))
        plain.sendto(b"to the node", (str(peer.address), 9))
        wait_for_drops(second, 1)
        with attacker.socket(peer.address) as connection:
            connection.bind(("172.31.0.1", 0))
            connection.setblocking(False)
            connection.connect_ex((str(peer.address), PORT))
        wait_for_drops(second, 2)
        await first.overlay.sync_wireguard_peers([replace(peer, address=POD)])
        plain.sendto(b"to a pod", (str(POD), 9))
        wait_for_drops(second, 3)
        assert not any(b"to a pod" in frame for frame in at_pod.frames())


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
@pytest.mark.parametrize("lost", ["link", "route"])
async def test_nothing_leaves_unencrypted_where_the_way_into_the_link_is_lost(
    segment: Segment, stack: AsyncExitStack, lost: str, *, guarded: bool
) -> None:
    """The node's default route has a way to any address, and so to those in the tunnel network; without the agent's
    tables it is taken.
    """
    first, second = await make_pair(segment, stack)
    if guarded:
        first.load_tables()
    first.host.netns.ip("route", "add", "default", "via", str(second.address))
    if lost == "link":
        first.host.netns.ip("link", "delete", "egress.wg")
    else:
        first.host.netns.ip("route", "delete", "172.31.0.2")
    with Ear(second.host.netns) as wire:
        say(first, second, b"in the clear")
        if guarded:
            wait_for_drops(first, 1, "dropped_closed")
            heard = wire.frames()
        else:
            heard = wire.wait_for(first.inside(Family.IPV4))
    assert any(b"in the clear" in frame for frame in heard) is not guarded


async def test_a_node_that_has_lost_its_key_makes_another_one(segment: Segment, stack: AsyncExitStack) -> None:
    first, second = await make_pair(segment, stack)
    before = second.tunnel.status.tunnel.public_key
    second.host.netns.ip("link", "delete", "egress.wg")
    await second.meet([first], look=True)
    after = second.tunnel.status.tunnel.public_key
    assert after not in ("", before)
    await first.meet([second])
    exchange(first, second, Family.IPV4)


async def test_a_look_changes_nothing_and_a_process_that_starts_anew_keeps_the_key(
    segment: Segment, stack: AsyncExitStack
) -> None:
    first, second = await make_pair(segment, stack)
    key = first.tunnel.status.tunnel.public_key
    restarted = MeshNode(first.host, first.overlay)
    await meet_all(restarted, look=True)
    await restarted.meet([second], look=True)
    assert restarted.tunnel.status.tunnel.public_key == key
    assert not await restarted.overlay.sync_wireguard_peers(restarted.wireguard_peers())
    exchange(first, second, Family.IPV4)


async def test_a_process_that_starts_anew_leaves_a_key_with_the_node_that_had_it(
    segment: Segment, stack: AsyncExitStack
) -> None:
    """Another node, that comes first by its name, names the key."""
    thief, owner, node = [await make_node(segment, stack, number) for number in (1, 2, 3)]
    await meet_all(owner, node)
    await thief.meet(())
    thief.key = owner.tunnel.status.tunnel.public_key
    restarted = MeshNode(node.host, node.overlay)
    await restarted.meet([thief, owner])
    assert [peer.node for peer in restarted.peers] == [owner.name]


async def test_encryption_that_is_switched_off_leaves_nothing_and_so_does_a_clean_up(
    segment: Segment, stack: AsyncExitStack
) -> None:
    first, second = await make_pair(segment, stack)
    plain = MeshNode(first.host, first.overlay, options=PLAIN)
    await plain.meet([second])
    assert plain.peers == ()
    assert first.host.netns.link("egress.wg") is None
    await second.overlay.clean_up()
    assert second.host.netns.link("egress.wg") is None
    assert second.host.netns.read("route", "show", "172.31.0.1") == []
