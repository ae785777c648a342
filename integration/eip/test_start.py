"""A pod that a policy selects has just started: from its first packet on, nothing of it leaves by another way."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from integration.egress.capture import Capture
from integration.eip.flow import Flow
from integration.eip.pod import Pod
from integration.eip.world import World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

MANY = 100


def flows_of(world: World, pod: Pod, stack: ExitStack) -> list[Flow]:
    """One for each family."""
    return [stack.enter_context(Flow(pod, world.server, address)) for address in world.server.addresses.values()]


def await_asked(flows: list[Flow]) -> None:
    before = [flow.asked for flow in flows]
    wait_until(
        lambda: all(flow.asked > asked + MANY for flow, asked in zip(flows, before, strict=True)),
        what="many more questions are asked",
    )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_nothing_leaves_before_its_address_is_known(world: World, stack: ExitStack) -> None:
    labels = {"app": "starting"}
    gateway = stack.enter_context(world.gateway("n1"))
    policy = stack.enter_context(world.policy(gateway, labels=labels))
    eips = {policy.eip(4), policy.eip(6)}
    other = stack.enter_context(world.pod("n3"))
    capture = stack.enter_context(Capture(world.server.netns))
    undisturbed = flows_of(world, other, stack)
    wait_until(lambda: all(flow.answers for flow in undisturbed), what="the flows are answered")
    pod = stack.enter_context(world.starting_pod("n3", **labels))
    wait_until(world.node("n3").holds_back, what="unknown sources are held back")
    flows = flows_of(world, pod, stack)
    await_asked(flows)
    assert not any(flow.answers for flow in flows)
    # Pods that are known begin new connections as ever.
    for address in world.node("n3").addresses.values():
        world.await_seen(other, address)
    world.node("n3").report(pod)
    wait_until(lambda: all(flow.answers for flow in flows), what="the flows are answered")
    ports = {flow.port for flow in flows}
    assert {packet.source for packet in capture.select(lambda packet: packet.port in ports)} == eips
    for flow in undisturbed:
        flow.await_answer()
    wait_until(lambda: not world.node("n3").holds_back(), what="unknown sources pass again")


def test_nothing_leaves_while_no_agent_runs(world: World, stack: ExitStack) -> None:
    labels = {"app": "unattended"}
    gateway = stack.enter_context(world.gateway("n1"))
    policy = stack.enter_context(world.policy(gateway, labels=labels))
    eips = {policy.eip(4), policy.eip(6)}
    known = stack.enter_context(world.pod("n2", **labels))
    for eip in eips:
        world.await_seen(known, eip)
    capture = stack.enter_context(Capture(world.server.netns))
    node = world.node("n2")
    node.agent.kill()
    wait_until(node.holds_back, what="what the agent has told of the node's pods expires")
    pod = stack.enter_context(world.starting_pod("n2", **labels))
    node.report(pod)
    flows = flows_of(world, pod, stack)
    await_asked(flows)
    assert not any(flow.answers for flow in flows)
    for eip in eips:
        world.await_seen(known, eip)
    world.restore()
    wait_until(lambda: all(flow.answers for flow in flows), what="the flows are answered")
    ports = {flow.port for flow in flows}
    assert {packet.source for packet in capture.select(lambda packet: packet.port in ports)} == eips
