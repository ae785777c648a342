"""coild: gives addresses to the pods of its node and wires them. Run by `python -m coild`, one per node, as root.

Wires the parts together and nothing else. `Start` is the start as a list of phases, in the order of trust: the
kernel's side first (rules, sysctls), then what the API server knows, then the ledger from both, and only then the
socket: no ADD meets half the state. Until then the plugin finds no socket, and the runtime tries again.

Where addresses come from is decided in one phase (`choose_source`), which makes an `AddressPart`: that of address
pools, of the node's network interfaces in AWS (`--address-source=aws-eni`), of ports in OpenStack's Neutron
(`--address-source=neutron`), or of another plugin before this one (`--enable-ipam=false`).
"""

import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import Gauge
from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import INTERNAL_IP, NAMESPACES, NODES, Namespace, Node
from coil.crd.condition_text import fit_sentences
from coil.crd.names import LABEL_NODE, NodeName
from coil.crd.resource import HasMetadata
from coil.kernel.family import IPAddress
from coil.kernel.packet_filter import ForwardedPacket
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.kube.errors import ForbiddenError, NotFoundError, UnavailableError
from coil.netlink.error import NetlinkError
from coil.netlink.host import HostNetwork
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.worker import open_worker
from coil.nft.forward_watch import ForwardWatch, read_hooks
from coil.nft.netfilter import NftError
from coil.page import node_document as page
from coil.page.node_page import render_node_page
from coil.podnet.plan import LINK_LOCAL, RoutePolicy, node_addresses
from coil.podnet.source_table import plan_source_table
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import describe_unsynced, wait_synced
from coil.reconcile.event_recorder import EventMetrics, EventRecorder
from coil.reconcile.informer import Informer, InformerMetrics, ListerWatcher
from coil.reconcile.metric import ReconcileMetrics
from coil.runtime import former_flag
from coil.runtime.flag import parse_settings
from coil.runtime.inspection import Inspection, start_inspection
from coil.runtime.process import Process, run
from coild.addresses.chained import ChainedSource
from coild.addresses.pool_ipam import PoolDeps, PoolIpam
from coild.cni.missed_deletes import MissedDeletes
from coild.cni.service import CniService, serve_plugin
from coild.egress.nat import EgressDeps, EgressNat, NodeEgress, WithoutEgress, open_filter, start_egress
from coild.hostports.host_ports import HostPorts
from coild.hostports.kernel_table import KernelTable
from coild.hostports.own_addresses import follow_own_addresses
from coild.model.address_source import AddressSource
from coild.model.attachment import AllEgress, NoHostPorts, PodEgress, PodName, PodUnknownError, RefusedHostPorts
from coild.model.keyed_executor import KeyedExecutor
from coild.model.node_condition import NodeCondition
from coild.model.node_subject import node_subject
from coild.model.repairs import Repairs
from coild.model.watched_table import WatchedTable
from coild.node.condition import describe_available, describe_dropped, describe_removed
from coild.node.node_object import NodeObject
from coild.node.pod_packets import DROPPED, plan_packets
from coild.node.source_verification import SourceVerification
from coild.node.state_watch import OwnState, StateParts, StateWatch
from coild.pods.engine import PodEngine
from coild.pods.veth import VethWiring
from coild.routes.sync import RouteSync, start_route_sync
from coild.routes.withdrawal import withdraw_if_gone
from coild.settings import AddressSourceName, HostAddress, Settings

if TYPE_CHECKING:
    from coil.crd.builtin import Pod
    from coil.page.eni_document import EniNodeDocument
    from coild.eni.eni_ipam import EniIpam
    from coild.neutron.neutron_ipam import NeutronIpam
    from coild.neutron.node_bridges import NodeBridges

T = TypeVar("T", bound=HasMetadata)

START_BACKOFF = Backoff(base=0.5, cap=15.0)
PICTURE_SECONDS = 8.0
"""For EC2 and the metadata service to describe the node's interfaces, before what the journal says has to do."""
LIST_SECONDS = 5.0
"""For the API server to list the node's pods, before what the journal says of their ports has to do."""


def main() -> int:
    settings = parse_settings(
        Settings,
        sys.argv[1:],
        os.environ,
        program="coild",
        about="Gives addresses to the pods of a node and wires them.",
        former=former_flag.COILD,
    )
    return run(partial(assemble, settings), name="coild", settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything; returns once the socket is served."""
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
    sysctls: NodeSysctls
    kube: KubeClient
    egress: NodeEgress
    part: "AddressPart"
    pods: PodEngine
    missed: MissedDeletes
    host_ports: HostPorts | None = None
    _sources: SourceVerification | None = None
    _forward_watch: ForwardWatch | None = None
    _node_addresses: Collection[IPAddress] = ()

    def __init__(self, settings: Settings, process: Process) -> None:
        self.settings = settings
        self.process = process
        self.log: FilteringBoundLogger = process.log.bind(node=settings.node_name)
        self.rng = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self.executor = KeyedExecutor(self.log)
        self.informer_metrics = InformerMetrics(process.registry)
        self.reconcile_metrics = ReconcileMetrics(process.registry)
        self.repairs = Repairs(process.registry)

    async def connect(self) -> None:
        """The kernel and the API server, which need not answer yet; Events may be sent."""
        stack = self.process.stack
        self.sysctls = NodeSysctls(self.settings.sysctl_record)
        self.network = await stack.enter_async_context(HostNetwork(sysctls=self.sysctls))
        self.kube = await stack.enter_async_context(KubeClient.connect(self.settings.kubeconfig))
        self.recorder = EventRecorder(
            self.kube,
            component="coild",
            host=self.settings.node_name,
            log=self.log,
            metrics=EventMetrics(self.process.registry),
        )
        self.process.spawn("events", self.recorder.run())

    @cached_property
    def namespaces(self) -> Informer[Namespace]:
        """For all who ask; followed from the first question on."""
        informer = Informer(self.kube.collection(NAMESPACES), log=self.log, metrics=self.informer_metrics)
        self.process.spawn(NAMESPACES.plural, informer.run())
        return informer

    async def start_egress(self) -> None:
        """Begin to list what egress NAT needs, if it is on."""
        client_filter = await open_filter(self.settings, self.process, random=self.rng.random, log=self.log)
        if not self.settings.enable_egress:
            self.egress = WithoutEgress()
            return
        deps = EgressDeps(
            kube=self.kube,
            network=self.network,
            executor=self.executor,
            recorder=self.recorder,
            namespaces=self.namespaces,
            informer_metrics=self.informer_metrics,
            reconcile_metrics=self.reconcile_metrics,
            client_filter=client_filter,
        )
        self.egress = await start_egress(self.settings, self.process, deps, log=self.log)

    async def choose_source(self) -> None:
        """Where the pods' addresses come from, and the engine that attaches pods with them."""
        if not self.settings.enable_ipam:
            self.part = Chained(self)
        elif self.settings.address_source is AddressSourceName.AWS_ENI:
            self.part = await Interfaces.open(self)
        elif self.settings.address_source is AddressSourceName.NEUTRON:
            self.part = await Ports.open(self)
        else:
            self.part = await Pools.open(self)
        if self.settings.enable_ipam and self.part.reaches_pods:
            self.host_ports = await self._open_host_ports()
        source = self.part.source
        for collector in source.metrics():
            self.process.registry.register(collector)
        self.pods = PodEngine(
            source=source,
            egress=self._pod_egress(),
            host_ports=self.host_ports or (NoHostPorts() if self.part.reaches_pods else RefusedHostPorts()),
            executor=self.executor,
            acquire_timeout=self.settings.acquire_timeout,
            recorder=self.recorder,
            log=self.log,
        )
        self.missed = MissedDeletes(self.settings.socket, self.pods, log=self.log)

    async def prepare_node(self) -> None:
        """What the pods' wiring needs of the node, and what keeps pods to their own addresses."""
        await self.part.source.wiring.prepare()
        if self.part.reaches_pods and self.settings.enable_ipam:
            await self._prepare_sources()

    async def list_objects(self) -> None:
        """Wait for what the ledger is made of; for what egress is made of, some seconds."""
        await self.part.list_objects()

    async def recover(self) -> None:
        """The ledger, from the kernel and the API server; then egress and host ports take over the pods there are, and
        those go whose DEL nobody was there for.
        """
        await self.pods.recover(self.missed.read())
        await self.egress.adopt(self.pods.attachments())
        if self.host_ports is not None:
            await self.host_ports.adopt(self.pods.attachments())
        await self.missed.apply()

    async def announce(self) -> None:
        """What others are to know of the addresses here, and what happens to them from now on."""
        self.part.announce()

    async def serve(self) -> None:
        """The plugin's calls."""
        obstacle = self.part.obstacle
        service = CniService(
            self.pods, chained=not self.settings.enable_ipam, obstacle=obstacle, settle=self.missed.settle
        )
        await serve_plugin(
            service, self.settings, self.process, executor=self.executor, obstacle=obstacle, log=self.log
        )

    async def maintain(self) -> None:
        """What goes on beside the calls: following egress, sweeps, the inspection page."""
        self.egress.follow()
        if self.host_ports is not None:
            self.process.spawn("host-ports", self.host_ports.follow())
            own = follow_own_addresses(
                self.host_ports,
                partial(self.kube.get, NODES, self.settings.node_name),
                more=self.settings.host_port_addresses,
                random=self.rng.random,
                log=self.log,
            )
            self.process.spawn("own-addresses", own)
        if self._sources is not None:
            self.process.spawn("source-table", self._sources.follow())
            self.process.spawn("spoofed-packets", self._sources.count())
        self.process.spawn("recorded-deletes", self.missed.run())
        self.process.spawn("sweep", self.pods.run_sweeps(self.settings.addressblock_gc_interval))
        await self.part.watch_node()
        if self.part.reaches_pods and self.settings.enable_ipam:
            self._forward_watch = await self._watch_forwarding()
        if self.part.learns_status or self.settings.node_conditions or self.settings.set_network_unavailable:
            node_object = NodeObject(
                self.kube,
                self._conditions,
                learn=self.part.learn_status,
                node=self.settings.node_name,
                clock=time.monotonic,
                random=self.rng.random,
                log=self.log,
            )
            self.process.spawn("node-object", node_object.run())
        self.part.maintain()

    def follow(self, source: ListerWatcher[T]) -> Informer[T]:
        """A cache that is followed from now on. The process is not ready before it is synced, but waits for nothing."""
        informer = Informer(source, log=self.log, metrics=self.informer_metrics)
        name = source.resource.plural
        self.process.add_readiness(name, partial(describe_unsynced, informer))
        self.process.spawn(name, informer.run())
        return informer

    async def veth_wiring(self, addresses: Collection[IPAddress], policy: RoutePolicy) -> VethWiring:
        """A veth for each pod. `addresses` are the node's, as far as they are known."""
        settings = self.settings
        self._node_addresses = addresses
        return VethWiring(
            self.network,
            mtu=settings.mtu or (await self.network.uplink(addresses)).mtu,
            gateways=node_addresses(addresses) if settings.host_address is HostAddress.NODE_IP else LINK_LOCAL,
            policy=policy,
            compat_calico=settings.compat_calico,
            repairs=self.repairs,
            log=self.log,
        )

    async def _prepare_sources(self) -> None:
        table = await self.process.stack.enter_async_context(WatchedTable(plan_source_table()))
        if not self.settings.verify_source:
            if await table.delete():
                self.log.warning("pods are no longer kept to their own addresses")
            return
        self._sources = SourceVerification(table, registry=self.process.registry, random=self.rng.random, log=self.log)
        await self._sources.prepare()

    async def _watch_forwarding(self) -> ForwardWatch:
        reading = await self.process.stack.enter_async_context(open_worker("forward-read"))
        watch = ForwardWatch(
            self._packets_of_pods,
            partial(reading.run, read_hooks),
            gauge=Gauge(
                "coil_node_forward_dropped",
                "Directions and families in which packet filters of others drop packets of pods.",
                registry=self.process.registry,
            ),
            note=self._note_dropped,
            errors=(NetlinkError, NftError),
            log=self.log,
        )
        self.process.spawn("forward-watch", watch.run())
        return watch

    async def _packets_of_pods(self) -> Mapping[str, ForwardedPacket]:
        attachments = self.pods.attachments()
        return plan_packets(attachments, (await self.network.uplink(self._node_addresses)).name) if attachments else {}

    def _note_dropped(self, dropped: Sequence[str]) -> None:
        if dropped:
            node = node_subject(self.settings.node_name)
            self.recorder.warn(node, reason=DROPPED, message=fit_sentences(dropped))

    def _conditions(self) -> tuple[NodeCondition, ...]:
        """Those that are known yet. The socket is served before anybody asks."""
        settings, watch = self.settings, self._forward_watch
        found = list(self.part.conditions())
        if settings.node_conditions and watch is not None and watch.dropped is not None:
            found.append(describe_dropped(watch.dropped))
        if settings.set_network_unavailable:
            found.append(describe_available())
        return tuple(found)

    def _pod_egress(self) -> PodEgress:
        if self.settings.eip_agent_socket is None:
            return self.egress.clients
        # Here, as nothing of it is for nodes without floating addresses.
        from coild.eip.agent_client import EipAgentClient, has_earlier_agent

        agent = EipAgentClient(self.settings.eip_agent_socket, has_earlier=has_earlier_agent)
        return AllEgress(agent, self.egress.clients)

    async def _open_host_ports(self) -> HostPorts:
        table = await self.process.stack.enter_async_context(KernelTable())
        return HostPorts(self.network, table, registry=self.process.registry, random=self.rng.random, log=self.log)

    async def uid_of(self, name: PodName, deadline: float) -> str:
        """Where the runtime does not pass it."""
        if not isinstance(self.egress, EgressNat):
            return ""
        try:
            return (await self.egress.pods.find(name, deadline=deadline)).metadata.uid
        except PodUnknownError:
            if not self.settings.egress_fail_open:
                raise
            return ""


class AddressPart:
    """What a source of addresses adds to the start; here, nothing. The phases call the methods once, in this order."""

    source: AddressSource
    reaches_pods = True
    """Whether the node itself has a way to its pods, so that its ports can lead to them."""
    learns_status = False
    """Whether the source needs to know what its Node's status says."""

    async def list_objects(self) -> None:
        """Wait for what the ledger is made of; for what egress is made of, some seconds."""

    def announce(self) -> None:
        """The source has recovered what the kernel holds: from now on things may be had, told and given back."""

    def obstacle(self) -> str | None:
        """Why STATUS is to fail; None if it is not. At any time from here on."""
        return None

    def conditions(self) -> tuple[NodeCondition, ...]:
        """What the Node is to say of the source now."""
        return ()

    def learn_status(self, status: Mapping[str, Any]) -> None:
        """The Node's status was read."""

    async def watch_node(self) -> None:
        """The calls are served: from now on what others take away of the node's state is put back at once."""

    def maintain(self) -> None:
        """The calls are served: what goes on beside them, and the inspection page."""


class Chained(AddressPart):
    """Another plugin gives the addresses. There is nothing to wait for, and nothing to show."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.source = ChainedSource(start.network, uid_of=start.uid_of, log=start.log)

    async def list_objects(self) -> None:
        """See `AddressPart`. There is no ledger."""
        await self._start.egress.wait_listed()


class Interfaces(AddressPart):
    """The node's network interfaces in AWS. Make one with `open`."""

    learns_status = True

    def __init__(self, start: Start, ipam: "EniIpam") -> None:
        self._start = start
        self._ipam = ipam
        self.source = ipam.source

    @classmethod
    async def open(cls, start: Start) -> "Interfaces":
        """Needs neither the API server nor EC2."""
        # Here, as the AWS library takes a tenth of a second and 10 MB, which no other node is to spend.
        from coild.eni.eni_ipam import open_eni

        settings = start.settings
        # The rule that looks up the pods' table is one of those that the interfaces need, and belongs to them.
        wiring = await start.veth_wiring((), replace(settings.route_policy, rule_priority=None))
        ipam = await start.process.stack.enter_async_context(
            open_eni(
                settings,
                client=start.kube,
                network=start.network,
                veth=wiring,
                recorder=start.recorder,
                stopping=start.process.stopping.is_set,
                sysctls=start.sysctls,
                rng=start.rng,
                log=start.log,
            )
        )
        return cls(start, ipam)

    async def list_objects(self) -> None:
        """See `AddressPart`. Who does not answer in time is asked again later.

        Both at once: where nobody answers at all, neither EC2 nor the API server, pods wait for the longer of the two.
        """
        async with asyncio.TaskGroup() as both:
            both.create_task(self._ipam.start(timeout=PICTURE_SECONDS), name="interfaces: first picture")
            both.create_task(self._start.egress.wait_listed(), name="egress: first list")

    def announce(self) -> None:
        """See `AddressPart`. From now on EC2 is asked for more, and for less."""
        for name, task in self._ipam.tasks(self._start.pods.restore).items():
            self._start.process.spawn(name, task)
        self._start.process.add_readiness("addresses", lambda: self._ipam.obstacle)

    def obstacle(self) -> str | None:
        """See `AddressPart`."""
        return self._ipam.status

    def conditions(self) -> tuple[NodeCondition, ...]:
        """See `AddressPart`."""
        return self._ipam.conditions()

    def learn_status(self, status: Mapping[str, Any]) -> None:
        """See `AddressPart`. How many pods the node may run."""
        self._ipam.store.learn_limit(status)

    def maintain(self) -> None:
        """See `AddressPart`."""

        def look() -> Callable[[], "EniNodeDocument"]:
            node = self._ipam.describe(datetime.now(UTC))
            return lambda: node

        from coil.page.eni_page import render_eni_page  # as above

        start_node_inspection(self._start, Inspection(look, render_eni_page))


class Ports(AddressPart):
    """Ports in OpenStack's Neutron. Make one with `open`.

    STATUS never fails for want of ports: each is its pod's, and coil-raven may make the next one.
    """

    # The overlay is not the node's own network.
    reaches_pods = False

    def __init__(self, start: Start, ipam: "NeutronIpam", bridges: "NodeBridges", pods: "Informer[Pod]") -> None:
        self._start = start
        self._ipam = ipam
        self._bridges = bridges
        self._pods = pods
        self.source = ipam.source

    @classmethod
    async def open(cls, start: Start) -> "Ports":
        """Needs neither the API server nor Neutron."""
        # Here, as nothing of it is for nodes with other addresses.
        from coil.crd.builtin import PODS
        from coil.neutron.handoff import BRIDGE
        from coild.neutron.neutron_ipam import NeutronDeps, NeutronIpam, find_mtu, open_journal
        from coild.neutron.node_bridges import open_bridges
        from coild.neutron.switches import switch_bindings

        settings = start.settings
        own = f"spec.nodeName={settings.node_name}"
        pods = start.follow(start.kube.collection(PODS, fields=own, freshness=Freshness.CACHED))
        nodes = start.follow(start.kube.collection(NODES, freshness=Freshness.CACHED))
        bridges = await start.process.stack.enter_async_context(
            open_bridges(settings, nodes, random=start.rng.random, log=start.log)
        )
        deps = NeutronDeps(
            client=start.kube,
            pods=pods,
            network=start.network,
            builtin={BRIDGE: bridges.binding, **switch_bindings(settings, log=start.log)},
            journal=start.process.stack.enter_context(open_journal(settings, log=start.log)),
            mtu=await find_mtu(settings, start.network),
            random=start.rng.random,
            log=start.log,
        )
        return cls(start, NeutronIpam(settings, deps), bridges, pods)

    async def list_objects(self) -> None:
        """See `AddressPart`. By the pods' annotations those are known that the journal lacks."""
        try:
            await self._pods.wait_synced(LIST_SECONDS)
        except TimeoutError as error:
            self._start.log.warning("starting with what the journal says of the pods' ports", error=str(error))

    def announce(self) -> None:
        """See `AddressPart`. From now on what is left of pods that are gone is unplugged."""
        for name, task in (self._ipam.tasks() | self._bridges.tasks()).items():
            self._start.process.spawn(name, task)
        self._start.process.add_readiness("bindings", lambda: self._ipam.trouble)


def _nothing() -> None:
    """There are no routes to other nodes here."""


class Pools(AddressPart):
    """Address pools: their informers, and what runs once the source has recovered. Make one with `open`.

    STATUS never fails for want of addresses: what is missing, the controller may bring with the next request.
    """

    @classmethod
    async def open(cls, start: Start) -> "Pools":
        """Waits for the Node."""
        node = await read_node(start.kube, start.settings.node_name, rng=start.rng, log=start.log)
        return cls(start, node, await start.veth_wiring(node.addresses(INTERNAL_IP), start.settings.route_policy))

    def __init__(self, start: Start, node: Node, wiring: VethWiring) -> None:
        self._start = start
        settings, kube, log = start.settings, start.kube, start.log
        own = f"{LABEL_NODE}={settings.node_name}"
        metrics = start.informer_metrics
        blocks = Informer(kube.collection(ADDRESS_BLOCKS, labels=own), log=log, metrics=metrics)
        requests = Informer(kube.collection(BLOCK_REQUESTS, labels=own), log=log, metrics=metrics)
        namespaces = start.namespaces
        self._own: dict[str, Informer[Any]] = {"addressblocks": blocks, "blockrequests": requests}
        self._informers: dict[str, Informer[Any]] = {**self._own, "namespaces": namespaces}
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
                repairs=start.repairs,
                rng=start.rng,
                log=log,
            ),
            node_uid=node.metadata.uid,
        )
        self._route_sync: RouteSync | None = None
        self._state_watch: StateWatch | None = None
        self.source = self._ipam.source
        namespaces.subscribe(self._ipam.source.foresee)

    async def list_objects(self) -> None:
        """This node's blocks and requests, and the namespaces; requests that an earlier process left are deleted.

        That takes an API server, for as long as there is none. Egress has its seconds from then on.
        """
        for name, informer in self._own.items():
            self._start.process.spawn(name, informer.run())
        await wait_synced(self._informers.values(), log=self._start.log)
        await self._ipam.discard_stale_requests()
        await self._start.egress.wait_listed()

    def announce(self) -> None:
        """Export the routes; from now on blocks may be requested and released."""
        start, stack = self._start, self._start.process.stack
        if start.settings.clear_routes_on_shutdown:
            get_node = partial(start.kube.get, NODES, start.settings.node_name)
            stack.push_async_callback(withdraw_if_gone, get_node, self._ipam.withdraw_routes, log=start.log)
        stack.push_async_callback(self._ipam.close)
        for name, task in self._ipam.tasks().items():
            start.process.spawn(name, task)
        if start.settings.route_sync:
            self._route_sync = start_route_sync(
                start.settings,
                start.process,
                network=start.network,
                kube=start.kube,
                informer_metrics=start.informer_metrics,
                rng=start.rng,
                repairs=start.repairs,
                log=start.log,
            )

    async def watch_node(self) -> None:
        """See `AddressPart`."""
        start, sync = self._start, self._route_sync
        watch = StateWatch(
            OwnState(
                policy=start.settings.route_policy,
                is_routed=start.pods.is_routed,
                node_routes=start.settings.route_sync_protocol_id if sync is not None else None,
            ),
            StateParts(
                wiring=start.pods.repair,
                export=self._ipam.export.changed,
                unexported=self._ipam.export.unexported,
                sync_nodes=sync.wake if sync is not None else _nothing,
            ),
            repairs=start.repairs,
            recorder=start.recorder,
            node=node_subject(start.settings.node_name),
            log=start.log,
        )
        await start.network.watch_removals(watch.observe)
        start.process.spawn("state-watch", watch.run())
        self._state_watch = watch

    def conditions(self) -> tuple[NodeCondition, ...]:
        """See `AddressPart`."""
        watch = self._state_watch
        return (describe_removed(watch.removed),) if self._start.settings.node_conditions and watch is not None else ()

    def maintain(self) -> None:
        """The inspection page, and a look at releases that do not end."""
        start = self._start
        start.process.spawn(
            "stuck-release", _repeat(self._ipam.report_stuck_releases, start.settings.addressblock_gc_interval)
        )

        def look() -> Callable[[], page.NodeDocument]:
            # All of it at once: there are no more addresses out than pods here, and the ledger changes with every ADD.
            settings = start.settings
            pools, routes = self._ipam.source.describe(), settings.route_policy
            node = describe_node(settings.node_name, pools, routes=routes, now=datetime.now(UTC))
            return lambda: node

        start_node_inspection(start, Inspection(look, render_node_page))


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


def start_node_inspection(start: Start, inspection: Inspection[Any]) -> None:
    """Serve the node's inspection on the ports of the settings until the process stops."""
    endpoints = {"inspect": start.settings.inspect_addr, "inspect-page": start.settings.inspect_page_addr}
    start_inspection(start.process, inspection, endpoints, log=start.log)


def describe_node(
    node: NodeName, pools: tuple[page.PoolDocument, ...], *, routes: RoutePolicy, now: datetime
) -> page.NodeDocument:
    """The node's document."""
    addresses = sum((pool.addresses for pool in pools), start=page.AddressCounts())
    tables = page.RouteTablesDocument(pods=routes.pod_table, export=routes.export_table, protocol=routes.protocol)
    return page.NodeDocument(node=node, at=now, addresses=addresses, pools=pools, tables=tables)
