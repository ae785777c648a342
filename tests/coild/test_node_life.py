"""A node in all weathers: pods come and go in any order, calls are given up, the API server, the controller and the
kernel fail for a while, namespaces vanish, blocks are asked back or torn out, and coild is killed and started again.

What must hold all the time: no address is in two pods at once. And in the end, when all pods are deleted and the
weather is fair: nothing is left, no veth, no block, no request, no route.
"""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import SubnetSet
from coil.kube.errors import UnavailableError
from coil.netlink.error import BusyError, KernelError, NetlinkError
from coild.addresses.block_requester import ANSWER_TIMEOUT
from tests.coil.kube.memory_api import Call, Moment
from tests.coild.block_granter import pool
from tests.coild.memory_network import Step
from tests.coild.scene import ACQUIRE_TIMEOUT, COOLDOWN, Coild, World, advance, end
from tests.coild.virtual_loop import VirtualLoop, pass_turns

SMALL = pool("default", SubnetSet(ipv4="10.1.0.0/29", ipv6="fd01::/125"))
"""Four blocks of two addresses: the pods below can use them up."""
SECOND = pool("second", SubnetSet(ipv4="10.2.0.0/30"))

containers = st.sampled_from([f"c{number}" for number in range(10)])
turns = st.integers(0, 12)


class NodeLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.folder = TemporaryDirectory()
        self.calls: list[asyncio.Task[Any]] = []
        self.api_down = False
        self.kernel_faults = 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(
        seed=st.integers(0, 2**32),
        compat_calico=st.booleans(),
        warm=st.sampled_from([0, 0, 1, 5]),
        cooldown=st.sampled_from([COOLDOWN, COOLDOWN, 0.0]),
    )
    def begin(self, seed: int, compat_calico: bool, warm: int, cooldown: float) -> None:
        self.compat_calico, self.warm, self.cooldown = compat_calico, warm, cooldown
        self.edits = 0

        async def begin() -> None:
            self.world = World(SMALL, SECOND, seed=seed, journal=Path(self.folder.name, "journal"))
            self.rng = self.world.rng
            self.world.granter.delay = lambda: self.rng.choice((0.0, 0.1, 3.0, 20.0))
            await self._start()

        self.run(begin())

    async def _start(self) -> None:
        self.coild = Coild(
            self.world,
            compat_calico=self.compat_calico,
            warm=self.warm,
            cooldown=self.cooldown,
            watch_delay=lambda: self.rng.choice((0.0, 0.05, 4.0)),
        )
        self.coild.gate.delay = lambda: self.rng.choice((0.0, 0.0, 0.02, 2.0))
        self.coild.gate.fault = self._api_fault
        self.coild.network.gate = self._kernel
        await self.coild.start()

    def _api_fault(self, call: Call, moment: Moment) -> Exception | None:
        lost = moment is Moment.AFTER and self.rng.random() < 0.03
        return UnavailableError("away") if self.api_down or lost else None

    async def _kernel(self, step: Step) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.03)))
        if self.kernel_faults:
            self.kernel_faults -= 1
            fault: NetlinkError = self.rng.choice(
                (BusyError("busy"), KernelError(doing=step.value, errno=errno.ENOMEM))
            )
            raise fault

    # --- pods

    @rule(container=containers, namespace=st.sampled_from(["apps", "apps", "lab"]), number=turns)
    def add(self, container: str, namespace: str, number: int) -> None:
        self._call(self.coild.add(container, namespace, pod=f"pod{int(container[1:]) % 7}"), number)

    @rule(container=containers, number=turns)
    def delete(self, container: str, number: int) -> None:
        self._call(self.coild.delete(container), number)

    @rule(container=containers, number=turns)
    def check(self, container: str, number: int) -> None:
        request = self.coild.request(container)
        self._call(self.coild.pods.check(request.key, request.netns), number)

    @rule(container=containers)
    def vanish(self, container: str) -> None:
        self.world.kernel.remove_namespace(self.coild.request(container).netns)

    @rule(choice=st.integers(0, 50))
    def give_up(self, choice: int) -> None:
        if self.calls:
            self.calls[choice % len(self.calls)].cancel()

    def _call(self, work: Any, number: int) -> None:
        self.calls.append(self.loop.create_task(work))
        self.run(pass_turns(number))

    # --- the rest of the world

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 1.0, 7.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(advance(seconds))

    @rule(down=st.booleans())
    def api_server(self, down: bool) -> None:
        self.api_down = down

    @rule(away=st.booleans())
    def controller(self, away: bool) -> None:
        self.world.granter.away = away
        if not away:
            self.world.granter.wake()

    @rule(faults=st.integers(1, 3))
    def kernel(self, faults: int) -> None:
        self.kernel_faults = faults

    @rule(number=turns)
    def collect(self, number: int) -> None:
        self._call(self.coild.pods.collect(), number)

    @rule(choice=st.integers(0, 5), torn=st.booleans())
    def take_block(self, choice: int, torn: bool) -> None:
        if blocks := self.world.blocks:
            name = blocks[choice % len(blocks)]
            self.world.api.delete(ADDRESS_BLOCKS, name)
            if torn:
                self.world.api.patch(ADDRESS_BLOCKS, name, {"metadata": {"finalizers": []}}, subresource="")

    @rule()
    def crash(self) -> None:
        self.run(self._crash())

    @rule(choice=st.integers(0, 5))
    def crash_and_edit(self, choice: int) -> None:
        """Somebody gives a block other addresses while coild is not running: its pods are orphans then."""

        def edit() -> None:
            if blocks := self.world.blocks:
                self.edits += 1
                addresses = {"ipv4": f"10.99.{self.edits % 256}.0/31", "ipv6": f"fd99::{self.edits:x}:0/127"}
                block = self.world.api.get(ADDRESS_BLOCKS, blocks[choice % len(blocks)])
                patch = {family: text for family, text in addresses.items() if getattr(block, family) is not None}
                self.world.api.patch(ADDRESS_BLOCKS, block.name, patch, subresource="")

        self.run(self._crash(edit))

    async def _crash(self, edit: Callable[[], None] = lambda: None) -> None:
        self.kernel_faults = 0  # a start that the kernel fails is made again by the supervisor; not what is tried here
        await self.coild.kill()
        await asyncio.gather(*self.calls, return_exceptions=True)
        self.calls.clear()
        edit()
        await self._start()

    @invariant()
    def no_address_twice(self) -> None:
        assert not hasattr(self, "world") or self.world.kernel.twice == []

    @invariant()
    def coild_goes_on(self) -> None:
        assert not hasattr(self, "coild") or self.coild.ended == []

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.run(self._end_well())
        self.loop.close()
        self.folder.cleanup()

    async def _end_well(self) -> None:
        self.api_down, self.kernel_faults = False, 0
        self.world.granter.wake()
        self.coild.gate.fault = lambda call, moment: None
        # Operations on one attachment take turns: in the worst case all of them are on one, and all wait for a block.
        await advance((ACQUIRE_TIMEOUT + 5) * (len(self.calls) + 1))
        assert all(call.done() for call in self.calls), "every operation ends in bounded time"
        await asyncio.gather(*self.calls, return_exceptions=True)
        for number in range(10):
            await self.coild.delete(f"c{number}")
            # What was killed before it had a name goes with its namespace.
            self.world.kernel.remove_namespace(self.coild.request(f"c{number}").netns)
        await advance(ANSWER_TIMEOUT + 60)
        await self.coild.pods.collect()
        await advance(120)
        assert self.world.kernel.twice == []
        assert self.coild.traces == []
        assert (self.world.blocks, self.world.requests, self.world.exported) == ([], [], set())
        await self.coild.kill()
        await self.world.close()
        leaked = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        await end(leaked)
        assert leaked == set()


TestNodeLife = NodeLife.TestCase
TestNodeLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
