"""What a pod with a port may send, by frames that it makes itself, as one with CAP_NET_RAW can: to a pod of its network
on this node and on another, and to the node.
"""

import asyncio
import errno
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import pytest
import structlog

from coil.kernel.family import IPAddress
from coil.neutron.node_bridge import bridge_name, uplink_name
from coil.neutron.overlay_filter import ACROSS, TO_NODE
from coil.neutron.port_filter import SPOOFED
from integration.kernel_state import KernelState
from integration.netns.eip_world import nft
from integration.netns.forged_packet import (
    ALL_NODES,
    ARP,
    IPV4,
    IPV6,
    advertisement,
    arp,
    icmpv6,
    octets,
    send,
    udp,
)
from integration.netns.netns import Netns, exchange
from integration.netns.port_world import (
    BLUE,
    RED,
    SECONDS,
    PortPod,
    PortWorld,
    counted,
    open_world,
    refused,
    talk,
)
from integration.netns.segment import Ear
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

LOG = structlog.get_logger()
_VLAN, _QINQ, _LLDP = 0x8100, 0x88A8, 0x88CC
_BROADCAST: Final = b"\xff" * 6
MARK: Final = b"the end of what is sent"


@pytest.fixture(params=["0", "1"], ids=["bridge", "bridge-nf"])
async def world(request: pytest.FixtureRequest, new_netns: Callable[[], Netns]) -> AsyncIterator[PortWorld]:
    """Without and with what Kubernetes' installers set: bridged packets pass the node's chains for IP as well."""
    async with open_world(new_netns, log=LOG) as world:
        for node in world.nodes:
            for family in ("iptables", "ip6tables"):
                node.netns.set_sysctl(f"net/bridge/bridge-nf-call-{family}", request.param)
        yield world


@dataclass(frozen=True, slots=True)
class Forger:
    """Makes frames of a pod, for another one. `other` is the address of neither."""

    pod: PortPod
    victim: PortPod

    @property
    def mac(self) -> str:
        return self.pod.binding.port.mac

    def frame(self, kind: int, payload: bytes, *, source: str = "", destination: bytes = b"") -> bytes:
        to = destination or octets(self.victim.binding.port.mac)
        return to + octets(source or self.mac) + struct.pack("!H", kind) + payload

    def tagged(self, tag: int, kind: int, payload: bytes) -> bytes:
        return self.frame(tag, struct.pack("!HH", 7, kind) + payload)


_OTHER4, _OTHER6 = IPv4Address("10.128.0.99"), IPv6Address("fd00:128::99")
_OTHER_MAC = "fa:16:3e:11:00:99"
_FORGED: dict[str, Callable[[Forger], bytes]] = {
    "hardware address": lambda f: f.frame(IPV4, udp(f.pod.ipv4, f.victim.ipv4), source=_OTHER_MAC),
    "hardware address, IPv6": lambda f: f.frame(IPV6, udp(f.pod.ipv6, f.victim.ipv6), source=_OTHER_MAC),
    "IPv4 source": lambda f: f.frame(IPV4, udp(_OTHER4, f.victim.ipv4)),
    "IPv4 source that no host has": lambda f: f.frame(IPV4, udp(IPv4Address(0), f.victim.ipv4)),
    "IPv4 source of the node": lambda f: f.frame(IPV4, udp(IPv4Address("10.128.0.0"), f.victim.ipv4)),
    "IPv6 source": lambda f: f.frame(IPV6, udp(_OTHER6, f.victim.ipv6)),
    "IPv6 source, link-local": lambda f: f.frame(IPV6, udp(IPv6Address("fe80::99"), f.victim.ipv6)),
    "IPv6 source of the node": lambda f: f.frame(IPV6, udp(IPv6Address("fe80::c011"), f.victim.ipv6)),
    "ARP answer for another": lambda f: f.frame(ARP, arp(2, f.mac, _OTHER4, f.victim.ipv4), destination=_BROADCAST),
    "ARP of another's hardware address": lambda f: f.frame(
        ARP, arp(2, _OTHER_MAC, f.pod.ipv4, f.victim.ipv4), destination=_BROADCAST
    ),
    "ARP question of another": lambda f: f.frame(ARP, arp(1, f.mac, f.victim.ipv4, _OTHER4), destination=_BROADCAST),
    "ARP for the node's address": lambda f: f.frame(
        ARP, arp(2, f.mac, IPv4Address("10.128.0.0"), f.victim.ipv4), destination=_BROADCAST
    ),
    "neighbour advertisement for another": lambda f: f.frame(IPV6, advertisement(f.pod.ipv6, _OTHER6, f.mac)),
    "neighbour advertisement for the node": lambda f: f.frame(
        IPV6, advertisement(f.pod.ipv6, IPv6Address("fe80::c011"), f.mac)
    ),
    "router advertisement": lambda f: f.frame(
        IPV6, icmpv6(f.pod.ipv6, ALL_NODES, 134, struct.pack("!BBHII", 64, 0, 1800, 0, 0))
    ),
    "ICMPv6 redirect": lambda f: f.frame(
        IPV6, icmpv6(f.pod.ipv6, f.victim.ipv6, 137, bytes(4) + f.pod.ipv6.packed + _OTHER6.packed)
    ),
    "DHCP server": lambda f: f.frame(IPV4, udp(f.pod.ipv4, f.victim.ipv4, sport=67)),
    "DHCPv6 server": lambda f: f.frame(IPV6, udp(f.pod.ipv6, f.victim.ipv6, sport=547)),
    "VLAN tag": lambda f: f.tagged(_VLAN, IPV4, udp(f.pod.ipv4, f.victim.ipv4)),
    "VLAN tag of a provider": lambda f: f.tagged(_QINQ, IPV4, udp(f.pod.ipv4, f.victim.ipv4)),
    "two VLAN tags": lambda f: f.tagged(_QINQ, _VLAN, struct.pack("!HH", 7, IPV4) + udp(f.pod.ipv4, f.victim.ipv4)),
    "VLAN tag and IPv6": lambda f: f.tagged(_VLAN, IPV6, udp(f.pod.ipv6, f.victim.ipv6)),
    "VLAN tag and ARP": lambda f: f.tagged(_VLAN, ARP, arp(1, f.mac, f.pod.ipv4, f.victim.ipv4)),
    "another protocol": lambda f: f.frame(_LLDP, b"forged"),
    "IEEE 802.3 length": lambda f: f.frame(6, b"forged"),
}


def heard_before_mark(forger: Forger, *frames: bytes) -> list[bytes]:
    """What the victim hears of frames, which are followed by one that may be sent: they keep their order."""
    mark = forger.frame(IPV4, udp(forger.pod.ipv4, forger.victim.ipv4, payload=MARK))
    with Ear(forger.victim.netns) as ear:
        send(forger.pod.netns, *frames, mark)
        heard: list[bytes] = []

        def complete() -> bool:
            heard.extend(ear.frames())
            return any(MARK in each for each in heard)

        wait_until(complete, what="the frame that may be sent", timeout=SECONDS, pause=0.005)
    return [each for each in heard if MARK not in each]


def comes_from(heard: list[bytes], frame: bytes) -> bool:
    """Whether what was sent is among what was heard: the same packet, with a tag or without it."""
    core = frame[14:] if frame[12:14] not in (b"\x81\x00", b"\x88\xa8") else frame[18:]
    return any(core in each for each in heard)


@pytest.mark.parametrize("there", [0, 1], ids=["here", "across"])
async def test_what_is_not_the_ports_is_dropped(world: PortWorld, there: int) -> None:
    pod, victim = await world.pod(0, RED, 5), await world.pod(there, RED, 6)
    # Addresses are known, so that nothing is asked for meanwhile.
    await talk(pod, victim, victim.ipv4)
    node, before = world.nodes[0].netns, counted(world.nodes[0].netns, "bridge", SPOOFED)
    assert await forged_that_arrive(Forger(pod, victim)) == set()
    assert counted(node, "bridge", SPOOFED) == before + len(_FORGED)


async def test_without_the_table_all_of_it_would_arrive(world: PortWorld) -> None:
    """So it is the table that drops it, and these frames are what they are called."""
    pod, victim = await world.pod(0, RED, 5), await world.pod(0, RED, 6)
    await talk(pod, victim, victim.ipv4)
    nft(world.nodes[0].netns, "flush table bridge coil-neutron")
    assert await forged_that_arrive(Forger(pod, victim)) == set(_FORGED)


async def forged_that_arrive(forger: Forger) -> set[str]:
    frames = {name: make(forger) for name, make in _FORGED.items()}
    heard = await asyncio.to_thread(heard_before_mark, forger, *frames.values())
    return {name for name, frame in frames.items() if comes_from(heard, frame)}


async def test_a_pod_speaks_of_its_own_addresses(world: PortWorld) -> None:
    pod, victim = await world.pod(0, RED, 5), await world.pod(1, RED, 6)
    await talk(pod, victim, victim.ipv4)
    forger = Forger(pod, victim)
    [own] = (
        entry["local"] for entry in (pod.netns.link("eth0") or {})["addr_info"] if entry["local"].startswith("fe80:")
    )
    allowed = {
        "ARP question": forger.frame(ARP, arp(1, forger.mac, pod.ipv4, victim.ipv4), destination=_BROADCAST),
        "ARP answer": forger.frame(ARP, arp(2, forger.mac, pod.ipv4, pod.ipv4), destination=_BROADCAST),
        "neighbour advertisement": forger.frame(IPV6, advertisement(pod.ipv6, pod.ipv6, forger.mac)),
        "link-local": forger.frame(IPV6, advertisement(ip_address(own), ip_address(own), forger.mac)),
    }
    for name, frame in allowed.items():
        heard = await asyncio.to_thread(heard_before_mark, forger, frame)
        assert comes_from(heard, frame), name


async def test_a_frame_from_elsewhere_does_not_move_a_pods_hardware_address(world: PortWorld) -> None:
    """A node that is not sound sends it: on that one, the table is emptied."""
    pod, near, far = [await world.pod(node, RED, number) for node, number in ((0, 5), (0, 6), (1, 7))]
    assert await talk(near, pod, pod.ipv4)
    nft(world.nodes[1].netns, "flush table bridge coil-neutron")
    forger = Forger(far, near)
    frame = forger.frame(IPV4, udp(pod.ipv4, near.ipv4), source=pod.binding.port.mac)
    assert comes_from(await asyncio.to_thread(heard_before_mark, forger, frame), frame)
    assert ip_address(await talk(near, pod, pod.ipv4)) == near.ipv4


async def test_a_services_address_does_not_lead_out_of_the_network(world: PortWorld) -> None:
    """kube-proxy of the node translates it in the chains for IP, which bridged packets may pass as well."""
    pod, router, far = await world.pod(0, RED, 5), await world.pod(0, RED, 6), world.nodes[1]
    service = IPv4Address("10.96.0.1")
    nft(
        world.nodes[0].netns,
        "add table ip proxy; add chain ip proxy services { type nat hook prerouting priority dstnat; }; "
        f"add rule ip proxy services ip daddr {service} dnat to {far.host.ipv4}",
    )
    await talk(pod, router, router.ipv4)
    forger = Forger(pod, router)
    packet = udp(pod.ipv4, service, payload=b"to a Service")
    with Ear(far.netns) as ear:
        heard = await asyncio.to_thread(heard_before_mark, forger, forger.frame(IPV4, packet))
        assert comes_from(heard, forger.frame(IPV4, packet)), "the subnet's router gets it as it was sent"
        assert not [frame for frame in ear.frames() if b"to a Service" in frame]


# --- the node


async def node_asks(world: PortWorld, pod: PortPod, address: IPAddress) -> str:
    """Whom the pod sees when its node asks it, as kubelet does."""
    return await asyncio.to_thread(exchange, world.nodes[0].netns, pod.netns, address)


async def test_the_node_reaches_its_own_pods(world: PortWorld) -> None:
    for network, number in ((RED, 5), (BLUE, 6)):
        pod = await world.pod(0, network, number)
        assert ip_address(await node_asks(world, pod, pod.ipv4)) == IPv4Address(
            "10.128.0.0" if network == RED else "10.129.0.0"
        )
        assert (await node_asks(world, pod, pod.ipv6)).partition("%")[0] == "fe80::c011"


async def test_the_node_reaches_its_pods_from_any_address_of_its_own(world: PortWorld) -> None:
    """As what kube-proxy or a hostNetwork pod sends has the node's address."""
    pod, node = await world.pod(0, RED, 5), world.nodes[0]

    def ask(source: IPAddress, address: IPAddress) -> str:
        with pod.netns.socket(address) as listener, node.netns.socket(address) as asking:
            listener.bind((str(address), 0))
            listener.listen()
            asking.bind((str(source), 0))
            asking.connect(listener.getsockname()[:2])
            accepted, peer = listener.accept()
            accepted.close()
            return str(peer[0]).partition("%")[0]

    assert await asyncio.to_thread(ask, node.host.ipv4, pod.ipv4) == "10.128.0.0"
    assert await asyncio.to_thread(ask, node.host.ipv6, pod.ipv6) == "fe80::c011"


def knocks(pod: PortPod, node: Netns, address: IPAddress, via: str = "") -> int:
    """The error with which a connection to the node ends: none is 0. The pod is made to send by its link."""
    target = f"{address}/{address.max_prefixlen}"
    gateway = ("via", via) if via else ()
    pod.netns.ip("route", "replace", target, *gateway, "dev", "eth0", *(("onlink",) if via else ()))
    with node.socket(address) as listener, pod.netns.socket(address) as asking:
        listener.bind((str(address), 0))
        listener.listen()
        asking.settimeout(0.4)
        try:
            asking.connect(listener.getsockname()[:2])
        except TimeoutError:
            return errno.ETIMEDOUT
        except OSError as error:
            return error.errno or -1
        return 0


async def test_pods_reach_neither_their_node_nor_the_underlay(world: PortWorld) -> None:
    pod, node, far = await world.pod(0, RED, 5), world.nodes[0], world.nodes[1]
    assert await node_asks(world, pod, pod.ipv4)
    own_mac = (node.netns.link(bridge_name(RED)) or {})["address"]
    for own in (node.host.ipv4, node.host.ipv6):
        assert await asyncio.to_thread(knocks, pod, node.netns, own) != 0, "asked for it on the link"
    # By a frame to the bridge itself, as if the node were the router.
    via4, via6 = "10.128.0.0", "fe80::c011"
    pod.netns.ip("neighbour", "replace", via4, "lladdr", own_mac, "dev", "eth0", "nud", "permanent")
    pod.netns.ip("neighbour", "replace", via6, "lladdr", own_mac, "dev", "eth0", "nud", "permanent")
    with Ear(far.netns) as ear:
        for target in (node, far):
            assert await asyncio.to_thread(knocks, pod, target.netns, target.host.ipv4, via4) != 0
            assert await asyncio.to_thread(knocks, pod, target.netns, target.host.ipv6, via6) != 0
        heard = ear.frames()
    # By itself: the pod's questions who has these addresses go to the pods of its network, within VXLAN.
    assert not [frame for frame in heard if frame[26:30] == pod.ipv4.packed or frame[22:38] == pod.ipv6.packed]
    # To the address that the node has on the bridge: what it did not begin is dropped.
    before = counted(node.netns, "inet", TO_NODE)
    assert await asyncio.to_thread(knocks, pod, node.netns, IPv4Address(via4)) == errno.ETIMEDOUT
    assert counted(node.netns, "inet", TO_NODE) > before


async def test_nothing_is_routed_between_a_network_and_the_underlay(world: PortWorld) -> None:
    """By whoever has a route to the pods: the node forwards nothing to them."""
    pod, node, far = await world.pod(0, RED, 5), world.nodes[0], world.nodes[1]
    far.netns.ip("route", "replace", f"{pod.ipv4}/32", "via", str(node.host.ipv4))
    far.netns.ip("route", "replace", f"{pod.ipv6}/128", "via", str(node.host.ipv6))
    before = counted(node.netns, "inet", ACROSS)
    for address in (pod.ipv4, pod.ipv6):
        assert await refused(far.netns, pod.netns, address)
    assert counted(node.netns, "inet", ACROSS) >= before + 2


def speak_to_all() -> None:
    """A packet to all hosts on the bridge of the network RED, from the node's own address there."""
    link = bridge_name(RED)
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as speaking:
        speaking.sendto(b"to all", ("ff02::1", 9, 0, socket.if_nametoindex(link)))


async def test_what_the_node_says_on_a_bridge_stays_on_the_node(world: PortWorld) -> None:
    """Each node has the same addresses there: pods must not hear another node's. Their own node tells them, in its own
    time, of the multicast groups of its address; so the way between the nodes is what is listened to.
    """
    pod, far = await world.pod(0, RED, 5), await world.pod(1, RED, 6)
    await talk(pod, far, far.ipv4)
    for netns in (pod.netns, far.netns):
        netns.ip("neighbour", "flush", "dev", "eth0")
    with Ear(world.nodes[1].netns, uplink_name(RED)) as uplink:
        assert await node_asks(world, pod, pod.ipv4)
        assert await node_asks(world, pod, pod.ipv6)
        world.nodes[0].netns.call(speak_to_all)
        await talk(pod, far, far.ipv4)  # sent after all that
        heard = uplink.frames()
    assert any(far.ipv4.packed in frame for frame in heard), "it hears"
    own = (IPv4Address("10.128.0.0").packed, IPv6Address("fe80::c011").packed)
    assert not [frame for frame in heard if any(address in frame for address in own)]


async def test_each_node_reaches_its_own_pod_though_all_have_the_same_address(world: PortWorld) -> None:
    pods = [await world.pod(node, RED, 5 + node) for node in (0, 1)]
    await talk(pods[0], pods[1], pods[1].ipv4)
    for node, pod in zip(world.nodes, pods, strict=True):
        for address in (pod.ipv4, pod.ipv6):
            assert await asyncio.to_thread(exchange, node.netns, pod.netns, address)
    macs = [
        json.loads(KernelState(str(pod.netns.path)).run("ip", "-json", "neighbour", "show", "10.128.0.0"))
        for pod in pods
    ]
    assert macs[0][0]["lladdr"] == macs[1][0]["lladdr"]
