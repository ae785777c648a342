"""Gateway nodes that die, are cut off, or go in peace: their addresses move, soon, and are never at two nodes."""

from coil.crd.builtin import NODES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.eip.gateway_lease import FENCE, MARGIN, lease_name
from coil.kube.lease_lock import LEASES
from tests.coil_egress_controller.eip_world import LEASE_NAMESPACE, Agent, World, play

POLICIES = tuple(f"p{number}" for number in range(6))


async def build(world: World, *nodes: str) -> None:
    """Three gateway nodes with an agent each, and six policies that are carried."""
    world.add_namespace("shop")
    for name in nodes or ("n1", "n2", "n3"):
        world.add_node(name)
    world.add_gateway()
    world.lead()
    await world.until(lambda: all(phase(world, name) == "Ready" for name in world.agents))
    for name in POLICIES:
        world.add_policy(name)
    await world.until(lambda: world.all_placed(*POLICIES) and len(world.holders()) == len(POLICIES))


def phase(world: World, node: str) -> str:
    found = world.api.find_document(EGRESS_TUNNELS, node) or {}
    return str(found.get("status", {}).get("phase", ""))


def test_policies_are_spread_and_their_addresses_answer() -> None:
    async def script(world: World) -> None:
        await build(world)
        listed = world.listed()
        assert sorted(listed.values()) == ["n1", "n1", "n2", "n2", "n3", "n3"]
        assert {world.policy(name).status.eip.ipv4: listed[name] for name in POLICIES} == world.holders()

    play(script)


def test_the_addresses_of_a_node_that_dies_are_spread_over_the_others() -> None:
    async def script(world: World) -> None:
        await build(world)
        before = world.listed()
        await world.agents["n1"].kill()
        died = world.clock()
        await world.until(lambda: "n1" not in world.listed().values() and len(world.listed()) == 6)
        took = world.clock() - died
        # The fence runs from the last renewal, which was sent up to a third of it before.
        assert took < FENCE + MARGIN + 0.05
        after = world.listed()
        assert sorted(after.values()) == ["n2", "n2", "n2", "n3", "n3", "n3"]
        assert {name: node for name, node in before.items() if node != "n1"}.items() <= after.items()
        await world.until(lambda: len(world.holders()) == 6)
        await world.until(lambda: world.all_placed(*POLICIES) and phase(world, "n1") == "HeartbeatTimeout")
        # It comes back, and takes nothing.
        world.agents["n1"] = Agent(world, "n1")
        await world.until(lambda: phase(world, "n1") == "Ready")
        await world.until(lambda: world.gateway().status.node_list[0].status == "Ready")
        assert world.listed() == after

    play(script)


def test_a_node_that_is_cut_off_has_withdrawn_before_another_answers() -> None:
    async def script(world: World) -> None:
        await build(world)
        mine = {address for address, node in world.holders().items() if node == "n1"}
        world.agents["n1"].cut = True
        await world.until(lambda: not mine & world.holders().keys())
        await world.until(lambda: mine <= world.holders().keys())
        assert all(world.holders()[address] != "n1" for address in mine)
        world.agents["n1"].cut = False
        await world.until(lambda: phase(world, "n1") == "Ready")

    play(script)


def test_while_the_api_server_is_away_nothing_moves_and_nothing_is_revoked_after() -> None:
    async def script(world: World) -> None:
        await build(world)
        before = world.listed()
        terms = {node.name: node.term for node in world.gateway().status.node_list}
        world.network.away = True
        await world.until(lambda: not world.holders())
        await world.rest(30)
        world.network.away = False
        await world.until(lambda: len(world.holders()) == 6)
        assert world.listed() == before
        assert {node.name: node.term for node in world.gateway().status.node_list} == terms

    play(script)


def test_a_slow_api_server_is_no_reason_to_revoke() -> None:
    async def script(world: World) -> None:
        await build(world)
        before = world.listed()
        world.network.delay = 0.2
        await world.rest(10)
        assert world.listed() == before

    play(script)


def test_a_node_that_is_no_longer_selected_hands_its_addresses_over() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.change(NODES, "n2", labels={})
        await world.until(lambda: "n2" not in world.listed().values() and len(world.holders()) == 6)
        assert sorted(world.listed().values()) == ["n1", "n1", "n1", "n3", "n3", "n3"]

    play(script)


def test_a_node_object_that_is_deleted_takes_its_tunnel_along_and_its_addresses_move() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.api.remove(NODES, "n3")
        await world.until(lambda: "n3" not in world.listed().values() and len(world.holders()) == 6)
        await world.until(lambda: world.api.find_document(EGRESS_TUNNELS, "n3") is None)

    play(script)


def test_without_a_node_the_addresses_stay_with_their_policies() -> None:
    async def script(world: World) -> None:
        await build(world, "n1")
        before = {name: world.policy(name).status.eip for name in POLICIES}
        await world.agents["n1"].kill()
        await world.until(lambda: not any(world.policy(name).status.node for name in POLICIES))
        assert {name: world.policy(name).status.eip for name in POLICIES} == before
        assert "NoNode" in world.recorder.reasons
        world.add_node("n2")
        await world.until(lambda: world.all_placed(*POLICIES))
        assert {name: world.policy(name).status.eip for name in POLICIES} == before
        assert set(world.listed().values()) == {"n2"}

    play(script)


def test_a_new_leader_waits_for_the_fence_and_moves_nothing_that_answers() -> None:
    async def script(world: World) -> None:
        await build(world)
        before = world.listed()
        await world.depose()
        with world.no_writes("egressgateways"):
            world.lead()
            await world.rest(5)
        await world.depose()
        await world.agents["n1"].kill()
        await world.rest(10)
        world.lead()
        took = await world.until(lambda: "n1" not in world.listed().values() and len(world.listed()) == 6)
        assert FENCE + MARGIN <= took < FENCE + MARGIN + 0.1
        kept = {name: node for name, node in before.items() if node != "n1"}
        assert kept.items() <= world.listed().items()

    play(script)


def test_a_lease_that_is_deleted_by_hand_moves_nothing_while_its_agent_lives() -> None:
    async def script(world: World) -> None:
        await build(world)
        before = world.listed()
        world.api.remove(LEASES, lease_name(world.agents["n1"].node), LEASE_NAMESPACE)
        await world.rest(15)
        assert world.listed() == before
        await world.until(lambda: len(world.holders()) == 6)

    play(script)


def test_a_lease_that_is_deleted_under_a_dead_agent_is_revoked_all_the_same() -> None:
    async def script(world: World) -> None:
        await build(world)
        await world.agents["n1"].kill()
        world.api.remove(LEASES, lease_name(world.agents["n1"].node), LEASE_NAMESPACE)
        await world.until(lambda: "n1" not in world.listed().values() and len(world.holders()) == 6)

    play(script)


def test_a_leader_that_finds_no_lease_where_addresses_are_listed_waits_long_and_moves_them() -> None:
    async def script(world: World) -> None:
        await build(world)
        await world.depose()
        await world.agents["n1"].kill()
        world.api.remove(LEASES, lease_name(world.agents["n1"].node), LEASE_NAMESPACE)
        world.look()
        world.lead()
        took = await world.until(lambda: "n1" not in world.listed().values() and len(world.holders()) == 6)
        assert took > 10

    play(script)


def test_renewals_cause_no_writes() -> None:
    async def script(world: World) -> None:
        await build(world)
        await world.rest(1)
        with (
            world.no_writes("egressgateways"),
            world.no_writes("egressgatewaypolicies"),
            world.no_writes("egresstunnels"),
        ):
            await world.rest(20)

    play(script)


def test_a_conflict_is_planned_anew() -> None:
    async def script(world: World) -> None:
        await build(world)
        # Somebody writes to the gateway at the moment of a failover, unseen by the cache.
        world.following.clear()
        await world.agents["n1"].kill()
        world.change(EGRESS_GATEWAYS, "eg", labels={"a": "b"})
        await world.rest(FENCE / 2)
        world.following.set()
        await world.until(lambda: "n1" not in world.listed().values() and len(world.listed()) == 6)

    play(script)
