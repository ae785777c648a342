"""Replicas that stand by: where no leader moves addresses that are nowhere, they do, and nothing else."""

from random import Random

import pytest

from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.names import NodeName
from coil.eip.gateway_lease import FENCE, MARGIN, lease_name
from coil.kube.lease_lock import LEASES
from coil_egress_controller.eip.standby import PATIENCE
from tests.coil_egress_controller.eip_world import LEASE_NAMESPACE, Agent, Replica, World, play
from tests.coil_egress_controller.test_eip_failover import POLICIES, build

SOON = 0.1


async def with_standby(world: World, *, number: int = 1) -> list[Replica]:
    """A leader at work, and so many that stand by."""
    standbys = [world.add_replica() for _ in range(number)]
    for standby in standbys:
        standby.stand_by()
    await build(world)
    return standbys


def moved(world: World, node: str = "n1") -> bool:
    return node not in world.listed().values() and len(world.holders()) == len(POLICIES)


def test_a_leader_that_dies_with_a_gateway_node_delays_nothing_but_for_a_moment() -> None:
    async def script(world: World) -> None:
        await with_standby(world)
        before = world.listed()
        await world.depose()
        await world.agents["n1"].kill()
        took = await world.until(lambda: moved(world))
        assert took < FENCE + MARGIN + 2 * PATIENCE + FENCE + SOON
        kept = {name: node for name, node in before.items() if node != "n1"}
        assert kept.items() <= world.listed().items()

    play(script)


def test_a_leader_that_works_is_left_alone() -> None:
    async def script(world: World) -> None:
        [standby] = await with_standby(world)
        await world.agents["n1"].kill()
        assert await world.until(lambda: moved(world)) < FENCE + MARGIN + FENCE
        world.agents["n1"] = Agent(world, "n1")
        world.add_policy("late")
        await world.until(lambda: world.all_placed("late"))
        await world.rest(30)
        assert standby.client.writes() == []

    play(script)


def test_without_a_leader_nothing_else_changes() -> None:
    async def script(world: World) -> None:
        [standby] = await with_standby(world)
        await world.depose()
        world.add_policy("late")
        await world.rest(30)
        assert standby.client.writes() == []
        world.lead()
        await world.until(lambda: world.all_placed("late"))

    play(script)


def test_what_stands_by_stops_before_it_leads() -> None:
    async def script(world: World) -> None:
        await build(world)
        await world.depose()
        world.leader.stand_by()
        await world.rest(1)
        world.lead()
        await world.rest(1)
        await world.agents["n1"].kill()
        assert await world.until(lambda: moved(world)) < FENCE + MARGIN + FENCE
        await world.depose()
        await world.agents["n2"].kill()
        took = await world.until(lambda: moved(world, "n2"))
        assert took > FENCE + MARGIN + PATIENCE

    play(script)


def test_a_node_that_has_begun_another_term_in_the_meantime() -> None:
    """What its addresses are listed for is over all the same."""

    def revoked(world: World) -> bool:
        document = world.document(LEASES, lease_name(NodeName("n1")), LEASE_NAMESPACE)
        return not document["spec"].get("holderIdentity")

    async def script(world: World) -> None:
        await with_standby(world)
        await world.depose()
        await world.agents["n1"].kill()
        await world.until(lambda: revoked(world))
        world.agents["n1"] = Agent(world, "n1")
        await world.until(lambda: not revoked(world))
        assert await world.until(lambda: len(world.holders()) == len(POLICIES)) < 2 * PATIENCE + FENCE

    play(script)


def test_each_loss_is_left_to_the_leader_for_a_moment() -> None:
    async def script(world: World) -> None:
        await with_standby(world)
        await world.depose()
        for node in ("n1", "n2"):
            await world.agents[node].kill()
            took = await world.until(lambda node=node: moved(world, node))  # type: ignore[misc]
            assert took > FENCE * 2 / 3 + MARGIN + 2 * PATIENCE

    play(script)


def test_a_node_without_addresses_is_the_leaders_alone() -> None:
    async def script(world: World) -> None:
        [standby] = await with_standby(world)
        world.add_node("spare")
        await world.rest(5)
        assert "spare" in {node.name for node in world.gateway().status.node_list}
        assert "spare" not in world.listed().values()
        await world.depose()
        await world.agents["spare"].kill()
        await world.rest(5)
        assert standby.writes("egressgateways") == 0

    play(script)


def test_a_policy_that_it_does_not_know_keeps_its_address() -> None:
    """Its cache may be behind: without the policy it would decide to take the address away."""

    async def script(world: World) -> None:
        [standby] = await with_standby(world)
        standby.caches.policies.look = lambda: None  # type: ignore[attr-defined]
        world.add_policy("late")
        await world.until(lambda: world.all_placed("late"))
        await world.depose()
        await world.agents["n1"].kill()
        await world.rest(5)
        assert "late" in world.listed()
        assert standby.writes("egressgateways") == 0
        del standby.caches.policies.look  # type: ignore[attr-defined]
        world.change(EGRESS_GATEWAY_POLICIES, "late", "shop", labels={"seen": "true"})
        await world.until(lambda: "n1" not in world.listed().values() and len(world.listed()) == len(POLICIES) + 1)

    play(script)


def test_a_policy_that_is_deleted_meanwhile_holds_up_nobody() -> None:
    """Nobody takes it out of the status, and whoever deletes one after the other would keep all addresses away."""

    async def script(world: World) -> None:
        await with_standby(world)
        gone = next(name for name, node in world.listed().items() if node == "n2")
        await world.depose()
        await world.agents["n1"].kill()
        world.api.remove(EGRESS_GATEWAY_POLICIES, gone, "shop")
        await world.until(lambda: "n1" not in world.listed().values())
        took = await world.until(lambda: len(world.holders()) == len(POLICIES) - 1)
        assert took < FENCE
        assert gone not in world.listed()

    play(script)


@pytest.mark.parametrize("seed", range(40))
def test_no_address_is_ever_at_two_nodes_however_many_decide(seed: int) -> None:
    """The world fails as soon as one is: nodes die, are cut off and come back, replicas lead and are slow."""

    async def script(world: World) -> None:
        random = Random(seed)
        standbys = await with_standby(world, number=2)
        leads = True
        for _ in range(40):
            node = random.choice(["n1", "n2", "n3"])
            match random.choice(["kill", "cut", "back", "lead", "slow", "stale", "label", "wait"]):
                case "kill":
                    await world.agents[node].kill()
                case "cut":
                    world.agents[node].cut = True
                case "back":
                    await world.agents[node].kill()
                    world.agents[node] = Agent(world, node)
                case "lead":
                    if leads:
                        await world.depose()
                    else:
                        world.lead()
                    leads = not leads
                case "slow":
                    random.choice(standbys).network.delay = random.choice([0.004, 0.1, 0.5])
                case "stale":
                    random.choice(standbys).late = random.choice([0.003, 0.3, 2.0])
                case "label":
                    policy, value = random.choice(POLICIES), str(random.random())
                    world.change(EGRESS_GATEWAY_POLICIES, policy, "shop", labels={"a": value})
            await world.rest(random.choice([0.0, 0.05, 0.3, 1.0, 3.0]))
        for name in ("n1", "n2", "n3"):
            await world.agents[name].kill()
            world.agents[name] = Agent(world, name)
        if not leads:
            world.lead()
        await world.until(lambda: world.all_placed(*POLICIES) and len(world.holders()) == len(POLICIES), within=60)

    play(script)
