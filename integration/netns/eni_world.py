"""A VPC in a namespace, and a node with three of its interfaces in another one.

The router has a port for each interface. It delivers an address by the interface that has it, drops what comes with a
source that the interface does not have, as EC2 does, and is itself everybody whom pods talk to: hosts of the VPC, of
its other CIDRs and outside, and the instance's metadata service.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from random import Random
from typing import Any

from coil.eni.interface import InterfaceId, NetworkInterface, SubnetId
from coil.eni.node_plan import AttachedInterface, NodeState
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import IPAddress
from coil.kernel.link import MacAddress
from coil.netlink.eni_link import NodeSync
from coil.netlink.host import HostNetwork
from coil.netlink.node_watch import Listener
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import LINK_LOCAL, RoutePolicy
from coild.eni.node_kernel import NodeKernel
from coild.eni.node_network import NodeNetwork
from coild.eni.wiring import EniWiring
from coild.model.attachment import Attachment, PodName
from coild.pods.veth import VethWiring
from integration.netns.eip_world import nft
from integration.netns.netns import Netns, create_netns, delete_netns
from tests.coild.scene import LOG

MTU = 1400
VPC = IPv4Network("10.1.0.0/16")
SECOND_CIDR = IPv4Network("100.64.0.0/16")
THIRD_CIDR = IPv4Network("172.20.0.0/16")
IN_VPC, IN_SECOND, IN_THIRD = IPv4Address("10.1.200.5"), IPv4Address("100.64.0.5"), IPv4Address("172.20.0.5")
OUTSIDE = IPv4Address("198.51.100.7")
METADATA = IPv4Address("169.254.169.254")
_EVERYBODY = (IN_VPC, IN_SECOND, IN_THIRD, OUTSIDE, METADATA)

SUBNETS = (IPv4Network("10.1.0.0/20"), IPv4Network("10.1.0.0/20"), IPv4Network("10.1.16.0/20"))
PRIMARIES = tuple(map(IPv4Address, ("10.1.0.10", "10.1.1.10", "10.1.16.10")))
RANGES = tuple(map(IPv4Network, ("10.1.0.32/28", "10.1.1.32/28", "10.1.16.32/28")))
LINKS = ("ens5", "ens6", "ens7")


def attached(device: int) -> AttachedInterface:
    """The node's interface of that number."""
    return AttachedInterface(
        interface=NetworkInterface(
            id=InterfaceId(f"eni-{device}"),
            mac=MacAddress(f"02:00:00:00:01:{device:02x}"),
            device_number=device,
            subnet=SubnetId(str(SUBNETS[device])),
            primary=PRIMARIES[device],
            ranges=frozenset({RANGES[device]}),
            is_primary=device == 0,
        ),
        subnet=SUBNETS[device],
    )


STATE = NodeState(interfaces=tuple(map(attached, range(3))), inside=frozenset({VPC, SECOND_CIDR}))


def interface_of(address: IPAddress) -> InterfaceId | None:
    """As EC2 has it."""
    return next(
        (each.interface.id for each in STATE.interfaces if any(address in r for r in each.interface.ranges)), None
    )


def make_world(vpc: Netns, node: Netns) -> None:
    """The router and everybody, and the node with all its links: the primary one as an operating system has it, with a
    strict reverse path filter, and the others as they appear.
    """
    for name, value in (("ip_forward", "1"), ("conf/all/rp_filter", "0"), ("conf/default/rp_filter", "0")):
        vpc.set_sysctl(f"net/ipv4/{name}", value)
    for name in ("all", "default"):
        node.set_sysctl(f"net/ipv4/conf/{name}/rp_filter", "1")
    primary, *others = range(len(LINKS))
    node.ip_batch(
        [
            _new_link(vpc, primary, mtu=MTU),
            f"link set {LINKS[primary]} up",
            f"address add {PRIMARIES[primary]}/{SUBNETS[primary].prefixlen} dev {LINKS[primary]}",
            f"route add default via {attached(primary).gateway} dev {LINKS[primary]}",
            *(_new_link(vpc, device) for device in others),
        ]
    )
    everybody = [f"address add {address}/32 dev lo" for address in _EVERYBODY]
    vpc.ip_batch([*everybody, *(line for device in range(len(LINKS)) for line in _port(device))])
    guards = [_guard(device) for device in range(len(LINKS))]
    chain = "add chain inet vpc arrive { type filter hook prerouting priority -300; }"
    nft(vpc, "\n".join(["add table inet vpc", "add counter inet vpc spoofed", chain, *guards]))


def attach_link(vpc: Netns, node: Netns, device: int) -> None:
    """EC2 attaches the interface again: its link appears, down and without an address."""
    node.ip_batch([_new_link(vpc, device)])
    vpc.ip_batch(_port(device))


def _new_link(vpc: Netns, device: int, *, mtu: int = 1500) -> str:
    mac = attached(device).interface.mac
    peer = f"peer name port{device} netns {vpc.name}"
    return f"link add {LINKS[device]} address {mac} mtu {mtu} type veth {peer}"


def _port(device: int) -> list[str]:
    port, gateway, primary = f"port{device}", attached(device).gateway, PRIMARIES[device]
    return [
        f"link set {port} mtu {MTU} up",
        f"address add {gateway}/32 dev {port}",
        f"route add {primary} dev {port} src {gateway}",
        f"route add {RANGES[device]} via {primary} dev {port} onlink",
    ]


def _guard(device: int) -> str:
    sources = f"{{ {PRIMARIES[device]}, {RANGES[device]} }}"
    return f"add rule inet vpc arrive iifname port{device} ip saddr != {sources} counter name spoofed drop"


class HearingKernel(NodeKernel):
    """Tells when it hears of changes, and what each comparison has changed."""

    def __init__(self, netns: Netns) -> None:
        super().__init__(netns=netns.path)
        self.hears = asyncio.Event()
        self.changes: list[tuple[str, ...]] = []
        """Of each comparison, in words."""
        self._comparing = asyncio.Lock()

    async def watch(self, listener: Listener) -> bool:
        hears_pods = await super().watch(listener)
        self.hears.set()
        return hears_pods

    async def sync(
        self,
        interfaces: Collection[AttachedInterface],
        pods: Collection[tuple[IPAddress, InterfaceId]] | None,
        *,
        pod_table: int,
        mtu: int | None,
    ) -> NodeSync:
        async with self._comparing:
            result = await super().sync(interfaces, pods, pod_table=pod_table, mtu=mtu)
            self.changes.append(result.changes)
        return result

    async def between_comparisons(self, change: Callable[[], object]) -> None:
        """Do it while none is under way: it blocks the event loop, so none begins."""
        async with self._comparing:
            change()


@dataclass
class EniNode:
    """The node under test; pods are attached by the real wiring."""

    vpc: Netns
    netns: Netns
    kernel: HearingKernel
    network: HostNetwork
    pods: Sequence[Netns]
    node: NodeNetwork = field(init=False)
    wiring: EniWiring = field(init=False)
    attachments: dict[IPv4Address, Attachment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy = RoutePolicy(rule_priority=None)
        random = Random(1).random
        self.node = NodeNetwork(self.kernel, pod_table=policy.pod_table, mtu=None, random=random, log=LOG)
        veth = VethWiring(self.network, mtu=MTU, gateways=LINK_LOCAL, policy=policy, log=LOG)
        self.wiring = EniWiring(veth, self.node, self.network, interface_of=interface_of, random=random, log=LOG)

    async def attach(self, pod: Netns, address: IPv4Address) -> None:
        alias = PodAlias("@aws-eni", pod.name, "eth0")
        attachment = Attachment(
            key=AttachmentKey(ContainerId(pod.name), "eth0"),
            pod=PodName("apps", pod.name),
            addresses=(address,),
            alias=alias,
            container=ContainerId(pod.name),
        )
        plan = self.wiring.plan(attachment)
        made = Attachment(
            key=attachment.key,
            pod=attachment.pod,
            addresses=attachment.addresses,
            alias=alias,
            link=plan.host.name,
            container=attachment.container,
        )
        self.attachments[address] = await self.wiring.attach(made, plan, pod.path)

    async def detach(self, address: IPv4Address) -> None:
        await self.wiring.detach(self.attachments.pop(address))

    async def restore(self) -> None:
        """As the engine does."""

        async def exclusively(_key: AttachmentKey, work: Any) -> None:
            await work()

        await self.wiring.restore(list(self.attachments.values()), exclusively)

    def spoofed(self) -> int:
        """Packets that had a source which their interface does not have."""
        return counted(self.vpc, "vpc", "spoofed")


@asynccontextmanager
async def bare_node() -> AsyncIterator[EniNode]:
    """The node as it starts, with all three links, and nothing done yet; the namespaces of three pods wait."""
    vpc, host, *pods = made = create_netns(5)
    async with AsyncExitStack() as stack:
        stack.callback(delete_netns, made)
        make_world(vpc, host)
        network = await stack.enter_async_context(HostNetwork(host.path))
        kernel = await stack.enter_async_context(HearingKernel(host))
        yield EniNode(vpc, host, kernel, network, pods)


@asynccontextmanager
async def watched_node(node: EniNode, pods: Sequence[IPv4Address]) -> AsyncIterator[dict[IPv4Address, Netns]]:
    """The network made for that node, with pods that have these addresses, and kept so until the end. Nothing may have
    been sent by an interface that does not have its source.
    """
    await node.wiring.prepare()
    await node.node.apply(STATE)
    await node.node.adopt({})
    made = dict(zip(pods, node.pods, strict=True))
    for address, netns in made.items():
        await node.attach(netns, address)
    tasks = [asyncio.create_task(node.node.run()), asyncio.create_task(node.wiring.follow(node.restore))]
    await node.kernel.hears.wait()
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
    assert node.spoofed() == 0


def counted(netns: Netns, table: str, counter: str) -> int:
    """What a counter says, in packets."""
    [found] = [entry["counter"] for entry in listed(netns, "counter", "inet", table, counter) if "counter" in entry]
    return int(found["packets"])


def listed(netns: Netns, *what: str) -> list[dict[str, Any]]:
    """What `nft -j list` says."""
    command = ["ip", "netns", "exec", netns.name, "nft", "-j", "list", *what]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return list(json.loads(result.stdout)["nftables"])
