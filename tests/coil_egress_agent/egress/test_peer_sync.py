"""Clients come and go, and the kernel's peers with them."""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import ip_address, ip_network

from coil.egress.gateway import SourcePort
from coil.kernel.family import IPAddress
from coil_egress_agent.egress.peer_sync import BATCH, CALL_SECONDS, PATIENCE, Change
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_egress_agent.agent_scene import OWN, RESYNC, running, until
from tests.coil_egress_agent.memory_router import NO_FOU, Fault, MemoryRouter
from tests.coil_egress_agent.slice_world import SliceState, SliceWorld

ONE, TWO, THREE = (ip_address(f"10.0.0.{number}") for number in (1, 2, 3))
SIX = ip_address("fd00::1")


def client(*addresses: IPAddress) -> SliceState:
    return SliceState(tuple(map(str, addresses)))


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test in virtual time."""

    async def main() -> None:
        await test()

    def run() -> None:
        run_virtual(main)

    run.__name__ = run.__qualname__ = test.__name__
    return run


async def announce(world: SliceWorld, seconds: float = 1.0) -> None:
    await world.announce()
    await asyncio.sleep(seconds)


@virtual
async def test_existing_clients_have_tunnels_before_the_router_is_ready() -> None:
    world, router = SliceWorld(), MemoryRouter()
    for number in range(3 * BATCH):
        world.put(f"pod-{number}", client(ip_address("10.1.0.0") + number))
    async with running(world, router) as agent:
        await until(lambda: agent.peers.missing() is None)
        assert agent.kernel == world.clients()
    assert len(router.set_ups) == 1
    assert [call for call in router.calls if call[0] == "add_peers"] == [("add_peers", BATCH)] * 3


@virtual
async def test_without_clients_it_is_ready_at_once() -> None:
    async with running(SliceWorld(), MemoryRouter()) as agent:
        assert agent.peers.missing() is not None
        await until(lambda: agent.peers.missing() is None, seconds=1)


@virtual
async def test_a_client_comes_changes_its_address_and_goes() -> None:
    world, router = SliceWorld(), MemoryRouter()
    async with running(world, router) as agent:
        await announce(world)
        world.put("pod", client())
        await announce(world)
        assert agent.kernel == set()
        world.put("pod", client(ONE, SIX))
        await announce(world)
        assert agent.kernel == {ONE, SIX}
        world.put("pod", client(TWO, SIX))
        await announce(world)
        assert agent.kernel == {TWO, SIX}
        world.delete("pod")
        await announce(world)
        assert agent.kernel == set()
    names = [name for name, _ in router.calls]
    assert names[names.index("add_peers") :] == ["add_peers", "add_peers", "remove_peers", "remove_peers"]


@virtual
async def test_an_address_with_two_holders_stays_until_both_have_gone() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("old", client(ONE))
    async with running(world, router) as agent:
        await announce(world)
        world.put("new", client(ONE))
        await announce(world)
        world.delete("old")
        await announce(world)
        assert agent.kernel == {ONE}
        world.delete("new")
        await announce(world)
        assert agent.kernel == set()
    assert router.attempts[ONE] == 2, "one addition and one removal"


@virtual
async def test_a_pod_that_is_replaced_by_one_of_its_name_keeps_its_peer() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("db-0", client(ONE))
    async with running(world, router) as agent:
        await announce(world)
        world.cut()
        world.delete("db-0")
        world.put("db-0", client(ONE))
        await announce(world, 60)
        assert agent.kernel == {ONE}
        world.delete("db-0")
        await announce(world)
        assert agent.kernel == set()
    assert router.calls.count(("remove_peers", 1)) == 1


@virtual
async def test_an_address_that_changes_hands_while_its_removal_waits_is_not_touched() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("old", client(ONE))
    removed: list[IPAddress] = []
    router.removing = removed.extend
    async with running(world, router) as agent:
        await announce(world)
        # A call that takes its time, and behind it the removal of ONE and the arrival of its next holder.
        world.put("other", client(TWO))
        await world.announce()
        await until(lambda: router.calls[-1] == ("add_peers", 1))
        world.delete("old")
        await world.announce()
        await asyncio.sleep(0)
        world.put("new", client(ONE))
        await announce(world)
        assert agent.kernel == {ONE, TWO}
        assert removed == []


@virtual
async def test_what_comes_is_there_before_what_goes() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("a", client(ONE))
    async with running(world, router) as agent:
        await announce(world)
        router.removing = lambda _peers: seen.append(agent.kernel)
        seen: list[set[IPAddress]] = []
        world.delete("a")
        world.put("b", client(TWO))
        await announce(world)
        assert seen == [{ONE, TWO}]
        assert agent.kernel == {TWO}


@virtual
async def test_a_new_agent_adopts_what_there_is_and_removes_what_nobody_wants() -> None:
    world, router = SliceWorld(), MemoryRouter([ONE, TWO])
    world.outage = 3
    world.put("pod", client(ONE))
    removed: list[IPAddress] = []
    router.removing = removed.extend
    async with running(world, router) as agent:
        await asyncio.sleep(0.4)
        assert agent.peers.missing() == "waiting for the complete list of clients"
        assert agent.kernel == {ONE, TWO}, "nothing is known yet"
        await announce(world, 60)
        assert agent.peers.missing() is None
        assert agent.kernel == {ONE}
        assert agent.events("peers added") == []
        assert router.made == {ONE}, "it is looked at all the same: its source port may be another one"
    assert removed == [TWO]


@virtual
async def test_an_outage_and_a_stop_leave_everything() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("pod", client(ONE))
    async with running(world, router) as agent:
        await announce(world)
        world.outage = 1000
        world.cut()
        await announce(world, 3 * RESYNC)
        assert agent.peers.missing() is None
    assert agent.kernel == {ONE}
    assert "remove_peers" not in dict(router.calls)


@virtual
async def test_a_kernel_without_tunnels_is_said_and_waited_for() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("pod", client(ONE))
    router.without_fou = True
    async with running(world, router) as agent:
        await announce(world, 100)
        assert agent.peers.missing() == f"the kernel is not set up for tunnels: {NO_FOU}"
        assert 5 < len(router.calls) < 20, "it is tried again, not too often"
        assert not agent.peers.is_set_up.is_set()
        router.without_fou = False
        await announce(world, 31)
        assert agent.peers.missing() is None
        assert agent.kernel == {ONE}


@virtual
async def test_a_kernel_that_does_not_answer_is_said() -> None:
    world, router = SliceWorld(), MemoryRouter()
    router.stalled = True
    async with running(world, router) as agent:
        await asyncio.sleep(CALL_SECONDS + 1)
        assert agent.peers.missing() is not None
        assert "has not answered for 60 s" in str(agent.peers.missing())


@virtual
async def test_one_bad_address_stops_no_other_and_does_not_keep_the_router_from_service() -> None:
    world, router = SliceWorld(), MemoryRouter()
    router.bad = {TWO}
    for number, address in enumerate((ONE, TWO, THREE)):
        world.put(f"pod-{number}", client(address))
    async with running(world, router) as agent:
        await announce(world)
        assert agent.kernel == {ONE, THREE}
        missing = agent.peers.missing()
        assert missing == "1 addresses of clients have no tunnel yet; 10.0.0.2: no tunnel to 10.0.0.2"
        world.put("another", client(SIX))
        await announce(world, 0.1)
        assert SIX in agent.kernel
        await announce(world, 10)
        assert router.attempts[TWO] >= PATIENCE
        assert agent.peers.missing() is None
        assert len(agent.events("peer refused")) >= PATIENCE
        assert [entry["log_level"] for entry in agent.events("peer refused")].count("warning") == 1
        assert agent.registry.get_sample_value("coil_egress_refused_peers") == 1
        assert agent.registry.get_sample_value("coil_egress_peers") == 3
        router.bad = set()
        await announce(world, 31)
        assert agent.kernel == {ONE, TWO, THREE, SIX}
        assert agent.registry.get_sample_value("coil_egress_refused_peers") == 0


@virtual
async def test_a_kernel_that_refuses_every_peer_is_not_ready() -> None:
    world, router = SliceWorld(), MemoryRouter()
    router.bad = {ONE, TWO}
    world.put("one", client(ONE))
    world.put("two", client(TWO))
    async with running(world, router) as agent:
        await announce(world, 200)
        assert str(agent.peers.missing()).startswith("2 addresses of clients have no tunnel yet; 10.0.0.")
        router.bad = {TWO}
        await announce(world, 70)
        assert agent.peers.missing() is None


@virtual
async def test_a_refused_client_that_goes_is_forgotten() -> None:
    world, router = SliceWorld(), MemoryRouter()
    router.bad = {ONE}
    world.put("pod", client(ONE))
    async with running(world, router) as agent:
        await announce(world)
        assert agent.peers.missing() is not None
        router.bad = set()
        world.delete("pod")
        await announce(world)
        assert agent.peers.missing() is None
        attempts = router.attempts[ONE]
        await announce(world, RESYNC - 10)
        assert router.attempts[ONE] == attempts


@virtual
async def test_what_others_take_away_is_mended() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("pod", client(ONE))
    async with running(world, router) as agent:
        await announce(world)
        router.kernel.clear()
        router.kernel[THREE] = SourcePort.FIXED
        await announce(world, RESYNC + 1)
        assert agent.kernel == {ONE}
        assert len(router.set_ups) == 2
        assert agent.peers.missing() is None


@virtual
async def test_a_resync_that_fails_is_repeated_and_keeps_the_router_in_service() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("pod", client(ONE))
    async with running(world, router) as agent:
        await announce(world)
        router.without_fou = True
        router.kernel.clear()
        await announce(world, RESYNC + 30)
        assert agent.peers.missing() is None
        world.put("new", client(TWO))
        await announce(world)
        assert agent.kernel == {TWO}, "what can be done is done"
        router.without_fou = False
        await announce(world, 31)
        assert agent.kernel == {ONE, TWO}


@virtual
async def test_the_source_port_is_changed_for_all_and_for_those_to_come() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("pod", client(ONE, SIX))
    async with running(world, router) as agent:
        await announce(world)
        assert set(router.kernel.values()) == {SourcePort.FIXED}
        agent.change_egress(auto=True)
        await announce(world)
        assert router.kernel == {ONE: SourcePort.AUTO, SIX: SourcePort.AUTO}
        world.put("new", client(TWO))
        await announce(world)
        assert router.kernel[TWO] is SourcePort.AUTO
        calls = len(router.calls)
        agent.change_egress(auto=True)
        assert agent.settings.observe(None) is Change.NONE
        await announce(world)
        assert len(router.calls) == calls
    assert "remove_peers" not in dict(router.calls)


@virtual
async def test_what_clients_may_send_to_follows_the_egress() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("pod", client(ONE))
    async with running(world, router) as agent:
        await announce(world)
        assert router.destinations == [], "nothing is forwarded for an Egress that nobody knows"
        agent.change_egress("10.5.0.0/16", "nonsense", "::/0")
        await announce(world)
        assert router.destinations == [ip_network("10.5.0.0/16"), ip_network("::/0")]
        agent.change_egress("0.0.0.0/0", auto=True)
        await announce(world)
        assert (router.destinations, router.kernel) == ([ip_network("0.0.0.0/0")], {ONE: SourcePort.AUTO})
        # One that fails is tried again.
        router.faults.extend([Fault.NONE, Fault.REFUSED])
        agent.change_egress("192.0.2.0/24", auto=True)
        await announce(world, 5)
        assert router.destinations == [ip_network("192.0.2.0/24")]
        assert router.cluster == []
        agent.change_egress("192.0.2.0/24", "nonsense", cluster=("192.0.2.8/29", "nonsense"))
        await announce(world)
        assert router.cluster == [ip_network("192.0.2.8/29")]


@virtual
async def test_own_addresses_and_families_that_the_router_lacks_are_no_peers() -> None:
    world, router = SliceWorld(), MemoryRouter()
    world.put("strange", client(OWN[0], SIX, ONE))
    async with running(world, router, own=OWN[:1]) as agent:
        await announce(world)
        assert agent.kernel == {ONE}
        assert agent.peers.missing() is None


@virtual
async def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    world, router = SliceWorld(), MemoryRouter()
    router.faults.extend([Fault.NONE, Fault.REFUSED, Fault.NONE, Fault.NONE, Fault.LOST, Fault.HALF, Fault.REFUSED])
    world.put("a", client(ONE))
    world.put("b", client(TWO))
    async with running(world, router) as agent:
        await announce(world, 5)
        assert agent.kernel == {ONE, TWO}
        assert agent.peers.missing() is None


@virtual
async def test_many_events_cost_few_calls() -> None:
    world, router = SliceWorld(), MemoryRouter()
    async with running(world, router) as agent:
        await announce(world)
        before = len(router.calls)
        for number in range(BATCH):
            world.put(f"pod-{number}", client(ip_address("10.1.0.0") + number))
            world.change(f"pod-{number}", pods=2)
        await announce(world)
        assert agent.kernel == world.clients()
        assert len(router.calls) - before <= 2
