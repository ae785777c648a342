"""A gateway node is lost in every way there is; its addresses go to another node, and never have two holders."""

from statistics import median

import pytest

from integration.eip.failover.traffic import PATIENCE, repeated_when_stalled, watched
from integration.eip.node import StageNode
from integration.eip.world import LEASES, World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver, pytest.mark.timing]

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
