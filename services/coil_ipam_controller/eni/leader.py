"""The leader's work on EC2: a connection, and two kinds of rounds over it, one at a time, until the term ends.

EC2 that is away, refuses or throttles ends a round, which is repeated after a backoff; nothing else waits for it, and
the controller is ready without. The first trouble of a row is logged, each is counted and shown, and what an admin has
to change is an Event.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.call_metrics import Ec2CallMetrics
from coil.aws.ec2 import BotocoreEc2, Ec2
from coil.aws.error import DeniedError, Ec2Error
from coil.aws.metadata import ENDPOINT, HttpInstanceMetadata, MetadataError
from coil.manager.term import Term
from coil.reconcile.backoff import Backoff
from coil_ipam_controller.eni.orphan_collector import OrphanCollector
from coil_ipam_controller.eni.subnet_watch import SubnetWatch
from coil_ipam_controller.eni.view import Deps

ROUND_SECONDS: Final = 60.0
BACKOFF: Final = Backoff(base=10.0, cap=300.0)
PACE: Final = Rate(burst=4, per_second=1.0)
"""Of each kind of call. What the controller takes of the account's limits, nodes do not get."""
CONNECTION: Final = "connection"

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Ec2]]


@asynccontextmanager
async def connect_ec2(
    *,
    region: str,
    ec2_endpoint: str | None,
    metadata_endpoint: str | None,
    metrics: Ec2CallMetrics,
    clock: Callable[[], float],
    random: Callable[[], float],
) -> AsyncIterator[Ec2]:
    """EC2 of a region, by default that of the instance. Endpoints that are None are AWS's. Raises MetadataError."""
    if not region:
        async with HttpInstanceMetadata.connect(clock=clock, endpoint=metadata_endpoint or ENDPOINT) as metadata:
            region = (await metadata.identity()).region
    budget = CallBudget({}, default=PACE, clock=clock, random=random)
    async with BotocoreEc2.connect(region=region, budget=budget, endpoint=ec2_endpoint, metrics=metrics) as ec2:
        yield ec2


@dataclass(slots=True)
class _Part:
    """One of the rounds: when it is due, by the clock, and how often in a row it has failed."""

    name: str
    round: Callable[[Ec2], Awaitable[None]]
    due: float
    failures: int = 0


class EniLeader:
    """The work of a term. `random` gives [0, 1)."""

    def __init__(self, connect: Connect, deps: Deps, *, random: Callable[[], float]) -> None:
        self._connect = connect
        self._deps = deps
        self._random = random

    def setup(self, term: Term) -> None:
        term.on_end(self._deps.view.clear)
        term.add_runnable("eni", self.run)

    async def run(self) -> None:
        """Until cancelled. What was seen in an earlier term counts for nothing: others have worked since."""
        now = self._deps.clock()
        parts = [
            _Part("orphans", OrphanCollector(self._deps).round, now),
            _Part("subnets", SubnetWatch(self._deps).round, now),
        ]
        attempt = 0
        while True:
            try:
                async with self._connect() as ec2:
                    self._recover(CONNECTION)
                    await self._work(ec2, parts)
            except MetadataError as error:
                self._tell(CONNECTION, error)
            await asyncio.sleep(BACKOFF.delay(attempt, self._random))
            attempt += 1

    async def _work(self, ec2: Ec2, parts: Collection[_Part]) -> NoReturn:
        """Rounds as they are due."""
        while True:
            part = min(parts, key=lambda each: each.due)
            await asyncio.sleep(max(0.0, part.due - self._deps.clock()))
            try:
                await part.round(ec2)
            except Ec2Error as error:
                self._tell(part.name, error)
                part.due = self._deps.clock() + BACKOFF.delay(part.failures, self._random)
                part.failures += 1
            else:
                self._recover(part.name)
                part.due, part.failures = self._deps.clock() + ROUND_SECONDS, 0

    def _recover(self, part: str) -> None:
        if self._deps.view.troubles.pop(part, None) is not None:
            self._deps.log.info("EC2 answers again", part=part)

    def _tell(self, part: str, error: Exception) -> None:
        self._deps.metrics.failures.labels(part).inc()
        troubles = self._deps.view.troubles
        if part not in troubles:
            self._deps.log.warning("EC2 cannot be asked", part=part, error=str(error))
        troubles[part] = str(error)
        if isinstance(error, DeniedError):
            message = f"EC2 denies {error.call}: the role of coil-ipam-controller lacks the action ec2:{error.call}"
            self._deps.recorder.warn(self._deps.subject, reason="Ec2CallDenied", message=message)
