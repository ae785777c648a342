"""The controller that leads is lost in the same moment as a gateway node: the other one has to see to the addresses.

It does so long before the leader's lease runs out, and revokes no other node's.
"""

import signal

import pytest

from integration.apiserver.egress_world import EgressReplica
from integration.eip.controllers import Controllers
from integration.eip.failover.traffic import Watched, repeated_when_stalled, watched
from integration.eip.node import StageNode
from integration.eip.world import World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver, pytest.mark.timing]


def lose_both(traffic: Watched, leader: EgressReplica, how: signal.Signals) -> tuple[StageNode, list[float]]:
    """The leader first, so that it cannot see the node's silence; returns when all works again."""

    def strike(node: StageNode) -> None:
        leader.service.process.send_signal(how)
        node.die()

    return traffic.lose(strike)


def revocations(leader: EgressReplica) -> list[str]:
    """The nodes whose leases it has revoked, one after the other."""
    return [line["node"] for line in leader.logged("a gateway node is silent, its lease is revoked")]


@repeated_when_stalled
def test_leader_and_gateway_node_are_killed_together(world: World, controllers: Controllers) -> None:
    with watched(world, "n1", "n2") as traffic:
        announcers = [traffic.holder.name]
        for _ in range(2):
            leader = controllers.leader()
            successor = controllers.standby()
            before = revocations(successor)
            lost, outages = lose_both(traffic, leader, signal.SIGKILL)
            assert controllers.leader() is successor
            [holder] = traffic.gateway.holders(traffic.eips[0])
            announcers.append(holder)
            traffic.assert_announced_by(*announcers)
            # Of all the nodes that it had not heard of, it took the lease of that one alone, and once.
            assert revocations(successor) == [*before, lost.name]
            print(f"\noutage, leader and {lost.name} killed: {', '.join(f'{outage:.2f}' for outage in outages)} s")
            controllers.restore()
            world.restore()
            world.await_lease(lost)
            assert traffic.gateway.holders(traffic.eips[0]) == [holder]
            traffic.assert_announced_by(*announcers)
        assert {dialogue.seen for dialogue in traffic.dialogues} == set(traffic.eips)


@repeated_when_stalled
@pytest.mark.parametrize("succeeded", [False, True], ids=["as leader", "succeeded"])
def test_a_leader_that_wakes_up_later_changes_nothing(
    world: World, controllers: Controllers, *, succeeded: bool
) -> None:
    with watched(world, "n1", "n2") as traffic:
        first = traffic.holder.name
        leader, successor = controllers.leader(), controllers.standby()
        before = revocations(leader)
        lost, _ = lose_both(traffic, leader, signal.SIGSTOP)
        [holder] = traffic.gateway.holders(traffic.eips[0])
        # It goes on where it stood: with leases that it holds for silent, and a status that has long been replaced.
        if succeeded:
            wait_until(successor.leads, what="the other one leads")
        leader.service.process.send_signal(signal.SIGCONT)
        if succeeded:
            assert controllers.leader() is successor
        controllers.restore()
        world.restore()
        world.await_lease(lost)
        assert revocations(leader) == before
        assert traffic.gateway.holders(traffic.eips[0]) == [holder]
        traffic.assert_announced_by(first, holder)
