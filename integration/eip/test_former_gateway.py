"""A node on which egressgateway has run gets Coil's agent, while a pod that a policy selects does not stop to send."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from coil.eip.egressgateway import AGENT_LABELS
from integration.egress.capture import Capture
from integration.eip.node import TUNNEL_DEVICE, StageNode
from integration.eip.test_start import await_asked, flows_of
from integration.eip.world import SHOP, World
from integration.netns.egressgateway_node import Installation, leave_state
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

LEFT: Final = """
    iptables-save | grep egw:
    ip6tables-save | grep egw:
    ip rule show priority 99
    ip -6 rule show priority 99
    ipset list -name
    true
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def left(node: StageNode) -> list[str]:
    return node.kernel.run("sh", "-c", LEFT).splitlines()


def test_a_node_is_taken_over_and_nothing_leaves_by_another_way(world: World, stack: ExitStack) -> None:
    labels = {"app": "moved"}
    node = world.node("n3")
    gateway = stack.enter_context(world.gateway("n1"))
    policy = stack.enter_context(world.policy(gateway, labels=labels))
    eips = {policy.eip(4), policy.eip(6)}
    pod = stack.enter_context(world.pod(node.name, **labels))
    for eip in eips:
        world.await_seen(pod, eip)
    node.stop_agent()
    node.clean_up()
    leave_state(node.netns, Installation(node=node.name, parent="eth0", pods=pod.addresses))
    before = left(node)
    theirs = dict(label.split("=") for label in AGENT_LABELS.split(","))
    former = node.make_pod(SHOP, theirs, host_network=True)
    stack.callback(node.delete_pod, former)
    # A tenant's, which calls itself so and stays: it holds up nothing.
    stack.callback(node.delete_pod, node.make_pod(SHOP, theirs))
    capture = stack.enter_context(Capture(world.server.netns))
    flows = flows_of(world, pod, stack)
    await_asked(flows)

    node.agent.start()
    refusals = {"not working on this node"}
    wait_until(
        lambda: any(line["event"] in refusals for line in node.agent.process.entries()),
        what="the agent refuses to work beside the other one",
    )
    assert left(node) == before
    assert node.kernel.ip("link", "show", "dev", TUNNEL_DEVICE)[0]["address"].startswith("66:")

    node.delete_pod(former)
    world.restore()
    wait_until(lambda: all(flow.answers for flow in flows), what="the flows are answered")
    assert left(node) == []
    ports = {flow.port for flow in flows}
    assert {packet.source for packet in capture.select(lambda packet: packet.port in ports)} == eips
