"""Routes the blocks of all other nodes, where the nodes are on one layer 2 network and no routing daemon does it.

    informers of all AddressBlocks and Nodes ─► coil.podnet.plan_node_routes ─► the main table

Every pass makes the whole right by a set difference, in a worker's thread. One is made when a block or a node's address
has changed, and periodically, as links that go down take their routes with them. After a pass comes a rest, so that
changes in a large cluster are taken together and cost a tenth of a processor at most.

Only what the API server says withdraws a route: while it cannot be asked, and until the caches are complete, and after
this process, the routes stay.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.builtin import Node
from coil.crd.names import NodeName
from coil.kernel.route import Route, RouteChanges, RouteTable
from coil.netlink.error import NetlinkError
from coil.podnet.node_route import NodeRoutes, RouteTrouble, TroubledNetwork, plan_node_routes
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import wait_synced
from coil.reconcile.informer import Informer
from coild.routes.metric import RouteSyncMetrics

SHORTEST_REST = 0.2
"""Seconds after a pass in which changes are gathered for the next."""

REST_FACTOR = 9
"""Times as long as a pass has taken is rested after it."""

_EXAMPLES = 5


class MainTable(Protocol):
    """What is asked of the kernel; `coil.netlink.host.HostNetwork` is one, and its promises hold."""

    async def sync_planned_routes(
        self, *, table: int, protocol: int, plan: Callable[[list[Route]], Collection[Route]]
    ) -> RouteChanges: ...


@dataclass(frozen=True, slots=True)
class ClusterRouting:
    """What the API server knows about the whole cluster; both must be run."""

    blocks: Informer[AddressBlock]
    nodes: Informer[Node]


class RouteSync:
    """One per process. `own` is this node, whose blocks are not routed; `protocol` marks our routes in the kernel."""

    def __init__(
        self,
        network: MainTable,
        cluster: ClusterRouting,
        *,
        own: NodeName,
        protocol: int,
        backoff: Backoff,
        rng: Random,
        metrics: RouteSyncMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._network = network
        self._cluster = cluster
        self._own = own
        self._protocol = protocol
        self._backoff = backoff
        self._rng = rng
        self._metrics = metrics
        self._log = log
        self._wake = asyncio.Event()
        self._told: dict[RouteTrouble, frozenset[TroubledNetwork]] = {}
        self._passed = False
        cluster.blocks.subscribe(self._observe_block)
        cluster.nodes.subscribe(self._observe_node)

    async def run(self, interval: float) -> None:
        """Work for ever, with a pass every `interval` seconds at least."""
        await wait_synced((self._cluster.blocks, self._cluster.nodes), log=self._log)
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            self._wake.clear()
            began = clock()
            try:
                await self.sync()
                failures = 0
                rest = max(SHORTEST_REST, REST_FACTOR * (clock() - began))
            except NetlinkError as error:
                self._log.error("routes to other nodes are not complete", error=str(error))
                self._metrics.failures.inc()
                rest = self._backoff.delay(failures, self._rng.random)
                failures += 1
                self._wake.set()
            await asyncio.sleep(rest)
            await self._wait(interval)

    async def sync(self) -> None:
        """One pass. Raises NetlinkError after everything else was done."""
        blocks, nodes = self._cluster.blocks.items(), self._cluster.nodes.items()
        planned: list[NodeRoutes] = []

        def plan(others: list[Route]) -> Collection[Route]:
            planned.append(plan_node_routes(blocks, nodes, self._own, others=others, protocol=self._protocol))
            return planned[0].routes

        with self._metrics.seconds.time():
            try:
                changes = await self._network.sync_planned_routes(
                    table=RouteTable.MAIN, protocol=self._protocol, plan=plan
                )
            finally:
                for result in planned:
                    self._passed = True  # a route that the kernel refuses for ever must not keep a node from service
                    self._report(result)
        self._metrics.syncs.inc()
        if changes:
            self._log.info(
                "routes to other nodes changed",
                added=len(changes.adds),
                replaced=len(changes.replaces),
                withdrawn=len(changes.clears) + len(changes.deletes),
            )

    async def withdraw(self) -> None:
        """Take every route of ours out of the main table. Raises NetlinkError."""
        await self._network.sync_planned_routes(table=RouteTable.MAIN, protocol=self._protocol, plan=lambda _others: ())

    def missing(self) -> str | None:
        """What readiness lacks: the first pass."""
        if self._passed:
            return None
        for informer in (self._cluster.blocks, self._cluster.nodes):
            if not informer.synced:
                return f"not listed yet: {informer.last_error or 'no answer'}"
        return "the main table was not read yet"

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _observe_block(self, old: AddressBlock | None, new: AddressBlock | None) -> None:
        if old is None or new is None or _route_facts(old) != _route_facts(new):
            self._wake.set()

    def _observe_node(self, old: Node | None, new: Node | None) -> None:
        # The kubelet writes a node's status every few minutes, with nothing new in it for us.
        if old is None or new is None or old.status.addresses != new.status.addresses:
            self._wake.set()

    def _report(self, planned: NodeRoutes) -> None:
        self._metrics.routes.set(len(planned.routes))
        self._metrics.set_troubled(planned.troubled)
        now: dict[RouteTrouble, frozenset[TroubledNetwork]] = {}
        for trouble in RouteTrouble:
            now[trouble] = frozenset(network for network in planned.troubled if network.trouble is trouble)
            if now[trouble] == self._told.get(trouble, frozenset()):
                continue
            log = self._log.warning if now[trouble] else self._log.info
            examples = [
                f"{network.network} of block {network.block} on {network.node}"
                for network in planned.troubled
                if network.trouble is trouble
            ]
            log("networks in trouble", trouble=trouble.value, networks=len(examples), examples=examples[:_EXAMPLES])
        self._told = now


def _route_facts(block: AddressBlock) -> tuple[object, ...]:
    """All that a route is made of."""
    return block.node, block.ipv4, block.ipv6, block.metadata.deleting
