"""Several simulated processes that contend for one Lease, and a watch over who is at work.

Used by the scenarios and by the random histories. A contender can be killed, suspended (nothing of it
runs, its watchdog included), blocked (its event loop is stuck, its thread is not) or stopped.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

import structlog
from prometheus_client import CollectorRegistry

from coil.manager.claim import LeaderTiming, LeaseClaim
from coil.manager.election import LeaderElector, Watchdog
from coil.reconcile.metric import ReconcileMetrics
from tests.coil.manager.lease_server import LeaseServer, Network, NetworkStore, good_network
from tests.coil.reconcile.virtual_time import ProcessExitError, Universe

TIMING = LeaderTiming()
LONG_AGO = datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class Work:
    """How a leader's work behaves: it takes a step each `interval` seconds and needs `cleanup` to end."""

    interval: float = 0.25
    cleanup: float = 0.0
    lasts: float = float("inf")
    error: Exception | None = None


class Contender:
    """One process with an elector in it."""

    def __init__(
        self, election: "Election", name: str, *, work: Work, network: Network, rate: float, seed: int
    ) -> None:
        self.election = election
        self.name = name
        self.work = work
        self.loop = election.universe.boot(name, rate=rate)
        self.store = NetworkStore(election.universe, election.server, network)
        self.at_work = False
        self.blocked = False
        self.immortal = False  # a `fatal` that raises instead of ending the process
        self.terms = 0
        self.steps: list[tuple[float, bool]] = []  # when, and whether the elector said that it holds the Lease
        self.fatal_reason: str | None = None
        self.buried = False
        self.registry = CollectorRegistry()
        claim = LeaseClaim(
            self.store,
            identity=name,
            clock=self.loop.time,
            wall=lambda: LONG_AGO,
            random=random.Random(seed).random,
        )
        self.elector = LeaderElector(
            "test",
            claim,
            watchdog=SimulatedWatchdog(self),
            metrics=ReconcileMetrics(self.registry),
            log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
            fatal=self.die,
        )
        self.task = self.loop.create_task(self.elector.run(self.lead), name=name)

    @property
    def running(self) -> bool:
        """At work at this instant: a suspended process is not, one in a stuck loop is."""
        return self.at_work and self.loop.alive and (self.blocked or not self.loop.suspended)

    async def lead(self) -> None:
        assert not self.at_work
        self.terms += 1
        self.at_work = True
        ends = self.loop.time() + self.work.lasts
        try:
            while self.loop.time() < ends:
                await asyncio.sleep(min(self.work.interval, ends - self.loop.time()))
                self.steps.append((self.election.universe.now, self.elector.holds_lease()))
            if self.work.error is not None:
                raise self.work.error
        finally:
            try:
                if not self.buried:
                    await asyncio.sleep(self.work.cleanup)
            finally:  # a second cancellation cuts the cleaning up short
                self.at_work = False

    def die(self, reason: str) -> NoReturn:
        if self.buried or self.immortal:
            raise RuntimeError(reason)
        self.fatal_reason = reason
        raise ProcessExitError(reason)

    def suspend(self, seconds: float) -> None:
        self.blocked = False
        self.loop.suspended_until = self.election.universe.now + seconds

    def block(self, seconds: float) -> None:
        self.suspend(seconds)
        self.blocked = True
        self.election.universe.at(self.loop.suspended_until, self._unblock)

    def _unblock(self) -> None:
        self.blocked = False

    def kill(self) -> None:
        self.loop.kill()

    def stop(self) -> None:
        """Ask for a graceful end, as a signal does."""
        self.loop.deliver(self.task.cancel)

    def dig(self) -> None:
        """Prepare for `Election.close`: nothing counts any more, everything ends when cancelled."""
        self.buried = True
        self.loop.alive = True
        self.loop.suspended_until = self.election.universe.now
        self.store.network = good_network


class SimulatedWatchdog(Watchdog):
    """A contender's watchdog, in simulated time instead of a thread."""

    def __init__(self, contender: Contender) -> None:
        super().__init__(clock=contender.loop.time)
        self._contender = contender
        self._armed = 0

    def arm(self, deadline: float, /) -> None:
        self._armed += 1
        armed = self._armed
        contender = self._contender
        universe = contender.election.universe

        def look() -> None:
            if armed != self._armed or not contender.loop.alive or contender.buried:
                return
            if contender.loop.suspended and not contender.blocked:
                # Just after the process wakes, so that its event loop comes first: the harder order.
                universe.at(contender.loop.suspended_until + 0.001, look)
            else:
                contender.fatal_reason = "watchdog"
                contender.loop.kill()

        universe.at(contender.loop.universe_time(deadline), look)

    def disarm(self) -> None:
        self._armed += 1


class Election:
    """The universe, the server and the contenders. Fails as soon as two contenders are at work."""

    def __init__(self) -> None:
        self.universe = Universe()
        self.server = LeaseServer(lambda: self.universe.now)
        self.contenders: list[Contender] = []
        self.universe.watch = self._watch
        self.handovers: list[tuple[float, str]] = []  # each change of who is at work, "" for nobody

    def contender(
        self,
        name: str,
        *,
        work: Work | None = None,
        network: Network = good_network,
        rate: float = 1.0,
    ) -> Contender:
        contender = Contender(self, name, work=work or Work(), network=network, rate=rate, seed=len(self.contenders))
        self.contenders.append(contender)
        return contender

    def run(self, seconds: float) -> None:
        self.universe.run(self.universe.now + seconds)

    def run_until(self, condition: Callable[[], bool], *, limit: float = 100.0) -> float:
        """Let time pass in small steps until `condition`; returns how long that took."""
        began = self.universe.now
        while not condition():
            self.run(0.01)
            assert self.universe.now - began < limit, "it did not come to that"
        return self.universe.now - began

    def close(self) -> None:
        """End every process, so that no task is left over; what they do on the way is of no interest."""
        self.universe.watch = lambda: None
        for _ in range(4):
            for contender in self.contenders:
                contender.dig()  # again, because the exit of a dead process still goes from task to task
                for task in asyncio.all_tasks(contender.loop):
                    contender.loop.deliver(task.cancel)
            self.run(30)
        left = [task for contender in self.contenders for task in asyncio.all_tasks(contender.loop)]
        for contender in self.contenders:
            if contender.task.done() and not contender.task.cancelled():
                contender.task.exception()  # retrieved
        self.universe.close()
        assert not left, left

    def _watch(self) -> None:
        running = [contender.name for contender in self.contenders if contender.running]
        assert len(running) <= 1, f"at {self.universe.now}: {running} are at work"
        who = running[0] if running else ""
        if not self.handovers or self.handovers[-1][1] != who:
            self.handovers.append((self.universe.now, who))
