"""Keeps the connections of a node's own pods alive when their packets move to another gateway.

The new gateway learns of a TCP connection from what the pod sends, and a pod that only downloads waits for the server,
whose segments match no connection there. So each pod is made to send an ACK on every connection that has moved, at once
and a few times more, as the new gateway may be ready a little later. On a node that has carried, or is to carry, its
pods' connections itself, their former translation is dropped first.

Best effort: a failure is logged, and its connections continue as soon as their pods send something themselves.
"""

import asyncio
import heapq
import random
from collections.abc import Callable, Sequence
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.eip.eip_set import PROBE_MARK
from coil.eip.path_change import PathChanges, Remedy
from coil.kernel.flow import Flow
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Flows, bounded, sentence
from coil_egress_agent.eip.metric import ProbeMetrics

MOMENTS: Final = (0.0, 0.6, 1.5, 4.0)
"""Seconds after the kernel has the new ways; Linux answers a probe in half a second."""

LIMIT: Final = 10_000
"""Connections that are looked after at a time: some tenths of a second of work for each moment."""


class ConnectionProber:
    """Run `run` in one task; the rest is synchronous. `clock` is the event loop's time."""

    def __init__(
        self,
        flows: Flows,
        *,
        metrics: ProbeMetrics,
        log: FilteringBoundLogger,
        random: Callable[[], int] = lambda: random.getrandbits(32),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._flows = flows
        self._metrics = metrics
        self._log = log
        self._random = random
        self._clock = clock or asyncio.get_running_loop().time
        self._expected: list[PathChanges] = []  # the latest first
        self._moved: list[PathChanges] = []
        self._arrivals: dict[Flow, int] = {}  # by which move a connection is probed
        self._due: list[tuple[float, int]] = []  # a heap of moments, of which move
        self._count = 0
        self._changed = asyncio.Event()

    def expect(self, moved: PathChanges) -> None:
        """The kernel is about to have these ways."""
        if moved:
            self._expected.insert(0, moved)

    def go(self) -> None:
        """It has all that were expected."""
        if self._expected:
            self._moved[:0] = self._expected
            self._expected = []
            self._changed.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            self._changed.clear()
            if self._moved:
                moved, self._moved = self._moved, []
                await self._begin(moved)
            elif not self._due:
                await self._changed.wait()
            elif (left := self._due[0][0] - self._clock()) > 0:
                try:
                    async with asyncio.timeout(left):
                        await self._changed.wait()
                except TimeoutError:
                    pass
            else:
                await self._probe()

    async def _begin(self, moved: Sequence[PathChanges]) -> None:
        """Look at the connections, forget what does not fit, and plan the probes."""
        try:
            flows, more = await bounded(
                self._flows.read(lambda source: any(paths.concerns(source) for paths in moved), LIMIT)
            )
            remedies = [(flow, _remedy(moved, flow)) for flow in flows]
            unfit = [flow for flow, remedy in remedies if remedy in {Remedy.FORGET, Remedy.BOTH}]
            await bounded(self._flows.forget(unfit))
        except KERNEL_ERRORS as error:
            self._metrics.count_failure()
            self._log.warning("connections not helped onto their new way", error=sentence(error))
            return
        self._metrics.count_forgotten(len(unfit))
        self._count += 1
        probed = [flow for flow, remedy in remedies if remedy in {Remedy.PROBE, Remedy.BOTH}]
        if unfit or probed:
            self._log.info("connections have another way", probed=len(probed), forgotten=len(unfit))
        for flow in probed:
            self._arrivals.pop(flow, None)
        room = LIMIT - len(self._arrivals)
        self._arrivals.update(dict.fromkeys(probed[:room], self._count))
        if more or len(probed) > room:
            self._log.warning("not all connections are helped onto their new way", helped=min(len(probed), room))
        now = self._clock()
        for moment in MOMENTS if probed else ():
            heapq.heappush(self._due, (now + moment, self._count))

    async def _probe(self) -> None:
        """Those whose moment has come."""
        now = self._clock()
        moves: set[int] = set()
        while self._due and self._due[0][0] <= now:
            moves.add(heapq.heappop(self._due)[1])
        flows = [flow for flow, move in self._arrivals.items() if move in moves]
        left = {move for _, move in self._due}
        self._arrivals = {flow: move for flow, move in self._arrivals.items() if move in left}
        if not flows:
            return
        try:
            self._metrics.count_probes(await bounded(self._flows.probe(flows, random=self._random, mark=PROBE_MARK)))
        except KERNEL_ERRORS as error:
            # The next moment is the next attempt.
            self._metrics.count_failure()
            self._log.warning("pods not probed", connections=len(flows), error=sentence(error))


def _remedy(moved: Sequence[PathChanges], flow: Flow) -> Remedy:
    """By the latest of the moves that concern it."""
    return next((paths.remedy(flow) for paths in moved if paths.concerns(flow.source.address)), Remedy.NONE)
