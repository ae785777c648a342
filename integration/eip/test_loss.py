"""A gateway node is lost, however long it takes to notice; `failover` has what depends on that time."""

from contextlib import ExitStack

import pytest

from integration.eip.world import World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

LABELS = {"app": "lost"}


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
