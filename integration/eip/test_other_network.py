"""Beside what other programs do to packets: iptables drops whatever is forwarded, and pods on an idle gateway.

The masquerade rule at the usual priority and the strict reverse path filter are on every node, in every test.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from coil.eip.policy_bypass import POLICIES_BYPASSED
from coil_egress_agent.eip.forwarded_packets import POLICY_TRAFFIC_DROPPED
from integration.egress.capture import Capture
from integration.egress.conversation import Transfer
from integration.eip.node import StageNode
from integration.eip.world import GROUP, Gateway, World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

SIZE = 1 << 20
COMMANDS = ("iptables", "ip6tables")


@pytest.fixture
def dropping(world: World) -> Iterator[World]:
    """Forwarding is forbidden on all nodes, but for what enters or leaves a pod of theirs, as such plugins have it."""
    for node in world.nodes:
        for command in COMMANDS:
            node.kernel.run(command, "-P", "FORWARD", "DROP")
            node.kernel.run(command, "-A", "FORWARD", "-i", "pod+", "-j", "ACCEPT")
            node.kernel.run(command, "-A", "FORWARD", "-o", "pod+", "-j", "ACCEPT")
    yield world
    for node in world.nodes:
        for command in COMMANDS:
            node.kernel.run(command, "-F", "FORWARD")
            node.kernel.run(command, "-P", "FORWARD", "ACCEPT")


def test_a_forward_policy_that_drops_needs_the_shim(dropping: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        pod = stack.enter_context(dropping.pod("n3", app="dropped"))
        policy = stack.enter_context(dropping.policy(gateway, labels={"app": "dropped"}))
        eips = [policy.eip(4), policy.eip(6)]
        dropping.await_seen(pod, None)
        for node in dropping.nodes:
            restart(node, "--forward-shim")
            stack.callback(restart, node)
        dropping.restore()
        for eip in eips:
            dropping.await_seen(pod, eip)
        with Transfer(pod, dropping.server, dropping.server.addresses[4], size=SIZE) as transfer:
            transfer.wait()
        assert transfer.seen == eips[0]


@pytest.mark.slow  # the agents look once a minute
def test_a_forward_policy_that_drops_is_told_by_the_carriers_tunnel(dropping: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        pod = stack.enter_context(dropping.pod("n3", app="told"))
        policy = stack.enter_context(dropping.policy(gateway, labels={"app": "told"}))
        carrier = policy.wait_placed()
        dropping.await_seen(pod, None)
        wait_until(lambda: told(dropping, carrier).get("status") == "True", what="the drop is told", timeout=120)
        for family, table in (("IPv4", "ip"), ("IPv6", "ip6")):
            reason = f"nftables chain {table} filter FORWARD: its policy drops it"
            assert f"{family} from the tunnel to the uplink: {reason}" in told(dropping, carrier)["message"]
        assert told(dropping, "n3").get("status") == "False", "what enters or leaves its pods is accepted"
        for command in COMMANDS:
            dropping.node(carrier).kernel.run(command, "-P", "FORWARD", "ACCEPT")
        wait_until(lambda: told(dropping, carrier).get("status") == "False", what="the end is told", timeout=120)


@pytest.mark.slow  # the agents look once a minute
def test_links_of_a_data_plane_that_bypasses_policies_are_told(world: World) -> None:
    [node, *others] = world.nodes
    wait_until(lambda: told(world, node.name, POLICIES_BYPASSED).get("status") == "False", what="nothing is there")
    node.kernel.run("ip", "link", "add", "bpfin.cali", "type", "veth", "peer", "bpfout.cali")
    try:
        wait_until(lambda: told(world, node.name, POLICIES_BYPASSED).get("status") == "True", what="told", timeout=120)
        assert "Calico" in told(world, node.name, POLICIES_BYPASSED)["message"]
        assert {told(world, other.name, POLICIES_BYPASSED)["status"] for other in others} == {"False"}
    finally:
        node.kernel.run("ip", "link", "delete", "bpfin.cali")


def test_a_packet_of_a_pod_on_an_idle_gateway_takes_the_tunnel_once(world: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        policy = stack.enter_context(world.policy(gateway, labels={"app": "idle"}))
        [idle] = {"n1", "n2"} - {policy.wait_placed()}
        pod = stack.enter_context(world.pod(idle, app="idle"))
        for family in (4, 6):
            world.await_seen(pod, policy.eip(family))
        capture = stack.enter_context(Capture(world.node(idle).namespaces.net, "egress.vxlan"))
        destination = world.server.addresses[4]
        assert world.seen(pod, destination) == policy.eip()
        capture.wait_for(lambda packet: packet.destination == destination, what="the question in the tunnel")
        wait_until(lambda: capture.select(lambda packet: packet.source == destination), what="the answer in the tunnel")
        # One hop at its own node; a loop would have it again with less.
        [question] = capture.select(lambda packet: packet.destination == destination)
        assert question.ttl == 63


def told(world: World, node: str, condition: str = POLICY_TRAFFIC_DROPPED) -> dict[str, Any]:
    """What the node's EgressTunnel tells in that condition; nothing before it was looked at."""
    tunnel = world.api.find(f"{GROUP}/egresstunnels/{node}") or {}
    conditions = tunnel.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == condition), {})


def restart(node: StageNode, *flags: str) -> None:
    """Run its agent with other flags."""
    node.stop_agent()
    node.start_agent(*flags)
