"""Where pods' packets go, by which interface, and as whose: captures on the nodes' links are the oracle.

Each node has a pod on its primary interface and one on another. On node-1, on-premises is excluded from translation,
and connections that are translated keep their source ports.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import pytest

from coil.kernel.family import IPAddress
from coild.eni.node_network import REAPPLY_SECONDS
from integration.apiserver.refusal_log import missing_rights
from integration.aws import administrator
from integration.aws.node import EniNode, EniPod
from integration.aws.talk import SILENCE, ask, connects, resolve, shout
from integration.aws.vpc import METADATA, Host
from integration.aws.vpc_plan import INTERNET, ON_PREMISES, OUTSIDE
from integration.aws.world import FLAGS, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.egress.capture import Capture, Packet
from integration.kernel_state import KernelState
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

LINKS: Final = ("eth0", "eth1")
NODE_PORT, POD_PORT = 30080, 8080
MEND_SECONDS: Final = REAPPLY_SECONDS / 2
"""Less than the time between two comparisons that nothing prompts."""


@dataclass(frozen=True, slots=True)
class Populated:
    """The world, and by node its pods: one on eth0, one on eth1."""

    world: EniWorld
    pods: list[tuple[EniPod, EniPod]]

    def every_pod(self) -> list[EniPod]:
        return [pod for pods in self.pods for pod in pods]


@pytest.fixture(scope="module")
def populated(plane: ControlPlane) -> Iterator[Populated]:
    with EniWorld.up(plane) as world:
        administrator.allow(world.ec2, administrator.default_group(world.ec2), network=f"{OUTSIDE[ON_PREMISES]}/32")
        first, second = world.nodes
        first.start_coild(*FLAGS)
        second.start_coild(*FLAGS, f"--exclude-snat-cidrs={OUTSIDE[ON_PREMISES]}/32", "--randomize-snat=off")
        yield Populated(world, [(first, second) for first, second, *_ in (each.pods_on(0, 1) for each in world.nodes)])
        # No packet was ever sent by an interface that had no right to, and coild had every right that it wanted.
        assert world.spoofed() == []
        for node in world.nodes:
            assert missing_rights(node.coild.process.log) == []


@contextmanager
def watched(node: EniNode) -> Iterator[dict[str, Capture]]:
    """What goes over the node's interfaces."""
    with ExitStack() as stack:
        yield {link: stack.enter_context(Capture(node.namespaces.net, link)) for link in LINKS}


def is_between(one: object, other: object, packet: Packet) -> bool:
    return {packet.source, packet.destination} == {str(one), str(other)}


def assert_only_by(link: str, seen: dict[str, Capture], one: object, other: object) -> None:
    """Question and answer between these two went over that link, and over no other."""
    between = partial(is_between, one, other)
    seen[link].wait_for(lambda packet: between(packet) and packet.source == str(other), what="the answer")
    assert {name for name, capture in seen.items() if capture.select(between)} == {link}


def pods_of(populated: Populated) -> list[tuple[EniNode, EniPod]]:
    return [(pod.node, pod) for pod in populated.every_pod()]


def test_a_pod_on_the_same_host(populated: Populated) -> None:
    for first, second in populated.pods:
        for client, server in ((first, second), (second, first)):
            with watched(client.node) as seen:
                assert ask(client.host, server.host, server.address) == str(client.address)
                shout(client.host, populated.world.endpoint.primary)
                seen[client.link].wait_for(lambda packet: packet.port == 9, what="what was sent after it")
            between = partial(is_between, client.address, server.address)
            assert not any(capture.select(between) for capture in seen.values()), "it stays on the host"


def test_a_pod_on_another_host(populated: Populated) -> None:
    here, there = populated.pods
    for client in here:
        for server in there:
            with watched(client.node) as near, watched(server.node) as far:
                assert ask(client.host, server.host, server.address) == str(client.address)
                assert_only_by(client.link, near, client.address, server.address)
                assert_only_by(server.link, far, server.address, client.address)


def test_nodes_and_pods_reach_each_other(populated: Populated) -> None:
    for node in populated.world.nodes:
        for pod in populated.every_pod():
            seen = ask(node.host, pod.host, pod.address)
            assert seen == (str(node.instance.primary) if pod.node is not node else seen)
            assert ask(pod.host, node.host, node.instance.primary) == str(pod.address)


def test_an_aws_service_in_the_vpc(populated: Populated) -> None:
    endpoint = populated.world.endpoint
    for node, pod in pods_of(populated):
        with watched(node) as seen:
            assert ask(pod.host, endpoint.host, endpoint.primary) == str(pod.address)
            assert_only_by(pod.link, seen, pod.address, endpoint.primary)
        assert ask(endpoint.host, pod.host, pod.address) == str(endpoint.primary)


def test_the_vpcs_resolver(populated: Populated) -> None:
    for node, pod in pods_of(populated):
        with watched(node) as seen:
            assert resolve(pod.host, populated.world.vpc.resolver) == str(pod.address)
            assert_only_by(pod.link, seen, pod.address, populated.world.vpc.resolver)


def test_on_premises_by_the_primary_address_unless_it_is_excluded(populated: Populated) -> None:
    there, address = populated.world.vpc.on_premises, OUTSIDE[ON_PREMISES]
    for node, pod in pods_of(populated):
        excluded = node is populated.world.nodes[1]
        source, link = (pod.address, pod.link) if excluded else (node.instance.primary, "eth0")
        with watched(node) as seen:
            assert ask(pod.host, there, str(address)) == str(source)
            assert_only_by(link, seen, source, address)
            if not excluded:
                assert not seen["eth1"].select(lambda packet: packet.destination == str(address))


def test_the_internet_by_the_primary_address(populated: Populated) -> None:
    there, address = populated.world.vpc.internet, OUTSIDE[INTERNET]
    for node, pod in pods_of(populated):
        with watched(node) as seen:
            assert ask(pod.host, there, address) == str(node.instance.primary)
            assert_only_by("eth0", seen, node.instance.primary, address)


def test_source_ports_of_what_is_translated(populated: Populated) -> None:
    """Drawn on node-0, kept on node-1."""
    there, address = populated.world.vpc.internet, str(OUTSIDE[INTERNET])
    own = range(40_000, 40_008)
    for drawn, pods in zip((True, False), populated.pods, strict=True):
        for destination, pod in enumerate(pods, 20_000):
            with there.socket(socket.SOCK_DGRAM, address) as answering:
                # Not one of which the kernel may still know a connection.
                answering.bind((address, destination))
                for port in own:
                    with pod.host.socket(socket.SOCK_DGRAM, address) as asking:
                        asking.bind((str(pod.address), port))
                        asking.sendto(b"question", answering.getsockname())
                peers = [answering.recvfrom(64)[1] for _ in own]
            assert {host for host, _ in peers} == {str(pod.node.instance.primary)}
            # That all of them are drawn as they were is 1 in 10^38.
            assert ([port for _, port in peers] == [*own]) is not drawn


def test_metadata_is_for_the_node_and_not_for_pods(populated: Populated) -> None:
    for node, pod in pods_of(populated):
        with watched(node) as seen:
            shout(pod.host, METADATA, port=80)
            assert not connects(pod.host, str(METADATA), 80, patience=SILENCE)
            assert connects(node.host, str(METADATA), 80)
            seen["eth0"].wait_for(lambda packet: packet.destination == str(METADATA), what="the node's question")
            sources = {packet.source for capture in seen.values() for packet in capture.packets() if packet.port == 80}
        assert sources == {str(node.instance.primary)}


def test_flow_records_have_the_pods_own_addresses(populated: Populated) -> None:
    [_, pod], endpoint = populated.pods[0], populated.world.endpoint
    ask(pod.host, endpoint.host, endpoint.primary)
    found = [record for record in populated.world.vpc.flows() if record.source == pod.address]
    assert {record.interface for record in found} >= {pod.interface.id, endpoint.interfaces[0].id}


def test_a_service_port_of_the_node_leads_to_a_pod_of_another_interface(populated: Populated) -> None:
    """In and out by the primary interface: kube-proxy translates the answer back on the node, whoever asks."""
    world = populated.world
    [_, pod] = populated.pods[0]
    node = pod.node
    administrator.allow(world.ec2, administrator.default_group(world.ec2), network=f"{OUTSIDE[INTERNET]}/32")
    with service_port(node, node.instance.primary, pod):
        for client, own in (
            (world.vpc.internet, OUTSIDE[INTERNET]),
            (world.endpoint.host, world.endpoint.primary),
            (world.nodes[1].host, world.nodes[1].instance.primary),
        ):
            with watched(node) as seen:
                assert knock(client, pod.host, node.instance.primary) == str(own)
                assert_only_by("eth0", seen, own, node.instance.primary)
                assert not seen["eth1"].select(lambda packet: str(pod.address) in (packet.source, packet.destination))


def test_a_reverse_path_filter_that_somebody_makes_strict_drops_nothing_for_long(populated: Populated) -> None:
    """All filters were strict when the node was switched on."""
    world, [_, pod] = populated.world, populated.pods[0]
    node, kernel = pod.node, KernelState(str(pod.node.namespaces.net))
    filters = {name: f"net/ipv4/conf/{name}/rp_filter" for name in ("all", *LINKS)}
    assert [kernel.sysctl(path) for path in filters.values()] == ["1", "2", "2"]
    node.namespaces.set_sysctls([f"net.ipv4.conf.{link}.rp_filter=1" for link in LINKS])
    wait_until(
        lambda: {kernel.sysctl(filters[link]) for link in LINKS} == {"2"}, what="loose filters", timeout=MEND_SECONDS
    )
    with service_port(node, node.instance.primary, pod):
        client = world.endpoint
        assert knock(client.host, pod.host, node.instance.primary) == str(client.primary)


def test_a_service_port_of_any_interface_is_answered_by_that_interface(populated: Populated) -> None:
    """Whichever interface the pod behind it has: EC2 takes the interface's address by no other."""
    world, pods = populated.world, populated.pods[0]
    node = pods[0].node
    for interface in node.instance.interfaces[:2]:
        address = interface.addresses[0]
        for pod in pods:
            with service_port(node, address, pod):
                for client, own in (
                    (world.vpc.on_premises, OUTSIDE[ON_PREMISES]),
                    (world.endpoint.host, world.endpoint.primary),
                ):
                    with watched(node) as seen:
                        assert knock(client, pod.host, address) == str(own)
                        assert_only_by(f"eth{interface.device}", seen, own, address)
    assert world.spoofed() == []


def test_clients_outside_the_vpc_reach_pods_directly_and_pods_reach_them(populated: Populated) -> None:
    """As a load balancer with addresses as its targets, or from a network that is peered: the answer has the pod's
    address, and leaves by the pod's interface; what the pod itself asks the same host is translated as ever.
    """
    world, address = populated.world, OUTSIDE[ON_PREMISES]
    for pod in populated.pods[0]:
        for _ in range(2):
            with watched(pod.node) as seen:
                assert ask(world.vpc.on_premises, pod.host, pod.address) == str(address)
                assert_only_by(pod.link, seen, address, pod.address)
            with watched(pod.node) as seen:
                assert ask(pod.host, world.vpc.on_premises, address) == str(pod.node.instance.primary)
                assert_only_by("eth0", seen, pod.node.instance.primary, address)
    assert world.spoofed() == []


@contextmanager
def service_port(node: EniNode, address: IPAddress, pod: EniPod) -> Iterator[None]:
    """A port of that address of the node leads to the pod, as kube-proxy does it."""
    for line in (
        "add table ip service",
        "add chain ip service nodeports { type nat hook prerouting priority dstnat; }",
        f"add rule ip service nodeports ip daddr {address} udp dport {NODE_PORT} dnat to {pod.address}:{POD_PORT}",
    ):
        node.namespaces.run("nft", line)
    try:
        yield
    finally:
        node.namespaces.run("nft", "delete table ip service")


def knock(client: Host, server: Host, address: IPAddress) -> str:
    """Ask that address at the port that leads to the server; whom it saw."""
    with ExitStack() as stack:
        kind = socket.SOCK_DGRAM
        asking, answering = (stack.enter_context(each.socket(kind, str(address))) for each in (client, server))
        answering.bind(("0.0.0.0", POD_PORT))
        asking.connect((str(address), NODE_PORT))
        asking.send(b"question")
        _, peer = answering.recvfrom(64)
        answering.sendto(b"answer", peer)
        assert asking.recv(64) == b"answer"
        return str(peer[0])
