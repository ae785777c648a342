"""What holds up the controllers of floating addresses in a term, and what does not."""

from typing import Any

from coil.reconcile.cache import Cache
from tests.coil_egress_controller.eip_world import World, play
from tests.coil_egress_controller.scene import MemoryCache
from tests.coil_egress_controller.test_eip_failover import POLICIES, build
from tests.coil_egress_controller.test_eip_slice import add_pods, endpoints


def unserved(cache: Cache[Any]) -> MemoryCache[Any]:
    """Its CRD is not installed yet."""
    assert isinstance(cache, MemoryCache)
    cache.unserve()
    return cache


def test_a_kind_that_is_not_served_holds_up_only_the_controllers_that_read_it() -> None:
    async def script(world: World) -> None:
        slices = unserved(world.caches.slices)
        add_pods(world, 1, 2, 3, app=POLICIES[0])
        await build(world)
        assert len(world.holders()) == len(POLICIES)
        assert world.writes("egressendpointslices") == 0
        slices.serve()
        await world.until(lambda: len(endpoints(world, POLICIES[0])) == 3)

    play(script)


def test_no_address_is_placed_before_the_leases_are_known() -> None:
    async def script(world: World) -> None:
        await build(world)
        await world.depose()
        leases = unserved(world.caches.leases)
        await world.agents["n1"].kill()
        with world.no_writes("egressgateways"), world.no_writes("leases"):
            world.lead()
            world.add_policy("late")
            await world.rest(30)
        leases.serve()
        await world.until(lambda: "n1" not in world.listed().values() and len(world.listed()) == len(POLICIES) + 1)

    play(script)


def test_a_term_that_ends_while_a_kind_is_not_served_leaves_nothing() -> None:
    async def script(world: World) -> None:
        gateways = unserved(world.caches.gateways)
        world.add_gateway()
        world.lead()
        await world.rest(1)
        await world.depose()
        with world.no_writes("egressgateways"):
            gateways.serve()
            await world.rest(1)

    play(script)
