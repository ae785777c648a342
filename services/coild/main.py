"""coild: gives addresses to the pods of its node and wires them. Run by `python -m coild`, one per node, as root.

Wires the parts together and nothing else. `Start` is the start as a list of phases, in the order of trust: the
kernel's side first (rules, sysctls), then what the API server knows, then the ledger from both, and only then the
socket: no ADD meets half the state. Until then the plugin finds no socket, and the runtime tries again.

Where addresses come from is decided in one phase (`choose_source`): address pools, or another plugin before this one
(`--enable-ipam=false`).
"""

import asyncio
import itertools
import os
import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NAMESPACES, NODES, Namespace, Node
from coil.crd.names import LABEL_NODE, NodeName
from coil.kube.client import KubeClient
from coil.kube.errors import ForbiddenError, NotFoundError, UnavailableError
from coil.netlink.host import HostNetwork
from coil.page import node_document as page
from coil.page.node_page import render_node_page
from coil.podnet.plan import LINK_LOCAL, node_addresses
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import wait_synced
from coil.reconcile.event_recorder import EventMetrics, EventRecorder
from coil.reconcile.informer import Informer, InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.runtime.flag import parse_settings
from coil.runtime.inspection import Inspection, start_inspection
from coil.runtime.process import Process, run
from coild.addresses.chained import ChainedSource
from coild.addresses.pool_ipam import PoolDeps, PoolIpam
from coild.cni.service import CniService, serve_plugin
from coild.egress.nat import EgressDeps, EgressNat, NodeEgress, WithoutEgress, start_egress
from coild.hostports.host_ports import HostPorts
from coild.hostports.kernel_table import KernelTable
from coild.model.address_source import AddressSource
from coild.model.attachment import NoHostPorts, PodName, PodUnknownError
from coild.model.keyed_executor import KeyedExecutor
from coild.pods.engine import PodEngine
from coild.pods.veth import VethWiring
from coild.routes.sync import start_route_sync
from coild.settings import HostAddress, Settings

START_BACKOFF = Backoff(base=0.5, cap=15.0)


def main() -> int:
    settings = parse_settings(
        Settings,
        sys.argv[1:],
        os.environ,
        program="coild",
        about="Gives addresses to the pods of a node and wires them.",
    )
    return run(partial(assemble, settings), name="coild", settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything; returns once the socket is served."""
    if not settings.enable_ipam and not settings.enable_egress:
        raise ValueError("--enable-ipam=false and --enable-egress=false leave coild nothing to do")
    start = Start(settings, process)
    for phase in (
        start.connect,
        start.start_egress,
        start.choose_source,
        start.prepare_node,
        start.list_objects,
        start.recover,
        start.announce,
        start.serve,
        start.maintain,
    ):
        await phase()


class Start:
    """The phases of coild's start; each is called once, in the order in which they stand here."""

    network: HostNetwork
    kube: KubeClient
    egress: NodeEgress
    source: AddressSource
    pods: PodEngine
    host_ports: HostPorts | None = None
    pools: "Pools | None" = None

    def __init__(self, settings: Settings, process: Process) -> None:
        self.settings = settings
        self.process = process
        self.log: FilteringBoundLogger = process.log.bind(node=settings.node_name)
        self.rng = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self.executor = KeyedExecutor(self.log)
        self.informer_metrics = InformerMetrics(process.registry)
        self.reconcile_metrics = ReconcileMetrics(process.registry)

    async def connect(self) -> None:
        """The kernel and the API server, which need not answer yet; Events may be sent."""
        stack = self.process.stack
        self.network = await stack.enter_async_context(HostNetwork())
        self.kube = await stack.enter_async_context(KubeClient.connect(self.settings.kubeconfig))
        self.recorder = EventRecorder(
            self.kube,
            component="coild",
            host=self.settings.node_name,
            log=self.log,
            metrics=EventMetrics(self.process.registry),
        )
        self.process.spawn("events", self.recorder.run())

    async def start_egress(self) -> None:
        """Begin to list what egress NAT needs, if it is on."""
        if not self.settings.enable_egress:
            self.egress = WithoutEgress()
            return
        deps = EgressDeps(
            kube=self.kube,
            network=self.network,
            executor=self.executor,
            recorder=self.recorder,
            informer_metrics=self.informer_metrics,
            reconcile_metrics=self.reconcile_metrics,
        )
        self.egress = await start_egress(self.settings, self.process, deps, log=self.log)

    async def choose_source(self) -> None:
        """Where the pods' addresses come from, and the engine that attaches pods with them."""
        if self.settings.enable_ipam:
            node = await read_node(self.kube, self.settings.node_name, rng=self.rng, log=self.log)
            self.pools = Pools(self, node, await self._veth_wiring(node))
            self.source = self.pools.source
            self.host_ports = await self._open_host_ports()
        else:
            self.source = ChainedSource(self.network, uid_of=self._uid_of, log=self.log)
        for collector in self.source.metrics():
            self.process.registry.register(collector)
        self.pods = PodEngine(
            source=self.source,
            egress=self.egress.clients,
            host_ports=self.host_ports or NoHostPorts(),
            executor=self.executor,
            acquire_timeout=self.settings.acquire_timeout,
            recorder=self.recorder,
            log=self.log,
        )

    async def prepare_node(self) -> None:
        """What the pods' wiring needs of the node."""
        await self.source.wiring.prepare()

    async def list_objects(self) -> None:
        """Wait until the API server has listed what the ledger is made of; of egress, for some seconds."""
        if self.pools is not None:
            await self.pools.list_objects()
        await self.egress.wait_listed()

    async def recover(self) -> None:
        """The ledger, from the kernel and the API server; then egress and host ports take over the pods there are."""
        await self.pods.recover()
        self.egress.adopt(self.pods.attachments())
        if self.host_ports is not None:
            await self.host_ports.adopt(self.pods.attachments())

    async def announce(self) -> None:
        """The routes of this node's blocks, and what happens to blocks from now on."""
        if self.pools is not None:
            self.pools.announce()

    async def serve(self) -> None:
        """The plugin's calls."""
        service = CniService(self.pods, chained=not self.settings.enable_ipam)
        await serve_plugin(service, self.settings, self.process, executor=self.executor, log=self.log)

    async def maintain(self) -> None:
        """What goes on beside the calls: following egress, sweeps, the inspection page."""
        self.egress.follow()
        if self.host_ports is not None:
            self.process.spawn("host-ports", self.host_ports.follow())
        self.process.spawn("sweep", self.pods.run_sweeps(self.settings.addressblock_gc_interval))
        if self.pools is not None:
            self.pools.maintain()

    async def _veth_wiring(self, node: Node) -> VethWiring:
        settings = self.settings
        addresses = [ip_address(entry.address) for entry in node.status.addresses if entry.type == "InternalIP"]
        return VethWiring(
            self.network,
            mtu=settings.mtu or (await self.network.uplink(addresses)).mtu,
            gateways=node_addresses(addresses) if settings.host_address is HostAddress.NODE_IP else LINK_LOCAL,
            policy=settings.route_policy,
            compat_calico=settings.compat_calico,
            log=self.log,
        )

    async def _open_host_ports(self) -> HostPorts:
        table = await self.process.stack.enter_async_context(KernelTable())
        return HostPorts(self.network, table, registry=self.process.registry, random=self.rng.random, log=self.log)

    async def _uid_of(self, name: PodName, deadline: float) -> str:
        """Where the runtime does not pass it."""
        if not isinstance(self.egress, EgressNat):
            return ""
        try:
            return (await self.egress.pods.find(name, deadline=deadline)).metadata.uid
        except PodUnknownError:
            if not self.settings.egress_fail_open:
                raise
            return ""


class Pools:
    """What address pools add to the start: their informers, and what runs once the source has recovered."""

    def __init__(self, start: Start, node: Node, wiring: VethWiring) -> None:
        self._start = start
        settings, kube, log = start.settings, start.kube, start.log
        own = f"{LABEL_NODE}={settings.node_name}"
        metrics = start.informer_metrics
        blocks = Informer(kube.collection(ADDRESS_BLOCKS, labels=own), log=log, metrics=metrics)
        requests = Informer(kube.collection(BLOCK_REQUESTS, labels=own), log=log, metrics=metrics)
        namespaces = Informer(kube.collection(NAMESPACES), log=log, metrics=metrics)
        self._informers: dict[str, Informer[Any]] = {
            "addressblocks": blocks,
            "blockrequests": requests,
            "namespaces": namespaces,
        }
        self._ipam = PoolIpam(
            settings,
            PoolDeps(
                client=kube,
                network=start.network,
                blocks=blocks,
                requests=requests,
                namespace_of=partial(find_namespace, namespaces, kube),
                wiring=wiring,
                recorder=start.recorder,
                reconcile_metrics=start.reconcile_metrics,
                rng=start.rng,
                log=log,
            ),
            node_uid=node.metadata.uid,
        )
        self.source = self._ipam.source
        namespaces.subscribe(self.source.foresee)

    async def list_objects(self) -> None:
        """This node's blocks and requests, and the namespaces; requests that an earlier process left are deleted."""
        for name, informer in self._informers.items():
            self._start.process.spawn(name, informer.run())
        await wait_synced(self._informers.values(), log=self._start.log)
        await self._ipam.discard_stale_requests()

    def announce(self) -> None:
        """Export the routes; from now on blocks may be requested and released."""
        start, stack = self._start, self._start.process.stack
        if start.settings.clear_routes_on_shutdown:
            stack.push_async_callback(self._ipam.withdraw_routes)
        stack.push_async_callback(self._ipam.close)
        for name, task in self._ipam.tasks().items():
            start.process.spawn(name, task)
        if start.settings.route_sync:
            start_route_sync(
                start.settings,
                start.process,
                network=start.network,
                kube=start.kube,
                informer_metrics=start.informer_metrics,
                rng=start.rng,
                log=start.log,
            )

    def maintain(self) -> None:
        """The inspection page, and a look at releases that do not end."""
        start = self._start
        start.process.spawn(
            "stuck-release", _repeat(self._ipam.report_stuck_releases, start.settings.addressblock_gc_interval)
        )
        start_node_inspection(start.settings, start.process, source=self.source, log=start.log)


async def _repeat(work: Callable[[], None], interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        work()


async def read_node(kube: KubeClient, name: NodeName, *, rng: random.Random, log: FilteringBoundLogger) -> Node:
    """This node's object; waits for the API server, and for the kubelet to register the node, as long as it takes."""
    for attempt in itertools.count():
        try:
            return await kube.get(NODES, name)
        except (UnavailableError, NotFoundError, ForbiddenError) as error:
            # An API server that has just started refuses everybody: it has not read the roles yet.
            log.warning("waiting for this node's object", error=str(error))
        await asyncio.sleep(START_BACKOFF.delay(attempt, rng.random))
    raise AssertionError("unreachable")


async def find_namespace(namespaces: Informer[Namespace], kube: KubeClient, name: str) -> Namespace:
    """The namespace as it was last seen; one that was never seen is asked for."""
    return namespaces.get(name) or await kube.get(NAMESPACES, name)


def start_node_inspection(
    settings: Settings, process: Process, *, source: AddressSource, log: FilteringBoundLogger
) -> None:
    """Serve the node's inspection on the ports of the settings until the process stops."""

    def look() -> Callable[[], page.NodeDocument]:
        # All of it at once: there are no more addresses out than pods here, and the ledger changes with every ADD.
        node = describe_node(settings.node_name, source.describe(), now=datetime.now(UTC))
        return lambda: node

    endpoints = {"inspect": settings.inspect_addr, "inspect-page": settings.inspect_page_addr}
    start_inspection(process, Inspection(look, render_node_page), endpoints, log=log)


def describe_node(node: NodeName, pools: tuple[page.PoolDocument, ...], *, now: datetime) -> page.NodeDocument:
    """The node's document."""
    addresses = sum((pool.addresses for pool in pools), start=page.AddressCounts())
    return page.NodeDocument(node=node, at=now, addresses=addresses, pools=pools)
