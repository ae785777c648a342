"""Keeps the export table equal to this node's blocks, for a routing daemon to announce.

One task makes the whole table right (a set difference, both families) whenever the blocks have changed, and again after
an error. `flush` is the barrier for the release of a block, which goes on only when its route is gone.
"""

import asyncio
from collections.abc import Callable, Iterable
from random import Random

from structlog.typing import FilteringBoundLogger

from coil.kernel.family import IPNetwork
from coil.netlink.error import NetlinkError
from coil.podnet.block_route import plan_export
from coil.podnet.plan import RoutePolicy
from coil.reconcile.backoff import Backoff
from coild.model.pod_network import PodNetwork
from coild.model.repairs import Repair, Repairs


class RouteExport:
    """One per process."""

    def __init__(
        self,
        network: PodNetwork,
        *,
        policy: RoutePolicy,
        backoff: Backoff,
        rng: Random,
        repairs: Repairs | None = None,
        log: FilteringBoundLogger,
    ) -> None:
        self._repairs = repairs
        self._network = network
        self._policy = policy
        self._backoff = backoff
        self._rng = rng
        self._log = log
        self._made: frozenset[IPNetwork] = frozenset()
        """What was in the table after the last complete pass."""
        self._lost: set[IPNetwork] = set()
        """What of that others have removed since."""
        self.failures = 0
        """How many passes the kernel has refused since the start."""
        self._wake = asyncio.Event()
        self._passed: list[asyncio.Future[None]] = []

    @property
    def routes(self) -> int:
        """How many are in the table."""
        return len(self._made) - len(self._lost)

    def unexported(self, network: IPNetwork) -> None:
        """The kernel says that a route has left the table."""
        if network in self._made:
            self._lost.add(network)

    def changed(self) -> None:
        """Ask for a pass. Cheap; many calls before the next pass make one."""
        self._wake.set()

    async def flush(self) -> None:
        """Return after a pass that began no earlier than this call. Cancelled, the pass takes place all the same."""
        future = asyncio.get_running_loop().create_future()
        self._passed.append(future)
        self._wake.set()
        await future

    async def run(self, networks: Callable[[], Iterable[IPNetwork]]) -> None:
        """Work until cancelled. `networks` returns what is to be announced now.

        The first pass is made at once, so that what an earlier process left is put right.
        """
        failures = 0
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._passed = self._passed, []
            try:
                await self.sync(networks())
            except NetlinkError as error:
                self._log.error("routes not exported", table=self._policy.export_table, error=str(error))
                self.failures += 1
                self._passed = waiting + self._passed
                self._wake.set()
                await asyncio.sleep(self._backoff.delay(failures, self._rng.random))
                failures += 1
                continue
            failures = 0
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def sync(self, networks: Iterable[IPNetwork]) -> None:
        """Make the export table announce exactly these networks. Raises NetlinkError."""
        wanted = plan_export(networks, self._policy)
        table, protocol = self._policy.export_table, self._policy.protocol
        changes = await self._network.sync_routes(table=table, protocol=protocol, wanted=wanted)
        if self._repairs is not None:
            self._repairs.count(Repair.EXPORTED_ROUTES, sum(route.destination in self._made for route in changes.adds))
        self._made, self._lost = frozenset(route.destination for route in wanted), set()
        if changes:
            withdrawn = len(changes.clears) + len(changes.deletes)
            self._log.info(
                "routes exported", added=len(changes.adds), replaced=len(changes.replaces), withdrawn=withdrawn
            )
