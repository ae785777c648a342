"""Networks of ports in the kernel, with traffic: pods of a network reach each other across nodes, and nobody else."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
import structlog

from coil.kernel.family import IPAddress
from coil.kernel.link import ParentLink
from coil.netlink.connection import Connection
from coil.netlink.error import BusyError
from coil.netlink.port_network import read_node_links
from coil.neutron.node_bridge import bridge_name, uplink_name
from coil.neutron.overlay_filter import STRANGERS
from coil.neutron.underlay import Underlay
from coild.model.port_error import BindError
from coild.settings import VXLAN_PORT
from integration.kernel_state import KernelState
from integration.netns.netns import Netns
from integration.netns.port_world import (
    BLUE,
    MTU,
    RED,
    SECONDS,
    SEGMENTS,
    PortPod,
    PortWorld,
    counted,
    open_world,
    port_of,
    refused,
    talk,
    underlay,
)
from integration.netns.segment import Ear
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

LOG = structlog.get_logger()
both_families = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture
async def world(new_netns: Callable[[], Netns]) -> AsyncIterator[PortWorld]:
    async with open_world(new_netns, log=LOG) as world:
        yield world


def flooded(netns: Netns, name: str) -> list[str]:
    """To whom the link sends copies of what it floods."""
    entries = json.loads(KernelState(str(netns.path)).run("bridge", "-json", "fdb", "show", "dev", name) or "[]")
    return sorted(entry["dst"] for entry in entries if "dst" in entry and entry["mac"] == "00:00:00:00:00:00")


def learnt(netns: Netns, name: str) -> dict[str, str]:
    """Behind which node the link knows a hardware address to be."""
    entries = json.loads(KernelState(str(netns.path)).run("bridge", "-json", "fdb", "show", "dev", name) or "[]")
    return {entry["mac"]: entry["dst"] for entry in entries if "dst" in entry and entry["mac"] != "00:00:00:00:00:00"}


def own_links(netns: Netns) -> set[str]:
    return {name for name in netns.link_names() if name.startswith(("cnb-", "cnx-"))}


async def test_pods_of_a_network_reach_each_other_here_and_across(world: PortWorld) -> None:
    first, second, third = [await world.pod(node, RED, number) for node, number in ((0, 5), (0, 6), (1, 7))]
    for client, server in ((first, second), (first, third), (third, second)):
        for address, source in ((server.ipv4, client.ipv4), (server.ipv6, client.ipv6)):
            assert ip_address(await talk(client, server, address)) == source


async def test_the_links_of_a_network(world: PortWorld) -> None:
    await world.pod(0, RED, 5)
    node = world.nodes[0]
    bridge, uplink = (node.netns.link(name(RED)) for name in (bridge_name, uplink_name))
    assert bridge is not None
    assert uplink is not None
    assert bridge["ifalias"] == uplink["ifalias"] == f"COIL:network:{RED}"
    assert (bridge["mtu"], uplink["mtu"]) == (MTU, MTU)
    settings = bridge["linkinfo"]["info_data"]
    assert (settings["stp_state"], settings["mcast_snooping"], settings["nf_call_iptables"]) == (0, 0, 0)
    data = uplink["linkinfo"]["info_data"]
    assert (data["id"], data["port"], data["local"]) == (SEGMENTS[RED], VXLAN_PORT, str(node.host.ipv4))
    assert data["learning"]
    assert uplink["master"] == bridge["ifname"]
    assert flooded(node.netns, uplink["ifname"]) == [str(world.nodes[1].host.ipv4)]


async def test_pods_of_different_networks_do_not_reach_each_other(world: PortWorld) -> None:
    red, blue, far = await world.pod(0, RED, 5), await world.pod(0, BLUE, 6), await world.pod(1, BLUE, 7)
    for pod in (blue, far):
        # Hosts of both subnets on one link, as a tenant with NET_ADMIN could be.
        red.netns.ip("route", "replace", f"{pod.ipv4}/32", "dev", "eth0")
        red.netns.ip("route", "replace", f"{pod.ipv6}/128", "dev", "eth0")
        pod.netns.ip("route", "replace", f"{red.ipv4}/32", "dev", "eth0")
        pod.netns.ip("route", "replace", f"{red.ipv6}/128", "dev", "eth0")
        with Ear(pod.netns) as ear:
            for address in (pod.ipv4, pod.ipv6):
                assert await refused(red.netns, pod.netns, address)
            heard = ear.frames()
        assert not [frame for frame in heard if red.ipv4.packed in frame or red.ipv6.packed in frame]
    assert ip_address(await talk(blue, far, far.ipv4)) == blue.ipv4


def vxlan_frame(pod: PortPod, vni: int) -> bytes:
    """A UDP packet to the pod as VXLAN carries it (RFC 7348, section 5), with a question to port 7 in it."""
    question = struct.pack("!HHHH", 7, 7, 8 + 4, 0) + b"evil"
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(question), 1, 0, 64, 17, 0)
    addresses = ip_address("10.128.0.99").packed + pod.ipv4.packed
    total = sum(struct.unpack("!10H", header + addresses))
    checksum = ~(total + (total >> 16)) & 0xFFFF
    ipv4 = header[:10] + struct.pack("!H", checksum) + addresses + question
    mac = bytes.fromhex(pod.binding.port.mac.replace(":", ""))
    frame = mac + bytes.fromhex("fa163e000099") + struct.pack("!H", 0x0800) + ipv4
    return struct.pack("!II", 0x08000000, vni << 8) + frame


@both_families
async def test_vxlan_packets_of_others_than_nodes_are_dropped(world: PortWorld, version: int) -> None:
    hosts = [node.host for node in world.nodes]
    stranger = world.segment.host(9)
    for node in world.nodes:
        node.binding.set_underlay(underlay(node.host, hosts, version=version))
        await node.binding.prepare([])
    pod = await world.pod(0, RED, 5)
    target = hosts[0].ipv4 if version == 4 else hosts[0].ipv6
    family = socket.AF_INET if version == 4 else socket.AF_INET6

    def send(netns: Netns) -> None:
        with netns.call(lambda: socket.socket(family, socket.SOCK_DGRAM)) as sender:
            sender.sendto(vxlan_frame(pod, SEGMENTS[RED]), (str(target), VXLAN_PORT))

    with Ear(pod.netns) as ear:
        before = counted(hosts[0].netns, "inet", STRANGERS)
        send(stranger.netns)
        wait_until(lambda: counted(hosts[0].netns, "inet", STRANGERS) > before, what="the packet is counted")
        assert not [frame for frame in ear.frames() if b"evil" in frame]
        # The same packet of a node arrives: it was no other fault that kept it away.
        send(hosts[1].netns)
        wait_until(lambda: any(b"evil" in frame for frame in ear.frames()), what="a node's packet arrives")
    assert counted(hosts[0].netns, "inet", STRANGERS) == before + 1


async def test_a_node_that_goes_is_sent_nothing_more(world: PortWorld) -> None:
    first, far = await world.pod(0, RED, 5), await world.pod(1, RED, 7)
    assert ip_address(await talk(first, far, far.ipv4)) == first.ipv4
    node, gone = world.nodes
    name = uplink_name(RED)
    assert learnt(node.netns, name)[far.binding.port.mac] == str(gone.host.ipv4)
    node.binding.set_underlay(Underlay(local=node.host.ipv4, peers=frozenset()))
    await node.binding.prepare([])
    assert (flooded(node.netns, name), learnt(node.netns, name)) == ([], {})
    assert await refused(first.netns, far.netns, far.ipv4)
    node.binding.set_underlay(underlay(node.host, [each.host for each in world.nodes]))
    await node.binding.prepare([])
    assert ip_address(await talk(first, far, far.ipv4)) == first.ipv4


async def test_nodes_are_followed_while_the_binding_runs(world: PortWorld) -> None:
    await world.pod(0, RED, 5)
    node = world.nodes[0]
    running = asyncio.create_task(node.binding.run())
    try:
        third = ip_address("10.1.0.77")
        node.binding.set_underlay(Underlay(local=node.host.ipv4, peers=frozenset({third})))
        await asyncio.to_thread(
            wait_until, lambda: flooded(node.netns, uplink_name(RED)) == [str(third)], what="the new node is a peer"
        )
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_the_last_pod_takes_bridge_and_uplink_with_it(world: PortWorld) -> None:
    node = world.nodes[0]
    before = node.netns.state()
    first, second = await world.pod(0, RED, 5), await world.pod(0, RED, 6)
    await node.unplug(first)
    assert own_links(node.netns) == {bridge_name(RED), uplink_name(RED)}
    assert node.netns.read("route", "show", str(first.ipv4)) == []
    for pod in (first, second):
        node.netns.ip("link", "delete", pod.binding.ifname)  # before it is unplugged: that may be so
    await node.unplug(second)
    assert own_links(node.netns) == set()
    assert node.netns.state() == before
    await node.binding.unbind(second.binding, timeout=SECONDS)


async def test_tables_that_are_right_are_not_touched_and_others_are_mended(world: PortWorld) -> None:
    node = world.nodes[0]
    pods = [await world.pod(0, network, number) for network in (RED, BLUE) for number in (1, 2)]
    kernel = KernelState(str(node.netns.path))

    def listed() -> list[dict[str, Any]]:
        return [entry for family in ("inet", "bridge") for entry in kernel.nft("list", "table", family, "coil-neutron")]

    right = listed()
    await node.binding.prepare([])
    assert listed() == right
    for damage in (
        "flush set bridge coil-neutron targets",
        "flush chain bridge coil-neutron from-pod",
        "delete table bridge coil-neutron",
    ):
        kernel.run("nft", *damage.split())
        await node.binding.prepare([])
        assert {str(entry) for entry in listed()} == {str(entry) for entry in right}, damage
        assert await talk(pods[0], pods[1], pods[1].ipv6) == str(pods[0].ipv6)


async def test_a_link_that_nobody_has_told_of_reaches_nobody(world: PortWorld) -> None:
    """Put on the bridge by somebody else, where nothing filters what it sends."""
    near, far = await world.pod(0, RED, 1), await world.pod(1, RED, 2)
    stranger = world.make(0, port_of(RED, 3))
    node = world.nodes[0].netns
    node.ip("link", "set", stranger.binding.ifname, "master", bridge_name(RED))
    for server in (near, far):
        for client, listener in ((stranger, server), (server, stranger)):
            assert await refused(client.netns, listener.netns, listener.ipv4)
            assert await refused(client.netns, listener.netns, listener.ipv6)
    node.ip("link", "set", stranger.binding.ifname, "nomaster")
    await world.nodes[0].plug(stranger)
    assert await talk(stranger, far, far.ipv4) == str(stranger.ipv4)


async def test_nothing_leaves_while_the_table_knows_no_port(world: PortWorld) -> None:
    near, far = await world.pod(0, RED, 1), await world.pod(1, RED, 2)
    KernelState(str(world.nodes[0].netns.path)).run("nft", "flush", "set", "bridge", "coil-neutron", "ports")
    assert await refused(near.netns, far.netns, far.ipv4)
    await world.nodes[0].binding.prepare([])
    assert await talk(near, far, far.ipv4) == str(near.ipv4)


async def test_a_port_that_comes_while_tables_are_damaged_mends_them(world: PortWorld) -> None:
    first = await world.pod(0, RED, 1)
    KernelState(str(world.nodes[0].netns.path)).run("nft", "delete", "table", "bridge", "coil-neutron")
    second = await world.pod(0, RED, 2)
    assert await talk(first, second, second.ipv4) == str(first.ipv4)
    assert counted(world.nodes[0].netns, "bridge", "spoofed") == 0


async def test_a_port_whose_first_attempt_has_changed_nothing_is_in_the_tables(
    world: PortWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, node = await world.pod(0, RED, 5), world.nodes[0]
    attempts = 0

    async def refuse(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        raise BusyError("1024 jobs wait for the kernel")

    monkeypatch.setattr(node.kernel, "plug_port", refuse)
    second = await world.pod(0, RED, 6)
    assert attempts == 1
    assert await talk(first, second, second.ipv4) == str(first.ipv4)
    assert await talk(second, first, first.ipv6) == str(second.ipv6)


async def test_binding_twice_is_binding_once(world: PortWorld) -> None:
    node = world.nodes[0]
    pod = await world.pod(0, RED, 5)
    before = node.netns.read("link"), node.netns.read("route")
    await node.binding.bind(pod.binding, timeout=SECONDS)
    after = node.netns.read("link"), node.netns.read("route")

    def steady(links: list[dict[str, Any]]) -> list[dict[str, Any]]:
        # The kernel writes a link's operational state when it gets to it, up to a second after the link is up.
        return [{key: value for key, value in link.items() if key not in ("linkinfo", "operstate")} for link in links]

    assert (steady(before[0]), before[1]) == (steady(after[0]), after[1])


async def test_what_cannot_be_bound_leaves_nothing(world: PortWorld) -> None:
    node = world.nodes[0]
    state = node.netns.state()
    for port, words in (
        (port_of(RED, 5, mtu=1451), "has an MTU of 1451, but a packet of this node has room for 1450 bytes"),
        (port_of(RED, 5, segmentation=None), "no segmentation ID"),
    ):
        pod = world.make(0, port)
        with pytest.raises(BindError, match=words):
            await node.plug(pod)
        assert own_links(node.netns) == set()
        node.netns.ip("link", "delete", pod.binding.ifname)
        assert node.netns.state() == state
    absent = world.make(0, port_of(RED, 6))
    node.netns.ip("link", "delete", absent.binding.ifname)
    with pytest.raises(BindError, match=f"there is no link {absent.binding.ifname}"):
        await node.plug(absent)
    assert node.netns.state() == state


async def test_a_foreign_link_with_the_networks_name_is_left_alone(world: PortWorld) -> None:
    node = world.nodes[0]
    node.netns.ip("link", "add", bridge_name(RED), "type", "bridge")
    node.netns.ip("link", "set", bridge_name(RED), "alias", "mine")
    pod = world.make(0, port_of(RED, 5))
    with pytest.raises(BindError, match=r"alias 'mine'.* run `ip link delete"):
        await node.plug(pod)
    found = node.netns.link(bridge_name(RED))
    assert found is not None
    assert found["ifalias"] == "mine"


async def test_large_packets_fit_into_the_network(world: PortWorld) -> None:
    """Of the network's MTU, across nodes, though nobody may divide them; and the largest that the underlay allows."""
    for network, number, mtu in ((RED, 5, MTU), (BLUE, 6, 1450)):
        pods = [world.make(node, replace(port_of(network, number + node), mtu=mtu)) for node in (0, 1)]
        for node, pod in zip(world.nodes, pods, strict=True):
            await node.plug(pod)
        for address, header in ((pods[1].ipv4, 28), (pods[1].ipv6, 48)):
            assert await asyncio.to_thread(carries, pods[0].netns, pods[1].netns, address, mtu - header)


def carries(client: Netns, server: Netns, address: IPAddress, size: int) -> bool:
    """Whether a datagram with so many bytes arrives without having been divided."""
    family, level, option, value = (
        (socket.AF_INET, socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO (linux/in.h)
        if address.version == 4
        else (socket.AF_INET6, socket.IPPROTO_IPV6, 62, 1)  # IPV6_DONTFRAG (linux/in6.h)
    )
    with (
        server.call(lambda: socket.socket(family, socket.SOCK_DGRAM)) as listener,
        client.call(lambda: socket.socket(family, socket.SOCK_DGRAM)) as asking,
    ):
        listener.bind((str(address), 0))
        listener.settimeout(SECONDS)
        asking.setsockopt(level, option, value)
        asking.sendto(b"x" * size, listener.getsockname()[:2])
        return len(listener.recv(1 << 16)) == size


@pytest.mark.parametrize("local", ["192.0.2.7", "2001:db8::7"])
def test_a_node_that_speaks_bgp_has_its_address_where_its_packets_leave(
    new_netns: Callable[[], Netns], local: str
) -> None:
    """lo has the address, and the default route leads over a link that has another one."""
    node, address = new_netns(), ip_address(local)
    node.ip("link", "add", "up0", "type", "veth", "peer", "name", "router")
    for link in ("up0", "router"):
        node.ip("link", "set", link, "up")
    node.ip("address", "add", "198.51.100.7/24", "dev", "up0")
    node.ip("address", "add", "fd00:5::7/64", "dev", "up0", "nodad")
    node.ip("route", "add", "default", "via", "198.51.100.1")
    node.ip("-6", "route", "add", "default", "via", "fd00:5::1")

    def has_it(told: IPAddress | None) -> set[str]:
        def read() -> list[ParentLink]:
            with Connection() as connection:
                return read_node_links(connection, told)

        return {link.name for link in node.call(read) if link.has(address)}

    assert has_it(address) == set(), "nobody has it"
    node.ip("address", "add", local, "dev", "lo")
    assert (has_it(None), has_it(address)) == (set(), {"up0"})
    node.ip("address", "add", local, "dev", "up0")
    assert has_it(address) == {"up0"}
