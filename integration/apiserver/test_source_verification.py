"""coild as it starts by default keeps pods to their own addresses: the real process, plugin and kernel."""

import re
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from coil.podnet.source_table import SPOOFED, TABLE
from integration.apiserver.bare_node import BareNode
from integration.apiserver.runtime import Runtime, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.egress.capture import Capture, Packet
from integration.netns.forged_packet import FORGED, udp
from integration.netns.netns import call_inside
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

METRIC = "coil_node_spoofed_packets_total"
STRANGER = {4: "203.0.113.9", 6: "2001:db8::9"}
_HEADER_INCLUDED = 36  # IPV6_HDRINCL, linux/in6.h


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[BareNode]:
    with BareNode.up(plane) as node:
        node.make_pool("dual", {"ipv4": "10.97.0.0/24", "ipv6": "fd97::/120"}, bits=3)
        node.make_namespace("tenant", pool="dual")
        controller = node.start_controller()
        yield node
        controller.process.stop()


@pytest.fixture
def runtime(node: BareNode) -> Iterator[Runtime]:
    yield node.install_plugin()
    node.destroy_sandboxes()


@contextmanager
def running(node: BareNode, *flags: str) -> Iterator[None]:
    """coild with nothing but these flags of the test's."""
    coild = node.start_coild(*flags)
    try:
        coild.wait_ready()
        yield
    finally:
        coild.process.stop()


def add_pod(node: BareNode, runtime: Runtime) -> tuple[Sandbox, dict[int, str]]:
    """A new pod and its addresses by IP version."""
    name = PodName("tenant", f"pod-{secrets.token_hex(3)}")
    sandbox = node.make_sandbox(name, container_id=secrets.token_hex(32))
    addresses = addresses_of(runtime.add(sandbox))
    return sandbox, {ip_address(address).version: address for address in addresses}


def send(sandbox: Sandbox, source: str, destination: str) -> None:
    """A packet of UDP with any source, as who has CAP_NET_RAW sends it."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    packet = udp(ip_address(source), ip_address(destination))
    with call_inside(Path(sandbox.netns), lambda: socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)) as raw:
        if family == socket.AF_INET6:
            raw.setsockopt(socket.IPPROTO_IPV6, _HEADER_INCLUDED, 1)
        raw.sendto(packet, (destination, 0))


def is_forged(packet: Packet) -> bool:
    return packet.payload.startswith(FORGED)


def from_source(source: str) -> Callable[[Packet], bool]:
    return lambda packet: packet.source == source


def count(node: BareNode) -> int:
    [packets] = re.findall(r"packets (\d+)", node.kernel.run("nft", "list", "counter", "inet", TABLE, SPOOFED))
    return int(packets)


def test_by_default_a_pod_sends_with_its_own_addresses_only(node: BareNode, runtime: Runtime) -> None:
    with running(node):
        attacker, own = add_pod(node, runtime)
        victim, targets = add_pod(node, runtime)
        for version, target in targets.items():
            before, exported = count(node), node.coild_metrics()[METRIC]
            with Capture(Path(victim.netns), keep=is_forged) as wire:
                # What the other one sends to itself would pass for its own.
                for source in (STRANGER[version], target):
                    send(attacker, source, target)
                send(attacker, own[version], target)
                wire.wait_for(from_source(own[version]), what="what it may send arrives")
                assert {packet.source for packet in wire.packets()} == {own[version]}
            assert count(node) >= before + 2
            wait_until(
                lambda exported=exported: node.coild_metrics()[METRIC] >= exported + 2,  # type: ignore[misc]
                what="the metric has counted them",
            )


def test_without_verification_it_sends_with_any(node: BareNode, runtime: Runtime) -> None:
    """So that the test above can fail."""
    with running(node, "--verify-source=false"):
        attacker, _ = add_pod(node, runtime)
        victim, targets = add_pod(node, runtime)
        for version, target in targets.items():
            with Capture(Path(victim.netns), keep=is_forged) as wire:
                send(attacker, STRANGER[version], target)
                wire.wait_for(from_source(STRANGER[version]), what="the forged packet arrives")
