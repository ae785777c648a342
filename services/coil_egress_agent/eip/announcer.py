"""Announces to a node's neighbours which EIPs have come to it: at once and a few times more, as packets get lost.

An address is announced only while it is held. That is checked before each packet, by what this process knows and by the
clock of the fence.
"""

import asyncio
import heapq
from collections.abc import Callable, Collection
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.kernel.family import IPAddress
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Overlay, bounded, sentence
from coil_egress_agent.eip.metric import NodeMetrics, Operation

MOMENTS: Final = (0.0, 0.1, 0.3, 1.0, 3.0)
"""Seconds after an address has come."""


class Announcer:
    """Run `run` in one task; the rest is synchronous. `may_hold` says whether the node may hold any address at this
    moment, and is called from other threads. `clock` is the event loop's time.
    """

    def __init__(
        self,
        overlay: Overlay,
        *,
        may_hold: Callable[[], bool],
        metrics: NodeMetrics,
        log: FilteringBoundLogger,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._overlay = overlay
        self._may_hold = may_hold
        self._metrics = metrics
        self._log = log
        self._clock = clock or asyncio.get_running_loop().time
        self._due: list[tuple[float, int, IPAddress]] = []  # a heap; entries of an earlier arrival are skipped
        self._arrivals: dict[IPAddress, int] = {}
        self._count = 0
        self._changed = asyncio.Event()

    def announce(self, addresses: Collection[IPAddress], *, moments: Collection[float] = MOMENTS) -> None:
        """They have come: announce them at each of `moments`, in seconds from now. A series that is under way
        restarts.
        """
        now = self._clock()
        for address in addresses:
            self._count += 1
            self._arrivals[address] = self._count
            for moment in moments:
                heapq.heappush(self._due, (now + moment, self._count, address))
        self._changed.set()

    def withhold(self, addresses: Collection[IPAddress]) -> None:
        """They go: announce them no more."""
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
            await self._announce_due()

    def is_held(self, address: IPAddress) -> bool:
        """Whether the node may speak of the address at this moment."""
        # A worker's thread asks, too; reading a dict is safe there.
        return address in self._arrivals and self._may_hold()

    async def _announce_due(self) -> None:
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
                await bounded(self._overlay.announce(list(addresses), is_held=self.is_held))
        except KERNEL_ERRORS as error:
            # The next moment is the next attempt.
            self._log.warning("addresses not announced", addresses=[str(a) for a in addresses], error=sentence(error))
