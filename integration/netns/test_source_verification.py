"""Pods send with their own addresses only: what others see on the wire, and the counter."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from ipaddress import ip_address

import pytest
from prometheus_client import CollectorRegistry

from coil.kernel.link import LinkGroup, LinkName
from coil.netlink.host import HostNetwork
from coil.nft.table_sync import read_counters
from coil.podnet.plan import LINK_LOCAL, PodPlan, plan_rules
from coil.podnet.source_table import SPOOFED, TABLE, plan_source_table
from coild.model.watched_table import WatchedTable
from coild.node.source_verification import SourceVerification
from integration.netns.eip_world import nft
from integration.netns.forged_packet import ARP, IPV4, IPV6, advertisement, arp, octets, send, udp
from integration.netns.netns import Netns, exchange, ping
from integration.netns.plans import pod_plan
from integration.netns.segment import Ear
from integration.packet_capture import Capture
from integration.patience import wait_until
from tests.coild.scene import LOG

pytestmark = pytest.mark.kernel

HOST = {4: "198.51.100.1", 6: "fd00:5::1"}
OUTSIDE = {4: "198.51.100.2", 6: "fd00:5::2"}
STRANGER = {4: "203.0.113.9", 6: "2001:db8::9"}
PORT = 4040
both_families = pytest.mark.parametrize("version", [4, 6])


@dataclass
class Node:
    """A node with two pods, and somebody outside who has routes to pods."""

    netns: Netns
    outside: Netns
    network: HostNetwork
    pods: dict[str, Netns]
    plans: dict[str, PodPlan] = field(default_factory=dict)

    async def attach(self, name: str, number: int) -> None:
        self.plans[name] = pod_plan(number)
        await self.network.attach_pod(self.plans[name], self.pods[name].path)

    def address(self, name: str, version: int) -> str:
        found = (assignment.address for assignment in self.plans[name].assignments)
        return next(str(address) for address in found if address.version == version)

    def dropped(self) -> int:
        return self.netns.call(lambda: read_counters(TABLE))[SPOOFED].packets

    def arrivals(self, sender: str, source: str, target: str) -> Collection[str]:
        """The sources of what arrives outside of a packet of the pod, which gives itself any address for it.

        The packet's successor has the pod's own address: when that has arrived, the first has, or never will.
        """
        own = self.address(sender, ip_address(source).version)
        with Capture(self.outside) as wire:
            self.send(sender, source, target)
            self.send(sender, own, target)

            def seen() -> list[str]:
                return [str(packet.source) for packet in wire.packets() if packet.port == PORT]

            wait_until(lambda: own in seen(), what="what it may send arrives")
            return set(seen()) - {own}

    def await_arrival(self, sender: str, source: str, target: str) -> None:
        """A packet of the pod with that source arrives outside."""
        with Capture(self.outside) as wire:
            self.send(sender, source, target)
            wait_until(
                lambda: source in [str(packet.source) for packet in wire.packets() if packet.port == PORT],
                what=f"a packet with the source {source} arrives",
            )

    def send(self, sender: str, source: str, target: str) -> None:
        """A packet of UDP with any source, to the node's end of the pod's link."""
        plan = self.plans[sender]
        packet = udp(ip_address(source), ip_address(target), dport=PORT)
        kind = struct.pack("!H", IPV4 if ip_address(source).version == 4 else IPV6)
        send(self.pods[sender], octets(plan.host.mac) + octets(plan.pod.mac) + kind + packet)


@pytest.fixture
async def node(host: Netns, network: HostNetwork, new_netns: Callable[[], Netns]) -> Node:
    outside = new_netns()
    host.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", outside.name)
    for netns, link, addresses, router in ((host, "uplink", HOST, OUTSIDE), (outside, "eth0", OUTSIDE, HOST)):
        netns.ip("link", "set", link, "up")
        netns.ip("address", "add", f"{addresses[4]}/24", "dev", link)
        netns.ip("address", "add", f"{addresses[6]}/64", "dev", link, "nodad")
        netns.ip("route", "add", "default", "via", router[4])
        netns.ip("-6", "route", "add", "default", "via", router[6])
    await network.ensure_rules(plan_rules())
    made = Node(host, outside, network, {name: new_netns() for name in ("red", "blue")})
    for number, name in enumerate(made.pods, 1):
        await made.attach(name, number)
    return made


@pytest.fixture
async def verified(node: Node) -> AsyncIterator[SourceVerification]:
    async with WatchedTable(plan_source_table(), netns=node.netns.path) as table:
        made = SourceVerification(table, registry=CollectorRegistry(), random=lambda: 0.5, log=LOG)
        await made.prepare()
        yield made


def forged(node: Node, version: int) -> list[str]:
    """Of the other pod, of the node, of somebody outside, of the loopback's network and of a link."""
    local = {4: ["127.0.0.5", "169.254.1.1"], 6: ["fe80::77"]}
    return [node.address("blue", version), HOST[version], OUTSIDE[version], STRANGER[version], *local[version]]


@both_families
async def test_only_its_own_address_leaves_the_node(node: Node, verified: SourceVerification, version: int) -> None:
    for number, source in enumerate(forged(node, version), 1):
        assert node.arrivals("red", source, OUTSIDE[version]) == set(), source
        if not ip_address(source).is_link_local and not ip_address(source).is_loopback:
            assert node.dropped() >= 1, source
        assert node.dropped() <= number


@both_families
async def test_without_the_table_it_would(node: Node, version: int) -> None:
    """So that the test above can fail."""
    for source in (node.address("blue", version), STRANGER[version]):
        node.await_arrival("red", source, OUTSIDE[version])


@both_families
async def test_nor_does_another_pod_or_the_node_get_it(node: Node, verified: SourceVerification, version: int) -> None:
    for target, inside in ((node.address("blue", version), node.pods["blue"]), (HOST[version], node.netns)):
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        listener = inside.call(lambda family=family: socket.socket(family, socket.SOCK_DGRAM))  # type: ignore[misc]
        with listener:
            listener.bind(("::" if version == 6 else "0.0.0.0", PORT))
            listener.settimeout(30)
            node.send("red", STRANGER[version], target)
            node.send("red", node.address("red", version), target)
            assert listener.recvfrom(64)[1][0] == node.address("red", version)


def claim(node: Node, version: int) -> list[bytes]:
    """Frames by which red says that it has the addresses of the other pod, the node, the host outside and the pods'
    gateway: to all on its link, and to the node's end of it.
    """
    plan = node.plans["red"]
    gateway = LINK_LOCAL.ipv4 if version == 4 else LINK_LOCAL.ipv6
    assert gateway is not None
    packets: list[bytes] = []
    for text in (node.address("blue", version), HOST[version], OUTSIDE[version], str(gateway.ip)):
        address = ip_address(text)
        if version == 4:
            packets += [arp(operation, plan.pod.mac, address, address) for operation in (1, 2)]
        else:
            packets += [advertisement(address, address, plan.pod.mac)]
    everyone, kind = ("ff:ff:ff:ff:ff:ff", ARP) if version == 4 else ("33:33:00:00:00:01", IPV6)
    head = octets(plan.pod.mac) + struct.pack("!H", kind)
    return [octets(end) + head + packet for packet in packets for end in (everyone, plan.host.mac)]


@both_families
async def test_no_pod_takes_an_address_by_arp_or_neighbour_discovery(node: Node, version: int) -> None:
    """With the table or without it: a pod is alone on its link, and its node leads by routes to links."""
    red, blue = node.pods["red"], node.pods["blue"]
    own, other = (ip_address(node.address(name, version)) for name in ("red", "blue"))
    with Ear(blue) as at_blue, Capture(red) as at_red:
        send(red, *claim(node, version))
        # What red sends afterwards takes the same way, and has been seen at its end.
        ping(red, str(other))
        heard = at_blue.wait_for(own)
        assert exchange(node.outside, blue, other) == OUTSIDE[version]
        ping(blue, OUTSIDE[version])
        ping(blue, HOST[version])
        seen = [{str(packet.source), str(packet.destination)} for packet in at_red.packets()]
    mac = octets(node.plans["red"].pod.mac)
    assert [frame for frame in heard if mac in frame] == []
    assert [ends for ends in seen if str(other) in ends and ends & {OUTSIDE[version], HOST[version]}] == []


@both_families
async def test_on_a_common_bridge_it_would(node: Node, version: int) -> None:
    """So that the test above can fail."""
    node.netns.ip("link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
    node.netns.ip("link", "set", "bridge", "up")
    for plan in node.plans.values():
        node.netns.ip("link", "set", plan.host.name, "master", "bridge")
    mac = octets(node.plans["red"].pod.mac)
    with Ear(node.pods["blue"]) as at_blue:
        # A port forwards a moment after it has joined.
        def is_heard() -> bool:
            send(node.pods["red"], *claim(node, version))
            return any(mac in frame for frame in at_blue.frames())

        wait_until(is_heard, what="the other pod hears it")


@both_families
async def test_what_a_pod_may_do_goes_on(node: Node, verified: SourceVerification, version: int) -> None:
    """Neighbour discovery from scratch, connections both ways, and duplicate address detection."""
    red, own = node.pods["red"], ip_address(node.address("red", version))
    for name in ("red", "blue"):
        node.pods[name].ip("neighbour", "flush", "dev", "eth0")
    ping(red, OUTSIDE[version])
    ping(red, node.address("blue", version))
    assert exchange(node.outside, red, own) == OUTSIDE[version]
    assert exchange(node.netns, red, own) is not None
    if version == 6:
        red.ip("address", "add", "fe80::abcd/64", "dev", "eth0")

        def is_tentative() -> bool:
            return "tentative" in str(red.read("-6", "address", "show", "dev", "eth0"))

        wait_until(lambda: not is_tentative(), what="the address is the pod's")
    assert node.dropped() == 0


async def test_links_in_each_group_are_verified(node: Node, verified: SourceVerification) -> None:
    link = node.plans["red"].host.name
    for marked in (LinkGroup.UNFINISHED, LinkGroup.POD, LinkGroup.DOOMED):
        node.netns.ip("link", "set", link, "group", str(int(marked)))
        before = node.dropped()
        assert node.arrivals("red", STRANGER[4], OUTSIDE[4]) == set()
        assert node.dropped() == before + 1
    for group in (0, 1, int.from_bytes(b"c0il")):
        node.netns.ip("link", "set", link, "group", str(group))
        node.await_arrival("red", STRANGER[4], OUTSIDE[4])
    await node.network.mark_pod_links([link, LinkName("gone0")])
    assert node.arrivals("red", STRANGER[4], OUTSIDE[4]) == set()


async def test_a_table_that_is_deleted_comes_back(node: Node, verified: SourceVerification) -> None:
    following = asyncio.ensure_future(verified.follow())
    try:
        nft(node.netns, f"delete table inet {TABLE}\n")
        await asyncio.to_thread(
            wait_until, lambda: TABLE in nft(node.netns, "list tables\n"), what="the table is there again"
        )
        assert node.arrivals("red", STRANGER[4], OUTSIDE[4]) == set()
    finally:
        following.cancel()


async def test_it_is_deleted_where_it_is_not_wanted(node: Node, verified: SourceVerification) -> None:
    async with WatchedTable(plan_source_table(), netns=node.netns.path) as table:
        assert await table.delete()
        assert not await table.delete()
    assert TABLE not in nft(node.netns, "list tables\n")
