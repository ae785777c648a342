"""Nodes on one Ethernet with ports of Neutron networks: pods are namespaces, plugged in by the binding `bridge`.

The pods' veths are as `coild.neutron.binding` expects them of the wiring. Who may reach whom is judged by what sockets
get, and by captures on the pods' and nodes' links.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_interface
from random import Random
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import ContainerId
from coil.kernel.family import IPAddress, IPInterface
from coil.kernel.link import LinkName, MacAddress
from coil.neutron.handoff import Handoff, PortAddress
from coil.neutron.port_rules import RuleSet
from coil.neutron.resource import NetworkId, PortId, ProjectId
from coil.neutron.underlay import Underlay
from coild.neutron.binding import PortBinding
from coild.neutron.bridge import BridgeBinding
from coild.neutron.bridge_kernel import BridgeNetwork
from coild.settings import VXLAN_PORT
from integration.kernel_state import KernelState
from integration.netns.netns import Netns, exchange
from integration.netns.segment import Host, Segment

SECONDS: Final = 60.0
_MOMENT: Final = 0.3
MTU: Final = 1430
"""Of the networks: what fits into VXLAN over IPv6 on an Ethernet."""
RED: Final = NetworkId("0f6f4fd5-7f06-4c4b-8b0c-7b9d3b6a8a55")
BLUE: Final = NetworkId("5e1f5a2c-0d6b-4b7e-8d1c-2a3b4c5d6e7f")
SEGMENTS: Final = {RED: 17, BLUE: 18}
_PREFIXES: Final = {RED: ("10.128", "fd00:128"), BLUE: ("10.129", "fd00:129")}
PROJECT: Final = ProjectId("9a1f5a2c0d6b4b7e8d1c2a3b4c5d6e70")


def port_of(
    network: NetworkId, number: int, *, mtu: int = MTU, segmentation: int | None = 0, rules: RuleSet | None = None
) -> Handoff:
    """Port 1 to 255 of a network, with an address of each family; without gateways, as no router is there."""
    ipv4, ipv6 = _PREFIXES[network]
    return Handoff(
        port=PortId(f"{network[:-2]}{number:02x}"),
        pod_uid=f"pod-{number}",
        mac=MacAddress(f"fa:16:3e:{SEGMENTS[network]:02x}:00:{number:02x}"),
        addresses=tuple(
            PortAddress(ip_interface(text)) for text in (f"{ipv4}.0.{number}/16", f"{ipv6}::{number:x}/64")
        ),
        network=network,
        project=PROJECT,
        type="bridge",
        mtu=mtu,
        segmentation=SEGMENTS[network] if segmentation == 0 else segmentation,
        rules=rules,
    )


@dataclass(frozen=True, slots=True)
class PortPod:
    """A pod with a port, and the binding of it."""

    netns: Netns
    binding: PortBinding

    @property
    def ipv4(self) -> IPv4Address:
        [address] = (each for each in self._addresses if isinstance(each, IPv4Address))
        return address

    @property
    def ipv6(self) -> IPv6Address:
        [address] = (each for each in self._addresses if isinstance(each, IPv6Address))
        return address

    @property
    def _addresses(self) -> tuple[IPAddress, ...]:
        return tuple(each.interface.ip for each in self.binding.port.addresses)


def make_pod(new_netns: Callable[[], Netns], node: Netns, port: Handoff) -> PortPod:
    """A pod on the node, its veth not plugged in yet."""
    netns = new_netns()
    ifname = LinkName(f"veth{port.mac.replace(':', '')[-6:]}")
    for defaults in ("all", "default"):
        netns.set_sysctl(f"net/ipv6/conf/{defaults}/accept_dad", "0")
    node.ip("link", "add", ifname, "mtu", str(port.mtu), "type", "veth", "peer", "name", "eth0", "netns", netns.name)
    node.set_sysctl(f"net/ipv6/conf/{ifname}/disable_ipv6", "1")
    node.ip("link", "set", ifname, "up")
    netns.ip("link", "set", "eth0", "address", port.mac, "mtu", str(port.mtu), "up")
    for each in port.addresses:
        netns.ip("address", "add", str(each.interface), "dev", "eth0", *_no_dad(each.interface))
    return PortPod(netns, PortBinding(port=port, ifname=ifname, endpoint=ContainerId(f"container-{ifname}")))


def _no_dad(interface: IPInterface) -> Sequence[str]:
    return ("nodad",) if interface.version == 6 else ()


@dataclass(slots=True)
class PortNode:
    """A node with the binding under test."""

    host: Host
    kernel: BridgeNetwork
    binding: BridgeBinding
    pods: list[PortPod] = field(default_factory=list)

    @property
    def netns(self) -> Netns:
        return self.host.netns

    async def plug(self, pod: PortPod) -> None:
        await self.binding.bind(pod.binding, timeout=SECONDS)
        self.pods.append(pod)

    async def unplug(self, pod: PortPod) -> None:
        await self.binding.unbind(pod.binding, timeout=SECONDS)
        self.pods.remove(pod)


def underlay(node: Host, nodes: Sequence[Host], *, version: int = 4) -> Underlay:
    """As Nodes with these hosts' addresses would have it."""

    def address(host: Host) -> IPAddress:
        return host.ipv4 if version == 4 else host.ipv6

    return Underlay(local=address(node), peers=frozenset(address(each) for each in nodes if each is not node))


@asynccontextmanager
async def open_node(host: Host, *, log: FilteringBoundLogger) -> AsyncIterator[PortNode]:
    """A node whose binding knows no other node yet, and has nothing plugged in."""
    async with BridgeNetwork(udp_port=VXLAN_PORT, netns=host.netns.path) as kernel:
        binding = BridgeBinding(kernel, random=Random(1).random, log=log)
        yield PortNode(host, kernel, binding)


class PortWorld:
    """Nodes that know each other."""

    def __init__(self, new_netns: Callable[[], Netns], nodes: Sequence[PortNode], segment: Segment) -> None:
        self._new_netns = new_netns
        self.nodes = nodes
        self.segment = segment

    async def pod(self, node: int, network: NetworkId, number: int, *, rules: RuleSet | None = None) -> PortPod:
        """A pod on one of the nodes, plugged in."""
        pod = self.make(node, port_of(network, number, rules=rules))
        await self.nodes[node].plug(pod)
        return pod

    def make(self, node: int, port: Handoff) -> PortPod:
        """The same, not plugged in."""
        return make_pod(self._new_netns, self.nodes[node].netns, port)


@asynccontextmanager
async def open_world(new_netns: Callable[[], Netns], *, log: FilteringBoundLogger) -> AsyncIterator[PortWorld]:
    """Two nodes, prepared, without a pod."""
    segment = Segment(new_netns)
    hosts = [segment.host(number) for number in (1, 2)]
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(open_node(host, log=log)) for host in hosts]
        for node in nodes:
            node.binding.set_underlay(underlay(node.host, hosts))
            await node.binding.prepare([])
        yield PortWorld(new_netns, nodes, segment)


def counted(netns: Netns, family: str, name: str) -> int:
    """The packets that a counter of Coil's table of that family has counted."""
    command = ["nft", "--json", "list", "counter", family, "coil-neutron", name]
    [packets] = (
        entry["counter"]["packets"]
        for entry in json.loads(KernelState(str(netns.path)).run(*command))["nftables"]
        if "counter" in entry
    )
    return int(packets)


async def talk(client: PortPod, server: PortPod, address: IPAddress) -> str:
    """Whom the server saw when the client asked it over TCP; fails where a packet was lost."""
    return await asyncio.to_thread(exchange, client.netns, server.netns, address)


async def refused(client: Netns, server: Netns, address: IPAddress) -> bool:
    """Whether the client cannot ask; see `is_refused`."""
    return await asyncio.to_thread(is_refused, client, server, address)


async def answered(client: Netns, server: Netns, address: IPAddress) -> bool:
    """Whether the client gets an answer over UDP, however long the machine takes."""
    return not await asyncio.to_thread(is_refused, client, server, address, seconds=SECONDS)


def is_refused(
    client: Netns, server: Netns, address: IPAddress, *, source: IPAddress | None = None, seconds: float = _MOMENT
) -> bool:
    """Whether a question over UDP comes to nothing. For a moment only: that it would have worked otherwise, the caller
    shows by an `exchange` that does.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    listener = server.call(lambda: socket.socket(family, socket.SOCK_DGRAM))
    asking = client.call(lambda: socket.socket(family, socket.SOCK_DGRAM))
    with listener, asking:
        listener.bind((str(address), 0))
        if source is not None:
            asking.bind((str(source), 0))
        listener.settimeout(seconds)
        asking.settimeout(seconds)
        try:
            asking.connect(listener.getsockname()[:2])
            asking.send(b"question")
            _, peer = listener.recvfrom(64)
            listener.sendto(b"answer", peer)
            return asking.recv(64) != b"answer"
        except OSError:  # unreachable, or a timeout
            return True
