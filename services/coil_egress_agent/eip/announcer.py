"""Tells the neighbours of a node which EIPs have come to it: at once, and a few times more, as packets get lost.

An address is announced only while it is held, looked at before each packet: by this process's own books, and by the
clock of the fence.
"""

import asyncio
import heapq
from collections.abc import Callable, Collection
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from coil.kernel.family import IPAddress
from coil_egress_agent.eip.kernel import KERNEL_ERRORS
from coil_egress_agent.eip.metric import NodeMetrics, Operation

MOMENTS: Final = (0.0, 0.1, 0.3, 1.0, 3.0)
"""Seconds after an address has come."""


class NeighborAdvertiser(Protocol):
    """The overlay network, as far as it matters here."""

    async def announce(self, addresses: Collection[IPAddress], /, *, is_held: Callable[[IPAddress], bool]) -> object:
        """Gratuitous ARP and unsolicited neighbour advertisements, once, of those that are held at the very moment.

        Raises one of KERNEL_ERRORS.
        """
        ...


class Announcer:
    """Run `run` in one task; the rest is synchronous. `may_hold` says whether the node may hold any address at this
    moment, and is called from other threads. `clock` is the event loop's time.
    """

    def __init__(
        self,
        herald: NeighborAdvertiser,
        *,
        may_hold: Callable[[], bool],
        metrics: NodeMetrics,
        log: FilteringBoundLogger,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._herald = herald
        self._may_hold = may_hold
        self._metrics = metrics
        self._log = log
        self._clock = clock or asyncio.get_running_loop().time
        self._due: list[tuple[float, int, IPAddress]] = []  # a heap; entries of an earlier arrival are skipped
        self._arrivals: dict[IPAddress, int] = {}
        self._count = 0
        self._changed = asyncio.Event()

    def announce(self, addresses: Collection[IPAddress], *, moments: Collection[float] = MOMENTS) -> None:
        """They have come: tell of them at each of `moments`, in seconds from now. A series that is under way begins
        anew.
        """
        now = self._clock()
        for address in addresses:
            self._count += 1
            self._arrivals[address] = self._count
            for moment in moments:
                heapq.heappush(self._due, (now + moment, self._count, address))
        self._changed.set()

    def withhold(self, addresses: Collection[IPAddress]) -> None:
        """They go: not a word more about them."""
        for address in addresses:
            self._arrivals.pop(address, None)

    def withhold_all(self) -> None:
        """All go."""
        self._arrivals.clear()
        self._due.clear()

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            self._changed.clear()
            if not self._due:
                await self._changed.wait()
                continue
            left = self._due[0][0] - self._clock()
            if left > 0:
                try:
                    async with asyncio.timeout(left):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            await self._tell()

    def _is_held(self, address: IPAddress) -> bool:
        # A worker's thread asks; reading a dict is safe there.
        return address in self._arrivals and self._may_hold()

    async def _tell(self) -> None:
        """Announce all that is due by now."""
        now = self._clock()
        addresses: dict[IPAddress, None] = {}
        while self._due and self._due[0][0] <= now:
            _, arrival, address = heapq.heappop(self._due)
            if self._arrivals.get(address) == arrival:
                addresses[address] = None
        if not addresses:
            return
        try:
            with self._metrics.measured(Operation.ANNOUNCE):
                await self._herald.announce(list(addresses), is_held=self._is_held)
        except KERNEL_ERRORS as error:
            # The next moment is the next attempt.
            self._log.warning("addresses not announced", addresses=[str(a) for a in addresses], why=str(error))
