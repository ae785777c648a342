"""A gateway node is lost in every way there is; its addresses go to another node, and never have two holders."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import pytest

from integration.eip.announcement import Announcements
from integration.eip.flow import Dialogue, Flow
from integration.eip.node import StageNode
from integration.eip.solicitor import Solicitor
from integration.eip.world import Gateway, Policy, World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

TRIALS = 6
PATIENCE = 30.0
"""Seconds until another node must serve; it takes about one."""
LABELS = {"app": "failover"}
ROUNDS = 30
"""Questions that must be without an answer before nobody is said to answer."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A policy with traffic that never pauses, and everything that is said about its addresses on the link."""

    world: World
    gateway: Gateway
    policy: Policy
    heard: Announcements
    asking: Solicitor
    flows: list[Flow]
    dialogues: list[Dialogue]
    eips: list[str]

    @property
    def holder(self) -> StageNode:
        return self.world.node(self.policy.wait_placed())

    def lose(self, how: Callable[[StageNode], None]) -> tuple[StageNode, list[float]]:
        """Have something happen to the holder, and wait until all works again; who it was, and the flows' outages."""
        lost = self.holder
        rounds = [dialogue.rounds for dialogue in self.dialogues]
        begin = time.monotonic()
        how(lost)
        others = [node.name for node in self.world.nodes if node is not lost]
        for eip in self.eips:
            self.heard.await_last(eip, *others, timeout=PATIENCE)
        for flow in self.flows:
            flow.await_answer(timeout=PATIENCE)
        for dialogue, before in zip(self.dialogues, rounds, strict=True):
            dialogue.await_rounds(10, after=before, timeout=PATIENCE)
        return lost, [flow.outage(since=begin) for flow in self.flows]

    def assert_turns(self, *nodes: str) -> None:
        """These have spoken for the addresses, one after the other, and none between another one's words."""
        for eip in self.eips:
            assert self.heard.ports(eip) == list(nodes), eip


@contextmanager
def watched(world: World, *nodes: str) -> Iterator[Watched]:
    """A gateway on those nodes, its policy, a pod on n3 that talks over UDP and TCP in both families."""
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway(*nodes, number=1))
        pod = stack.enter_context(world.pod("n3", **LABELS))
        policy = stack.enter_context(world.policy(gateway, labels=LABELS))
        eips = [policy.eip(4), policy.eip(6)]
        for eip in eips:
            world.await_seen(pod, eip)
        heard = stack.enter_context(world.announcements())
        asking = stack.enter_context(Solicitor(world.server.netns, world.server.addresses, *eips))
        servers = world.server.addresses.values()
        flows = [stack.enter_context(Flow(pod, world.server, address)) for address in servers]
        dialogues = [stack.enter_context(Dialogue(pod, world.server, address)) for address in servers]
        wait_until(lambda: all(flow.answers for flow in flows), what="the flows are answered")
        for dialogue in dialogues:
            dialogue.await_rounds(3)
        for eip in eips:
            heard.await_last(eip, *nodes)
        yield Watched(world, gateway, policy, heard, asking, flows, dialogues, eips)


def test_nodes_that_lose_their_power_again_and_again(world: World) -> None:
    outages: list[float] = []
    with watched(world, "n1", "n2") as traffic:
        turns = [traffic.holder.name]
        for _ in range(TRIALS):
            lost, figures = traffic.lose(StageNode.die)
            outages += figures
            holder = traffic.holder
            turns.append(holder.name)
            traffic.assert_turns(*turns)
            world.restore()
            world.await_lease(lost)
            # It is back, and gets nothing back.
            assert traffic.gateway.holders(traffic.eips[0]) == [holder.name]
            traffic.assert_turns(*turns)
        assert {dialogue.seen for dialogue in traffic.dialogues} == set(traffic.eips)
    listed = ", ".join(f"{outage:.2f}" for outage in sorted(outages))
    print(f"\noutage of a flow, {TRIALS} losses of a node: median {median(outages):.2f} s of {listed}")


def test_a_node_that_has_lost_the_api_server_withdraws_first(world: World) -> None:
    with watched(world, "n1", "n2") as traffic:
        first = traffic.holder.name
        lost, outages = traffic.lose(StageNode.cut_off)
        traffic.assert_turns(first, traffic.holder.name)
        # Nobody could tell it to.
        wait_until(lambda: not lost.eips(), what=f"{lost.name} has taken its addresses off")
        lost.rejoin()
        world.restore()
        world.await_lease(lost)
        traffic.assert_turns(first, traffic.holder.name)
    print(f"\noutage, cut off from the API server: {outages}")


def test_a_killed_agents_kernel_falls_silent(world: World) -> None:
    with watched(world, "n1", "n2") as traffic:
        first = traffic.holder.name
        lost, outages = traffic.lose(lambda node: node.agent.kill())
        traffic.assert_turns(first, traffic.holder.name)
        world.restore()
        world.await_lease(lost)
        traffic.assert_turns(first, traffic.holder.name)
    print(f"\noutage, agent killed: {outages}")


def test_a_killed_agents_kernel_falls_silent_even_if_nobody_takes_over(world: World) -> None:
    with watched(world, "n1") as traffic:
        traffic.holder.agent.kill()

        def silent() -> bool:
            said = sum(len(traffic.heard.of(eip)) for eip in traffic.eips)
            until = traffic.asking.rounds + ROUNDS
            wait_until(lambda: traffic.asking.rounds > until, what="it is asked")
            return sum(len(traffic.heard.of(eip)) for eip in traffic.eips) == said

        wait_until(silent, what="nobody answers", timeout=PATIENCE)
        world.restore()
        for flow in traffic.flows:
            flow.await_answer()


def test_an_agent_that_is_told_to_end_hands_over(world: World) -> None:
    with watched(world, "n1", "n2") as traffic:
        first = traffic.holder.name
        lost, outages = traffic.lose(StageNode.stop_agent)
        traffic.assert_turns(first, traffic.holder.name)
        assert lost.eips() == set()
        world.restore()
        world.await_lease(lost)
        traffic.assert_turns(first, traffic.holder.name)
    print(f"\noutage, handed over: {outages}")


def test_an_agent_that_starts_again_at_once_keeps_its_addresses(world: World) -> None:
    with watched(world, "n1") as traffic:
        traffic.holder.agent.crash()
        world.restore()
        for flow in traffic.flows:
            flow.await_answer()
        traffic.assert_turns("n1")


def test_a_lost_node_that_comes_back_as_no_gateway_is_ready(world: World) -> None:
    with world.gateway("n3", number=1) as gateway, world.policy(gateway, labels=LABELS) as policy:
        policy.wait_placed()
        world.node("n3").die()
        wait_until(lambda: world.phase(world.node("n3")) == "HeartbeatTimeout", what="n3 is said to be silent")
    world.restore()
    assert world.phase(world.node("n3")) == "Ready"


def test_the_addresses_of_a_lost_node_are_spread(world: World) -> None:
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", "n2", "n3", number=4))
        policies = [stack.enter_context(world.policy(gateway, labels={"app": f"spread{n}"})) for n in range(4)]
        pods = [stack.enter_context(world.pod("n3", app=f"spread{n}")) for n in range(4)]
        for policy, pod in zip(policies, pods, strict=True):
            world.await_seen(pod, policy.eip())
        before = {policy.name: policy.wait_placed() for policy in policies}
        assert set(before.values()) == {"n1", "n2", "n3"}
        world.node("n1").die()
        for policy, pod in zip(policies, pods, strict=True):
            policy.wait_placed(elsewhere="n1")
            world.await_seen(pod, policy.eip())
        after = {policy.name: policy.wait_placed() for policy in policies}
        assert all(after[name] == node for name, node in before.items() if node != "n1")
        assert sorted(list(after.values()).count(node) for node in ("n2", "n3")) == [2, 2]
