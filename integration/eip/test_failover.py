"""A gateway node is lost in every way there is; its addresses go to another node, and never have two holders."""

from contextlib import ExitStack
from statistics import median

import pytest

from integration.eip.node import StageNode
from integration.eip.traffic import LABELS, PATIENCE, repeated_when_stalled, watched
from integration.eip.world import LEASES, World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

TRIALS = 6
ROUNDS = 30
"""Questions that must be without an answer before nobody is said to answer."""


@repeated_when_stalled
def test_nodes_that_lose_their_power_again_and_again(world: World) -> None:
    outages: list[float] = []
    with watched(world, "n1", "n2") as traffic:
        announcers = [traffic.holder.name]
        for _ in range(TRIALS):
            lost, figures = traffic.lose(StageNode.die)
            outages += figures
            holder = traffic.holder
            announcers.append(holder.name)
            traffic.assert_announced_by(*announcers)
            world.restore()
            world.await_lease(lost)
            # It is back, and gets nothing back.
            assert traffic.gateway.holders(traffic.eips[0]) == [holder.name]
            traffic.assert_announced_by(*announcers)
        assert {dialogue.seen for dialogue in traffic.dialogues} == set(traffic.eips)
    listed = ", ".join(f"{outage:.2f}" for outage in sorted(outages))
    print(f"\noutage of a flow, {TRIALS} losses of a node: median {median(outages):.2f} s of {listed}")


@repeated_when_stalled
def test_a_lost_node_whose_lease_is_deleted_as_well(world: World) -> None:
    def strike(node: StageNode) -> None:
        node.die()
        world.api.delete(f"{LEASES}/coil-eip-{node.name}")

    with watched(world, "n1", "n2") as traffic:
        announcers = [traffic.holder.name]
        lost, _ = traffic.lose(strike)
        announcers.append(traffic.holder.name)
        # It is revoked by being made anew: in nobody's hands, of the term that nobody may use again.
        lease = world.api.find(f"{LEASES}/coil-eip-{lost.name}")
        assert lease is not None
        assert lease["spec"].get("holderIdentity", "") == ""
        world.restore()
        world.await_lease(lost)
        traffic.assert_announced_by(*announcers)


@repeated_when_stalled
def test_a_node_that_has_lost_the_api_server_withdraws_first(world: World) -> None:
    with watched(world, "n1", "n2") as traffic:
        first = traffic.holder.name
        lost, outages = traffic.lose(StageNode.cut_off)
        traffic.assert_announced_by(first, traffic.holder.name)
        # Nobody could tell it to.
        wait_until(lambda: not lost.eips(), what=f"{lost.name} has taken its addresses off")
        lost.rejoin()
        world.restore()
        world.await_lease(lost)
        traffic.assert_announced_by(first, traffic.holder.name)
    print(f"\noutage, cut off from the API server: {outages}")


@repeated_when_stalled
def test_a_killed_agents_kernel_falls_silent(world: World) -> None:
    with watched(world, "n1", "n2") as traffic:
        first = traffic.holder.name
        lost, outages = traffic.lose(lambda node: node.agent.kill())
        traffic.assert_announced_by(first, traffic.holder.name)
        world.restore()
        world.await_lease(lost)
        traffic.assert_announced_by(first, traffic.holder.name)
    print(f"\noutage, agent killed: {outages}")


@repeated_when_stalled
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


@repeated_when_stalled
def test_an_agent_that_is_told_to_end_hands_over(world: World) -> None:
    with watched(world, "n1", "n2") as traffic:
        first = traffic.holder.name
        lost, outages = traffic.lose(StageNode.stop_agent)
        traffic.assert_announced_by(first, traffic.holder.name)
        assert lost.eips() == set()
        world.restore()
        world.await_lease(lost)
        traffic.assert_announced_by(first, traffic.holder.name)
    print(f"\noutage, handed over: {outages}")


@repeated_when_stalled
def test_an_agent_that_starts_again_at_once_keeps_its_addresses(world: World) -> None:
    with watched(world, "n1") as traffic:
        traffic.holder.agent.crash()
        world.restore()
        for flow in traffic.flows:
            flow.await_answer()
        traffic.assert_announced_by("n1")


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
        # Placed policies stay where they are, so all three nodes have to be there before the first is.
        wait_until(lambda: all(gateway.lists(node.name) for node in world.nodes), what="all nodes are gateways")
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
