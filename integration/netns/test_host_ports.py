"""Host ports in the kernel, with traffic: who reaches which pod by which of the node's addresses, and who must not."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_address, ip_network

import pytest
from prometheus_client import CollectorRegistry

from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import IPAddress
from coil.netlink.error import PodCheckError
from coil.netlink.host import HostNetwork
from coil.nft.element_sync import read_elements
from coil.podnet.host_port import TABLE, PortMapping, Protocol, plan_host_port_table
from coild.hostports.host_ports import HostPorts
from coild.hostports.kernel_table import KernelTable
from coild.model.attachment import Attachment, HostPortTakenError, PodName
from integration.netns import greeter
from integration.netns.eip_world import nft
from integration.netns.greeter import KINDS, Greeter
from integration.netns.netns import Netns
from integration.netns.plans import pod_plan
from integration.patience import wait_until
from tests.coild.scene import LOG

pytestmark = pytest.mark.kernel

HOST = {4: "198.51.100.1", 6: "fd00:5::1"}
SECOND = {4: "198.51.100.7", 6: "fd00:5::7"}
OUTSIDE = {4: "198.51.100.2", 6: "fd00:5::2"}
OWN = [ip_network(address) for addresses in (HOST, SECOND) for address in addresses.values()]
PORT = 8080
TCP = PortMapping(protocol=Protocol.TCP, host_port=PORT, container_port=80)
UDP = PortMapping(protocol=Protocol.UDP, host_port=PORT, container_port=80)
both_families = pytest.mark.parametrize("version", [4, 6])
both_protocols = pytest.mark.parametrize("protocol", list(KINDS))


def ask(
    client: Netns,
    address: str,
    protocol: Protocol = Protocol.TCP,
    *,
    port: int = PORT,
    source: str = "",
    seconds: float = 5,
) -> str:
    """Who answers at the node's port, and whom it saw. Raises OSError if nobody does."""
    return greeter.ask(client.path, address, protocol, port=port, source=source, seconds=seconds)


@dataclass
class Node:
    """A node with two pods, `web` and `other`, and somebody outside."""

    netns: Netns
    outside: Netns
    pods: dict[str, Netns]
    network: HostNetwork
    attachments: dict[str, Attachment] = field(default_factory=dict)
    addresses: dict[str, dict[int, str]] = field(default_factory=dict)

    async def attach(self, name: str, number: int) -> None:
        plan = pod_plan(number)
        await self.network.attach_pod(plan, self.pods[name].path)
        found: tuple[IPAddress, ...] = tuple(assignment.address for assignment in plan.assignments)
        self.addresses[name] = {address.version: str(address) for address in found}
        self.attachments[name] = Attachment(
            key=AttachmentKey(ContainerId(name), "eth0"),
            pod=PodName("apps", name),
            addresses=found,
            link=plan.host.name,
            container=ContainerId(name),
        )

    def table(self) -> str:
        return nft(self.netns, "list tables\n")


@pytest.fixture
async def node(host: Netns, network: HostNetwork, new_netns: Callable[[], Netns]) -> AsyncIterator[Node]:
    outside = new_netns()
    host.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", outside.name)
    for netns, link, addresses in ((host, "uplink", (HOST, SECOND)), (outside, "eth0", (OUTSIDE,))):
        netns.ip("link", "set", link, "up")
        for address in addresses:
            netns.ip("address", "add", f"{address[4]}/24", "dev", link)
            netns.ip("address", "add", f"{address[6]}/64", "dev", link, "nodad")
    made = Node(host, outside, {name: new_netns() for name in ("web", "other")}, network)
    for number, name in enumerate(made.pods, 1):
        await made.attach(name, number)
    servers = [Greeter(netns.path, name) for name, netns in made.pods.items()]
    yield made
    for server in servers:
        server.close()


OpenPorts = Callable[[], Awaitable[HostPorts]]


@pytest.fixture
async def open_ports(node: Node) -> AsyncIterator[OpenPorts]:
    """Each as another process has them."""
    async with AsyncExitStack() as stack:

        async def open_next() -> HostPorts:
            table = await stack.enter_async_context(KernelTable(netns=node.netns.path))
            ports = HostPorts(node.network, table, registry=CollectorRegistry(), random=lambda: 0.5, log=LOG)
            await ports.set_own(OWN)
            return ports

        yield open_next


@pytest.fixture
async def ports(open_ports: OpenPorts) -> HostPorts:
    return await open_ports()


# --- who reaches the pod


@both_protocols
@both_families
async def test_from_outside_the_pod_sees_who_it_is(
    node: Node, ports: HostPorts, version: int, protocol: Protocol
) -> None:
    await ports.publish(node.attachments["web"], (TCP, UDP))
    for address in (HOST, SECOND):
        assert ask(node.outside, address[version], protocol) == f"web {OUTSIDE[version]}"


@both_protocols
@both_families
async def test_from_the_node_and_from_pods(node: Node, ports: HostPorts, version: int, protocol: Protocol) -> None:
    await ports.publish(node.attachments["web"], (TCP, UDP))
    assert ask(node.netns, HOST[version], protocol).startswith("web ")
    assert ask(node.pods["other"], HOST[version], protocol) == f"web {node.addresses['other'][version]}"
    # It would not take a packet that seems to come from itself.
    seen = ask(node.pods["web"], HOST[version], protocol)
    assert seen.startswith("web ")
    assert node.addresses["web"][version] not in seen


@both_protocols
async def test_from_the_nodes_loopback(node: Node, ports: HostPorts, protocol: Protocol) -> None:
    await ports.publish(node.attachments["web"], (TCP, UDP))
    for address in ("127.0.0.1", "127.1.2.3"):
        assert ask(node.netns, address, protocol).startswith("web ")


async def test_what_listens_on_the_ipv6_loopback_is_left_alone(node: Node, ports: HostPorts) -> None:
    own = Greeter(node.netns.path, "own", PORT, "::1")
    await ports.publish(node.attachments["web"], (TCP, UDP))
    assert ask(node.netns, "::1") == "own ::1"
    own.close()


@both_protocols
@pytest.mark.parametrize("bound", ["::", "::1"])
async def test_from_another_address_to_the_ipv6_loopback(
    node: Node, ports: HostPorts, protocol: Protocol, bound: str
) -> None:
    """As Kubernetes' conformance test of host ports connects in clusters of IPv6."""
    at = PortMapping(protocol=protocol, host_port=PORT, container_port=80, host_address=ip_address(bound))
    await ports.publish(node.attachments["web"], (at,))
    assert ask(node.netns, "::1", protocol, source=HOST[6]) == f"web {HOST[6]}"


@both_families
async def test_one_of_the_nodes_addresses(node: Node, ports: HostPorts, version: int) -> None:
    at = PortMapping(protocol=Protocol.TCP, host_port=PORT, container_port=80, host_address=ip_address(HOST[version]))
    await ports.publish(node.attachments["web"], (at,))
    assert ask(node.outside, HOST[version]) == f"web {OUTSIDE[version]}"
    with pytest.raises(ConnectionRefusedError):
        ask(node.outside, SECOND[version])
    # Without a way from there to the pod, the loopback is what it was.
    link = node.attachments["web"].link
    assert node.netns.sysctl(f"net/ipv4/conf/{link}/route_localnet") == "0"


async def test_the_loopback_alone(node: Node, ports: HostPorts) -> None:
    at = PortMapping(protocol=Protocol.TCP, host_port=PORT, container_port=80, host_address=IPv4Address("127.0.0.1"))
    await ports.publish(node.attachments["web"], (at,))
    assert ask(node.netns, "127.0.0.1").startswith("web ")
    with pytest.raises(ConnectionRefusedError):
        ask(node.outside, HOST[4])


VIRTUAL = {4: "10.96.0.50", 6: "fd00:96::50"}
FLOATING = {4: "198.51.100.50", 6: "fd00:5::50"}


def add_address(netns: Netns, address: str, link: str) -> None:
    prefix, *nodad = (128, "nodad") if ":" in address else (32,)
    netns.ip("address", "add", f"{address}/{prefix}", "dev", link, *nodad)


@both_protocols
@both_families
async def test_local_addresses_of_others(node: Node, ports: HostPorts, version: int, protocol: Protocol) -> None:
    """As kube-proxy in IPVS mode has all ClusterIPs on a link, and others their virtual addresses on the uplink."""
    node.netns.ip("link", "add", "kube-ipvs0", "type", "bridge")
    add_address(node.netns, VIRTUAL[version], "kube-ipvs0")
    add_address(node.netns, FLOATING[version], "uplink")
    servers = [Greeter(node.netns.path, "another", PORT, address[version]) for address in (VIRTUAL, FLOATING)]
    await ports.publish(node.attachments["web"], (TCP, UDP))
    assert ask(node.outside, FLOATING[version], protocol) == f"another {OUTSIDE[version]}"
    for client in (node.netns, node.pods["other"]):
        for address in (VIRTUAL, FLOATING):
            assert ask(client, address[version], protocol).startswith("another ")
    for server in servers:
        server.close()


@both_families
async def test_a_tenant_names_an_address_of_others(node: Node, ports: HostPorts, version: int) -> None:
    add_address(node.netns, FLOATING[version], "uplink")
    at = PortMapping(
        protocol=Protocol.TCP, host_port=PORT, container_port=80, host_address=ip_address(FLOATING[version])
    )
    await ports.publish(node.attachments["web"], (at,))
    with pytest.raises(ConnectionRefusedError):
        ask(node.outside, FLOATING[version])


@both_families
async def test_the_nodes_addresses_change(node: Node, ports: HostPorts, version: int) -> None:
    await ports.publish(node.attachments["web"], (TCP,))
    assert ask(node.outside, SECOND[version]).startswith("web ")
    await ports.set_own([ip_network(address) for address in HOST.values()])
    with pytest.raises(ConnectionRefusedError):
        ask(node.outside, SECOND[version])
    assert ask(node.outside, HOST[version]).startswith("web ")
    # All local addresses of a network, whichever these are.
    await ports.set_own([ip_network("198.51.100.0/24"), ip_network("fd00:5::/64")])
    assert ask(node.outside, SECOND[version]).startswith("web ")
    assert ask(node.netns, "127.0.0.1").startswith("web ")


@pytest.mark.parametrize("first", [True, False], ids=["made before", "made after"])
@both_families
async def test_services_come_first(node: Node, ports: HostPorts, version: int, first: bool) -> None:
    """As kube-proxy translates what is for a NodePort or an external address, whoever made its table first."""
    family, pod = "ip" if version == 4 else "ip6", node.addresses["other"][version]
    service = (
        "table inet service { chain services { type nat hook prerouting priority dstnat; "
        f"{family} daddr {HOST[version]} tcp dport {PORT} dnat {family} to {pod if version == 4 else f'[{pod}]'}:80\n"
        "}\n}\n"
    )
    if first:
        nft(node.netns, service)
    await ports.publish(node.attachments["web"], (TCP,))
    if not first:
        nft(node.netns, service)
    assert ask(node.outside, HOST[version]).startswith("other ")
    assert ask(node.outside, SECOND[version]).startswith("web ")


async def test_one_family(node: Node, ports: HostPorts) -> None:
    at = PortMapping(protocol=Protocol.TCP, host_port=PORT, container_port=80, host_address=ip_address("::"))
    await ports.publish(node.attachments["web"], (at,))
    assert ask(node.outside, HOST[6]) == f"web {OUTSIDE[6]}"
    with pytest.raises(ConnectionRefusedError):
        ask(node.outside, HOST[4])


async def test_two_pods_have_the_same_port_at_different_addresses_and_of_different_protocols(
    node: Node, ports: HostPorts
) -> None:
    at = {
        name: PortMapping(protocol=Protocol.TCP, host_port=PORT, container_port=80, host_address=ip_address(address[4]))
        for name, address in (("web", HOST), ("other", SECOND))
    }
    await ports.publish(node.attachments["web"], (at["web"],))
    await ports.publish(node.attachments["other"], (at["other"], UDP))
    assert ask(node.outside, HOST[4]).startswith("web ")
    assert ask(node.outside, SECOND[4]).startswith("other ")
    assert ask(node.outside, HOST[4], Protocol.UDP).startswith("other ")


# --- who must not


@pytest.fixture
def secret(node: Node) -> Iterator[Greeter]:
    """What only the node itself is to reach."""
    server = Greeter(node.netns.path, "secret", 9999, "127.0.0.1")
    yield server
    server.close()


@pytest.mark.usefixtures("secret")
@both_protocols
async def test_a_pod_with_a_host_port_does_not_reach_the_nodes_loopback(
    node: Node, ports: HostPorts, protocol: Protocol
) -> None:
    await ports.publish(node.attachments["web"], (TCP, UDP))
    pod = node.pods["web"]
    link = node.attachments["web"].link
    assert node.netns.sysctl(f"net/ipv4/conf/{link}/route_localnet") == "1"
    # A tenant with CAP_NET_ADMIN in the pod's namespace sends to 127.0.0.1 over the veth.
    pod.set_sysctl("net/ipv4/conf/eth0/route_localnet", "1")
    pod.ip("rule", "add", "priority", "10", "lookup", "100")
    pod.ip("rule", "delete", "priority", "0")
    pod.ip("rule", "add", "priority", "20", "lookup", "local")
    pod.ip("route", "add", "127.0.0.1", "via", "169.254.1.1", "dev", "eth0", "onlink", "table", "100")
    assert ask(node.netns, "127.0.0.1", protocol, port=9999) == "secret 127.0.0.1"
    with pytest.raises(TimeoutError):
        ask(pod, "127.0.0.1", protocol, port=9999, seconds=1)
    # What would be seen without the table, so that this test can fail.
    nft(node.netns, f"flush chain inet {TABLE} guard\n")
    assert ask(pod, "127.0.0.1", protocol, port=9999).startswith("secret ")


# --- whose the port is


async def test_a_port_that_is_taken(node: Node, ports: HostPorts) -> None:
    await ports.publish(node.attachments["web"], (TCP,))
    with pytest.raises(HostPortTakenError, match="pod apps/web has host port 8080/TCP of this node"):
        await ports.publish(node.attachments["other"], (UDP, TCP))
    assert ask(node.outside, HOST[4]).startswith("web ")
    with pytest.raises(ConnectionRefusedError):
        ask(node.outside, HOST[4], Protocol.UDP)
    await ports.withdraw(node.attachments["web"].key)
    with pytest.raises(ConnectionRefusedError):
        ask(node.outside, HOST[4])
    await ports.publish(node.attachments["other"], (UDP, TCP))
    assert ask(node.outside, HOST[4]).startswith("other ")


@both_families
async def test_a_udp_conversation_goes_on_with_the_next_pod(node: Node, ports: HostPorts, version: int) -> None:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with node.outside.call(lambda: socket.socket(family, socket.SOCK_DGRAM)) as asking:
        asking.settimeout(5)
        asking.connect((HOST[version], PORT))

        def answer() -> str:
            asking.send(b"?")
            return asking.recv(64).decode()

        # Conntrack knows it before there is a pod at all.
        with pytest.raises(ConnectionRefusedError):
            answer()
        await ports.publish(node.attachments["web"], (UDP,))
        assert answer().startswith("web ")
        await ports.withdraw(node.attachments["web"].key)
        await ports.publish(node.attachments["other"], (UDP,))
        assert answer().startswith("other ")


# --- what survives


async def test_the_next_process_takes_them_over(node: Node, ports: HostPorts, open_ports: OpenPorts) -> None:
    await ports.publish(node.attachments["web"], (TCP,))
    await ports.publish(node.attachments["other"], (UDP,))
    after = await open_ports()
    # One of the pods went while nobody looked.
    await after.adopt([node.attachments["web"]])
    assert ask(node.outside, HOST[4]).startswith("web ")
    with pytest.raises(ConnectionRefusedError):
        ask(node.outside, HOST[4], Protocol.UDP)
    with pytest.raises(HostPortTakenError):
        await after.publish(node.attachments["other"], (TCP,))
    await after.withdraw(node.attachments["web"].key)
    await after.publish(node.attachments["other"], (TCP,))
    assert ask(node.outside, HOST[4]).startswith("other ")


async def test_a_node_without_host_ports_has_no_table(node: Node, ports: HostPorts) -> None:
    await ports.adopt(node.attachments.values())
    await ports.publish(node.attachments["web"], ())
    await ports.withdraw(node.attachments["web"].key)
    assert TABLE not in node.table()


async def test_what_others_do_to_the_table_is_undone(node: Node, ports: HostPorts) -> None:
    await ports.publish(node.attachments["web"], (TCP,))
    following = asyncio.create_task(ports.follow())
    for command in ("flush ruleset", f"delete table inet {TABLE}", f"flush map inet {TABLE} address4"):
        nft(node.netns, f"{command}\n")
        await asyncio.to_thread(wait_until, lambda: answers(node), what="the host port is back")
    following.cancel()


def answers(node: Node) -> bool:
    try:
        return ask(node.outside, HOST[4], seconds=0.5).startswith("web ")
    except OSError:
        return False


async def test_an_add_after_others_deleted_the_table(node: Node, ports: HostPorts) -> None:
    await ports.publish(node.attachments["web"], (TCP,))
    await ports.check(node.attachments["web"].key)
    nft(node.netns, f"delete table inet {TABLE}\n")
    with pytest.raises(PodCheckError, match="missing: host port 8080/TCP"):
        await ports.check(node.attachments["web"].key)
    await ports.publish(node.attachments["other"], (UDP,))
    await ports.check(node.attachments["web"].key)
    assert ask(node.outside, HOST[4]).startswith("web ")


async def test_all_that_is_published_is_withdrawn(node: Node, ports: HostPorts) -> None:
    for name, mapping in (("web", TCP), ("other", UDP)):
        await ports.publish(node.attachments[name], (mapping,))
    for name in node.pods:
        await ports.withdraw(node.attachments[name].key)
    left = node.netns.call(lambda: read_elements(plan_host_port_table())) or {}
    assert {name.name for name, words in left.items() if words} == {"own4", "own6"}
