"""Routes the blocks of all other nodes, where the nodes are on one layer 2 network and no routing daemon does it:
`--route-sync`.

    informers of all AddressBlocks, AddressPools and Nodes ─► coil.podnet.block_route ─► the main table

Every pass makes the whole table right by a set difference, in a worker's thread. One is made when a block or a node's
address has changed, and periodically, as links that go down take their routes with them. After each pass there is a
pause, so that changes in a large cluster are handled together and cost a tenth of a processor at most.

Only what the API server says withdraws a route: while it cannot be reached, until the caches are complete, and after
this process has ended, the routes stay (`coild.routes.withdrawal` has the exception).
"""

import asyncio
from collections import Counter as Tally
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import NODES, Node
from coil.crd.names import NodeName
from coil.kernel.route import Route, RouteTable
from coil.kube.client import KubeClient
from coil.netlink.error import NetlinkError
from coil.podnet.block_route import NodeRoutes, RouteTrouble, TroubledNetwork, plan_node_routes
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import wait_synced
from coil.reconcile.informer import Informer, InformerMetrics
from coil.runtime.process import Process
from coild.model.pod_network import PodNetwork
from coild.model.repairs import Repair, Repairs
from coild.routes.withdrawal import withdraw_if_gone
from coild.settings import Settings

SHORTEST_PAUSE = 0.2
"""Seconds after a pass in which changes are collected for the next one."""

PAUSE_FACTOR = 9
"""The pause after a pass, in multiples of the time that the pass took."""

_EXAMPLES = 5


_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)

_BACKOFF = Backoff(base=0.5, cap=30.0)


class RouteSyncMetrics:
    """One per registry. Every trouble has a series from the start, so that an alert may rely on its zero."""

    def __init__(self, registry: CollectorRegistry, *, node: NodeName, repairs: Repairs | None = None) -> None:
        self._repairs = repairs
        self.syncs = Counter(
            "coil_router_syncs",
            "Syncs of the main table with the blocks of other nodes.",
            ["node"],
            registry=registry,
        ).labels(node)
        self.routes = Gauge(
            "coil_router_routes_synced", "Routes in the last sync.", ["node"], registry=registry
        ).labels(node)
        self.failures = Counter(
            "coil_router_sync_failures", "Syncs in which the kernel rejected a change.", registry=registry
        )
        self.seconds = Histogram(
            "coil_router_sync_duration_seconds", "Duration of a sync.", registry=registry, buckets=_SECONDS
        )
        self._troubled = Gauge(
            "coil_router_troubled_networks",
            "Networks of blocks that are not routed correctly, by trouble: "
            + ", ".join(trouble.value for trouble in RouteTrouble),
            ["trouble"],
            registry=registry,
        )
        self.set_troubled(())

    def count_repairs(self, routes: int) -> None:
        """So many routes were removed by others, and are back."""
        if self._repairs is not None:
            self._repairs.count(Repair.NODE_ROUTES, routes)

    def set_troubled(self, troubled: Iterable[TroubledNetwork]) -> None:
        counts = Tally(network.trouble for network in troubled)
        for trouble in RouteTrouble:
            self._troubled.labels(trouble.value).set(counts[trouble])


@dataclass(frozen=True, slots=True)
class ClusterRouting:
    """What the API server knows about the whole cluster; all must be run."""

    blocks: Informer[AddressBlock]
    nodes: Informer[Node]
    pools: Informer[AddressPool]


class RouteSync:
    """One per process. `own` is this node, whose blocks are not routed; `protocol` marks our routes in the kernel."""

    def __init__(
        self,
        network: PodNetwork,
        cluster: ClusterRouting,
        *,
        own: NodeName,
        protocol: int,
        backoff: Backoff,
        rng: Random,
        metrics: RouteSyncMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._made: frozenset[Route] = frozenset()
        self._network = network
        self._cluster = cluster
        self._own = own
        self._protocol = protocol
        self._backoff = backoff
        self._rng = rng
        self._metrics = metrics
        self._log = log
        self._wake = asyncio.Event()
        self._reported: dict[RouteTrouble, frozenset[TroubledNetwork]] = {}
        self._passed = False
        cluster.blocks.subscribe(self._observe_block)
        cluster.nodes.subscribe(self._observe_node)
        cluster.pools.subscribe(self._observe_pool)

    async def run(self, interval: float) -> None:
        """Work until cancelled, with a pass at least every `interval` seconds."""
        await wait_synced((self._cluster.blocks, self._cluster.nodes, self._cluster.pools), log=self._log)
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            self._wake.clear()
            began = clock()
            try:
                await self.sync()
                failures = 0
                pause = max(SHORTEST_PAUSE, PAUSE_FACTOR * (clock() - began))
            except NetlinkError as error:
                self._log.error("routes to other nodes are not complete", error=str(error))
                self._metrics.failures.inc()
                pause = self._backoff.delay(failures, self._rng.random)
                failures += 1
                self._wake.set()
            await asyncio.sleep(pause)
            await self._wait(interval)

    def wake(self) -> None:
        """Ask for a pass: somebody has removed routes. Cheap; many calls before the next pass make one."""
        self._wake.set()

    async def sync(self) -> None:
        """One pass. Raises NetlinkError after everything else was done."""
        blocks, nodes, pools = self._cluster.blocks.items(), self._cluster.nodes.items(), self._cluster.pools.items()
        planned: list[NodeRoutes] = []

        def plan(others: list[Route]) -> Collection[Route]:
            planned.append(plan_node_routes(blocks, nodes, pools, self._own, others=others, protocol=self._protocol))
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
        self._metrics.count_repairs(sum(route in self._made for route in changes.adds))
        self._made = frozenset(planned[0].routes)
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
        """Why the process is not ready: there was no first pass yet. None once there was."""
        if self._passed:
            return None
        for informer in (self._cluster.blocks, self._cluster.nodes, self._cluster.pools):
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

    def _observe_pool(self, old: AddressPool | None, new: AddressPool | None) -> None:
        if old is None or new is None or old.spec.subnets != new.spec.subnets:
            self._wake.set()

    def _report(self, planned: NodeRoutes) -> None:
        self._metrics.routes.set(len(planned.routes))
        self._metrics.set_troubled(planned.troubled)
        now: dict[RouteTrouble, frozenset[TroubledNetwork]] = {}
        for trouble in RouteTrouble:
            now[trouble] = frozenset(network for network in planned.troubled if network.trouble is trouble)
            if now[trouble] == self._reported.get(trouble, frozenset()):
                continue
            log = self._log.warning if now[trouble] else self._log.info
            examples = [
                f"{network.network} of block {network.block} on {network.node}"
                for network in planned.troubled
                if network.trouble is trouble
            ]
            log("networks in trouble", trouble=trouble.value, networks=len(examples), examples=examples[:_EXAMPLES])
        self._reported = now


def _route_facts(block: AddressBlock) -> tuple[object, ...]:
    """The parts of a block that its route depends on."""
    return block.node, block.ipv4, block.ipv6, block.metadata.deleting


def start_route_sync(
    settings: Settings,
    process: Process,
    *,
    network: PodNetwork,
    kube: KubeClient,
    informer_metrics: InformerMetrics,
    rng: Random,
    repairs: Repairs,
    log: FilteringBoundLogger,
) -> RouteSync:
    """Spawn it. Pods of this node are served without waiting for it, but the process is not ready before it is."""
    cluster = ClusterRouting(
        blocks=Informer(
            kube.collection(ADDRESS_BLOCKS), log=log, metrics=informer_metrics.named("addressblocks-of-all-nodes")
        ),
        nodes=Informer(kube.collection(NODES), log=log, metrics=informer_metrics),
        pools=Informer(kube.collection(ADDRESS_POOLS), log=log, metrics=informer_metrics),
    )
    sync = RouteSync(
        network,
        cluster,
        own=settings.node_name,
        protocol=settings.route_sync_protocol_id,
        backoff=_BACKOFF,
        rng=rng,
        metrics=RouteSyncMetrics(process.registry, node=settings.node_name, repairs=repairs),
        log=log,
    )
    if settings.clear_routes_on_shutdown:
        get_node = partial(kube.get, NODES, settings.node_name)
        process.stack.push_async_callback(withdraw_if_gone, get_node, sync.withdraw, log=log)
    process.add_readiness("route-sync", sync.missing)
    process.spawn("addressblocks-of-all-nodes", cluster.blocks.run())
    process.spawn("nodes", cluster.nodes.run())
    process.spawn("addresspools", cluster.pools.run())
    process.spawn("route-sync", sync.run(settings.route_sync_interval))
    return sync
