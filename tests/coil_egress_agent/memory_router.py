"""A router pod's kernel in memory: what it holds, what it refuses, and how long it takes."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum

from coil.egress.gateway import RouterSpec, SourcePort
from coil.egress.router_plan import NatCounter, NatCounterKind
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.route import DEFAULT_NETWORKS
from coil.nat.router import RouterNetwork
from coil.netlink.error import NetlinkError

NO_FOU = "module fou is not there: modprobe fou"
SECONDS = 0.01


class Fault(Enum):
    """What becomes of a call."""

    NONE = "none"
    REFUSED = "refused"
    """Nothing was done."""
    HALF = "half"
    """The first half was done, then the kernel refused."""
    LOST = "lost"
    """All was done, and the answer was an error."""


class MemoryRouter(RouterNetwork):
    """Every method of the real one but its context. `faults` are met by calls in their order, then there are
    none.

    `removing` is called with what a call begins to remove.
    """

    def __init__(self, peers: Iterable[IPAddress] = ()) -> None:
        super().__init__()
        self.kernel: dict[IPAddress, SourcePort] = dict.fromkeys(peers, SourcePort.FIXED)
        self.destinations: Sequence[IPNetwork] = [*DEFAULT_NETWORKS.values()]
        self.cluster: Sequence[IPNetwork] = []
        self.bad: set[IPAddress] = set()
        self.without_fou = False
        self.stalled = False
        self.faults: deque[Fault] = deque()
        self.removing: Callable[[Collection[IPAddress]], None] = lambda _peers: None
        self.calls: list[tuple[str, int]] = []
        self.attempts: Counter[IPAddress] = Counter()
        self.set_ups: list[RouterSpec] = []
        self.made: set[IPAddress] = set()
        self._busy = asyncio.Lock()

    async def set_up(self, spec: RouterSpec) -> None:
        await self._begin("set_up", 0)
        if self.without_fou:
            raise NetlinkError(NO_FOU)
        self._refuse(self._fault())
        self.set_ups.append(spec)

    async def set_destinations(
        self, destinations: Collection[IPNetwork], *, cluster: Collection[IPNetwork] = ()
    ) -> bool:
        await self._begin("set_destinations", len(destinations))
        self._refuse(self._fault())
        self.destinations = [*destinations]
        self.cluster = [*cluster]
        return True

    async def peers(self) -> frozenset[IPAddress]:
        await self._begin("peers", 0)
        self._refuse(self._fault())
        return frozenset(self.kernel)

    async def add_peers(self, peers: Collection[IPAddress], source_port: SourcePort) -> None:
        def add(peer: IPAddress) -> None:
            self.kernel[peer] = source_port
            self.made.add(peer)

        await self._begin("add_peers", len(peers))
        self._change(peers, add)

    async def remove_peers(self, peers: Collection[IPAddress]) -> None:
        self.removing(peers)
        await self._begin("remove_peers", len(peers))
        self._change(peers, lambda peer: self.kernel.pop(peer, None))

    async def counters(self) -> tuple[NatCounter, ...]:
        await self._begin("counters", 0)
        self._refuse(self._fault())
        return tuple(
            NatCounter(family=family, kind=kind, packets=family, bytes=100 * family)
            for family in Family
            for kind in NatCounterKind
        )

    async def _begin(self, call: str, peers: int) -> None:
        self.calls.append((call, peers))
        while self.stalled:
            await asyncio.get_running_loop().create_future()
        async with self._busy:
            await asyncio.sleep(SECONDS)

    def _fault(self) -> Fault:
        return self.faults.popleft() if self.faults else Fault.NONE

    def _refuse(self, fault: Fault) -> None:
        if fault is not Fault.NONE:
            raise NetlinkError(f"the kernel says no: {fault.value}")

    def _change(self, peers: Collection[IPAddress], change: Callable[[IPAddress], object]) -> None:
        self.attempts.update(peers)
        fault = self._fault()
        count = {Fault.REFUSED: 0, Fault.HALF: len(peers) // 2}.get(fault, len(peers))
        bad = []
        for peer in list(peers)[:count]:
            if peer in self.bad:
                bad.append(peer)
            else:
                change(peer)
        self._refuse(fault)
        if bad:
            raise NetlinkError(f"no tunnel to {bad[0]}")
