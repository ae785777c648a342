"""Whatever happens to slices, connection, kernel and agent: in the end the kernel's peers are the clients' addresses,
and on the way none is removed that a client is known to hold.
"""

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coil.egress.gateway import SourcePort
from coil.kernel.family import IPAddress
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_egress_agent.agent_scene import RESYNC, Agent, running, until
from tests.coil_egress_agent.memory_router import Fault, MemoryRouter
from tests.coil_egress_agent.slice_world import SliceState, SliceWorld

NAMES = st.sampled_from(["a", "b", "c", "d"])
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"]
SOME = st.sets(st.sampled_from(ADDRESSES), max_size=2).map(lambda some: tuple(sorted(some)))
STATES = st.builds(SliceState, addresses=SOME, pods=st.sampled_from([0, 1, 2]))
STEPS = st.one_of(
    st.tuples(st.just("put"), st.tuples(NAMES, STATES)),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("replace"), st.tuples(NAMES, STATES)),
    st.tuples(st.just("hand over"), st.tuples(NAMES, NAMES)),
    st.tuples(st.just("faults"), st.lists(st.sampled_from(Fault), max_size=3)),
    st.tuples(st.just("bad"), st.sets(st.sampled_from(ADDRESSES), max_size=1)),
    st.tuples(st.just("steal"), st.sampled_from(ADDRESSES)),
    st.tuples(st.just("plant"), st.sampled_from([*ADDRESSES, "10.9.9.9"])),
    st.tuples(st.just("cut"), st.none()),
    st.tuples(st.just("outage"), st.integers(1, 3)),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.004, 0.02, 1.0, 40.0, RESYNC])),
)


class History:
    """One agent after the other on one kernel, in one cluster."""

    def __init__(self, leftovers: Collection[str]) -> None:
        self.world = SliceWorld()
        self.router = MemoryRouter(map(ip_address, leftovers))
        self.router.removing = self._check
        self._life = AsyncExitStack()

    async def live(self) -> Agent:
        """End the agent, if there is one, and start another."""
        await self._life.aclose()
        self.world.told = self.world.version  # what it finds it must respect
        return await self._life.enter_async_context(running(self.world, self.router))

    async def end(self) -> None:
        await self._life.aclose()

    async def step(self, action: str, detail: Any) -> None:
        match action:
            case "restart":
                await self.live()
            case "wait":
                await asyncio.sleep(detail)
            case "put" | "delete" | "replace" | "hand over":
                self._change_slices(action, detail)
            case _:
                self._disturb(action, detail)
        await self.world.announce()

    def _change_slices(self, action: str, detail: Any) -> None:
        world = self.world
        match action:
            case "put":
                world.put(*detail)
            case "delete":
                world.delete(detail)
            case "replace":
                world.delete(detail[0])
                world.put(*detail)
            case "hand over":
                giver, taker = detail
                if giver in world.names() and giver != taker:
                    world.put(taker, world.state(giver))
                    world.delete(giver)

    def _disturb(self, action: str, detail: Any) -> None:
        world, router = self.world, self.router
        match action:
            case "faults":
                router.faults.extend(detail)
            case "bad":
                router.bad = set(map(ip_address, detail))
            case "steal":
                router.kernel.pop(ip_address(detail), None)
            case "plant":
                router.kernel.setdefault(ip_address(detail), SourcePort.FIXED)
            case "cut":
                world.cut()
            case "outage":
                world.outage = detail
                world.cut()

    def _check(self, peers: Collection[IPAddress]) -> None:
        for peer in peers:
            since = self.world.held_since.get(peer)
            assert since is None or since > self.world.told, f"{peer} is removed, though a client holds it"


@given(steps=st.lists(STEPS, max_size=30), leftovers=st.sets(st.sampled_from([*ADDRESSES, "10.9.9.9"])))
def test_the_peers_become_the_clients_addresses(steps: list[tuple[str, Any]], leftovers: set[str]) -> None:
    async def main() -> None:
        history = History(leftovers)
        try:
            await history.live()
            for step in steps:
                await history.step(*step)
            history.router.bad.clear()
            history.router.faults.clear()
            await history.step("wait", 2 * RESYNC)
            assert set(history.router.kernel) == history.world.clients()
            agent = await history.live()
            await until(lambda: agent.peers.missing() is None)
            assert set(history.router.kernel) == history.world.clients()
        finally:
            await history.end()

    run_virtual(main)
