"""Puts together what `--enable-egress` adds to coild: its informers, the clients, and what follows their changes.

    Pod: annotations, addresses      ┐
    Egress: destinations, source port├─► the attachments concerned ─► queue ─► coild.egress.client: refresh
    Service: addresses               │
    EndpointSlices: router pods      │
    ConfigMap: cluster's networks    ┘

What the clients are is told to router pods by `coild.egress.client_slices`.

Other changes of these objects, such as the replicas of an Egress or the conditions of a pod, are ignored. Changes that
come together cause one refresh; one that fails is retried without delaying the others.

The start of coild does not depend on it: where Egresses cannot be listed (no such kind yet, no right to), addresses are
given and pods that name no Egress are wired, `/readyz` says what is missing, and an ADD reads what it needs. But
nothing is taken from a pod before everything has been listed: what is not known yet must not look as if it had gone.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import CONFIG_MAPS, PODS, SERVICES, ConfigMap, Namespace, Pod, Service
from coil.crd.egress import CLIENT_EGRESSES, Egress
from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES
from coil.crd.endpoint_slice import ENDPOINT_SLICES, EndpointSlice
from coil.crd.names import ANNOTATION_EGRESS_PREFIX, LABEL_NODE
from coil.crd.resource import HasMetadata
from coil.egress.client_filter import plan_client_table
from coil.egress.client_pod import EgressRef
from coil.egress.cluster_networks import parse_cluster_networks
from coil.egress.gateway import Replies, TunnelPolicy
from coil.egress.resolution import ClientOptions
from coil.egress.router_pod import EGRESS_SELECTOR
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import IPNetwork
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.nat.client import ClientNetwork
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import wait_synced
from coil.reconcile.controller import DONE, Controller, Done
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.informer import Informer, InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coil.runtime.process import Process
from coild.egress.client import EgressClients
from coild.egress.client_filter import ClientFilter, NoTunnelFilter
from coild.egress.client_slices import ClientSlices
from coild.egress.directory import ENDPOINT_INDEXERS, INDEXERS, EgressDirectory, NodePods, router_addresses
from coild.egress.pod_tunnel import PodTunnels
from coild.egress.report import EgressMetrics, EgressReport
from coild.model.api_reader import APIReader
from coild.model.attachment import Attachment, NoEgress, PodEgress
from coild.model.keyed_executor import KeyedExecutor
from coild.model.pod_network import PodNetwork
from coild.model.watched_table import WatchedTable
from coild.settings import Settings

T = TypeVar("T", bound=HasMetadata)


class EgressFollow:
    """Maps events to the attachments that have to be refreshed: the key functions and the reconcile of a
    `coil.reconcile.controller.Controller`.
    """

    def __init__(self, clients: EgressClients) -> None:
        self._clients = clients

    def of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        """Attachments of the pod; none for a pod that is gone, as its namespace goes with it."""
        if new is None or (old is not None and _relevant(old) == _relevant(new)):
            return ()
        return map(render_key, self._clients.of_pod(new))

    def of_egress(self, old: Egress | None, new: Egress | None) -> Iterable[str]:
        if old is not None and new is not None and _routes(old) == _routes(new):
            return ()
        return self._naming(old, new)

    def of_service(self, old: Service | None, new: Service | None) -> Iterable[str]:
        """A Service has the name of its Egress."""
        if old is not None and new is not None and old.spec == new.spec:
            return ()
        return self._naming(old, new)

    def of_endpoints(self, old: EndpointSlice | None, new: EndpointSlice | None) -> Iterable[str]:
        """Which of its endpoints are ready does not matter here."""
        seen = new or old
        before, after = (router_addresses(each) if each is not None else None for each in (old, new))
        if seen is None or before == after or not seen.service:
            return ()
        return map(render_key, self._clients.naming(EgressRef(seen.metadata.namespace, seen.service)))

    def of_namespace(self, old: Namespace | None, new: Namespace | None) -> Iterable[str]:
        """Its labels decide which Egresses serve its pods."""
        if old is None or new is None or old.metadata.labels == new.metadata.labels:
            return ()
        return map(render_key, self._clients.of_namespace(new.metadata.name))

    def of_networks(self, old: ConfigMap | None, new: ConfigMap | None) -> Iterable[str]:
        """Which networks are the cluster's own concerns every client."""
        if (old.data if old is not None else {}) == (new.data if new is not None else {}):
            return ()
        return map(render_key, self._clients.asking())

    async def reconcile(self, key: str) -> Done:
        await self._clients.refresh(parse_key(key))
        return DONE

    def _naming(self, old: T | None, new: T | None) -> Iterable[str]:
        seen = new or old
        if seen is None:
            return ()
        return map(render_key, self._clients.naming(EgressRef(seen.metadata.namespace, seen.metadata.name)))


def render_key(key: AttachmentKey) -> str:
    """An attachment as the key of a queue; neither part has a slash in it."""
    return f"{key.container_id}/{key.ifname}"


def parse_key(text: str) -> AttachmentKey:
    container, _, ifname = text.rpartition("/")
    return AttachmentKey(ContainerId(container), ifname)


def _relevant(pod: Pod) -> tuple[object, ...]:
    """What of a pod decides which tunnels it has, or that an attachment is its own."""
    asked = {
        name: value for name, value in pod.metadata.annotations.items() if name.startswith(ANNOTATION_EGRESS_PREFIX)
    }
    return asked, pod.status.pod_ips, pod.spec.host_network


def _routes(egress: Egress) -> tuple[object, ...]:
    return egress.spec.destinations, egress.spec.fou_source_port_auto, egress.spec.allowed_namespaces


class ClusterNetworksView:
    """The cluster's networks that are not private, as the ConfigMap tells them; none before it is seen."""

    def __init__(self) -> None:
        self.networks: tuple[IPNetwork, ...] = ()

    def observe(self, _old: ConfigMap | None, new: ConfigMap | None) -> None:
        """The ConfigMap appeared, changed, or went (no `new`): what was told last counts on."""
        if new is not None:
            self.networks = parse_cluster_networks(new.data)


NAME = "egress-clients"
SLICES_NAME = "egress-client-slices"
WORKERS = 4
"""Refreshes at a time: a DEL that comes may have to wait for so many."""
BACKOFF = Backoff(base=0.5, cap=60.0)
START_SECONDS = 5.0
"""How long the start waits for the lists, so that usually no ADD has to ask."""


@dataclass(frozen=True, kw_only=True)
class EgressDeps:
    """What the parts speak to."""

    kube: KubeClient
    network: PodNetwork
    executor: KeyedExecutor
    recorder: Recorder
    namespaces: Informer[Namespace]
    informer_metrics: InformerMetrics
    reconcile_metrics: ReconcileMetrics
    client_filter: ClientFilter | None


async def open_filter(
    settings: Settings, process: Process, *, random: Callable[[], float], log: FilteringBoundLogger
) -> ClientFilter | None:
    """What keeps clients to their routers; None if that is not wanted. Then what an earlier process has left of it is
    deleted. Raises NftError and BusyError.
    """
    table = await process.stack.enter_async_context(WatchedTable(plan_client_table(udp_port=settings.egress_port)))
    if settings.enable_egress and settings.verify_routers:
        return ClientFilter(table, registry=process.registry, random=random, log=log)
    if await table.delete():
        log.warning("pods with tunnels to an Egress take encapsulated packets from anybody again")
    return None


async def start_egress(
    settings: Settings, process: Process, deps: EgressDeps, *, log: FilteringBoundLogger
) -> "EgressNat":
    """Begin to list and watch."""
    tunnels = await process.stack.enter_async_context(ClientNetwork())
    egress = EgressNat(settings, process, deps, tunnels=tunnels, log=log)
    egress.start()
    return egress


class EgressNat:
    """Egress NAT of this node. One per process."""

    def __init__(
        self,
        settings: Settings,
        process: Process,
        deps: EgressDeps,
        *,
        tunnels: ClientNetwork,
        log: FilteringBoundLogger,
    ) -> None:
        self._process = process
        self._log = log
        kube, metrics = deps.kube, deps.informer_metrics
        # Pods out of the API server's cache, where they are indexed by node; of them nothing depends on the latest
        # word. That an Egress or a Service is not there takes tunnels away, so theirs must be the latest.
        self._pods = Informer(
            kube.collection(PODS, fields=f"spec.nodeName={settings.node_name}", freshness=Freshness.CACHED),
            log=log,
            metrics=metrics,
            indexers=INDEXERS,
        )
        self._egresses = Informer(kube.collection(CLIENT_EGRESSES), log=log, metrics=metrics)
        self._services = Informer(kube.collection(SERVICES, labels=EGRESS_SELECTOR), log=log, metrics=metrics)
        # They have the labels of their Services (KEP 752).
        self._endpoints = Informer(
            kube.collection(ENDPOINT_SLICES, labels=EGRESS_SELECTOR),
            log=log,
            metrics=metrics,
            indexers=ENDPOINT_INDEXERS,
        )
        self._filter = deps.client_filter
        self._informers: dict[str, Informer[Any]] = {
            "pods": self._pods,
            "egresses": self._egresses,
            "services": self._services,
        }
        if self._filter is not None:
            self._informers["endpointslices"] = self._endpoints
        self._namespaces = deps.namespaces
        view = ClusterNetworksView()
        self._cluster_networks: Informer[ConfigMap] | None = None
        if (source := settings.cluster_networks) is not None:
            config_maps = kube.collection(
                CONFIG_MAPS, namespace=source.namespace, fields=f"metadata.name={source.name}"
            )
            self._cluster_networks = Informer(config_maps, log=log, metrics=metrics)
            # First: a refresh that its event causes is to find it here.
            self._cluster_networks.subscribe(view.observe)
            self._informers["cluster-networks"] = self._cluster_networks
        reader = APIReader(kube, log)
        self.pods = NodePods(self._pods, reader, node=settings.node_name)
        self.clients = EgressClients(
            pods=self.pods,
            egresses=EgressDirectory(
                self._egresses,
                self._services,
                self._endpoints,
                reader,
                namespaces=deps.namespaces,
                cluster=lambda: view.networks,
            ),
            tunnels=PodTunnels(deps.network, tunnels.sync, deps.client_filter or NoTunnelFilter()),
            executor=deps.executor,
            options=client_options(settings),
            report=EgressReport(deps.recorder, EgressMetrics(process.registry)),
            changed=self._announce,
            log=log,
        )
        self._slices = Informer(
            kube.collection(EGRESS_CLIENT_SLICES, labels=f"{LABEL_NODE}={settings.node_name}"), log=log, metrics=metrics
        )
        self._client_slices = ClientSlices(
            kube,
            self._slices,
            self.clients.addresses,
            node=settings.node_name,
            egresses=self._egresses,
            recorder=deps.recorder,
            log=log,
        )
        self._slice_controller = Controller(
            SLICES_NAME,
            self._client_slices.reconcile,
            queue=WorkQueue(SLICES_NAME, metrics=deps.reconcile_metrics, backoff=BACKOFF),
            metrics=deps.reconcile_metrics,
            log=log,
            workers=WORKERS,
        )
        self._events = EgressFollow(self.clients)
        self._queue = WorkQueue(NAME, metrics=deps.reconcile_metrics, backoff=BACKOFF)
        self._controller = Controller(
            NAME,
            self._events.reconcile,
            queue=self._queue,
            metrics=deps.reconcile_metrics,
            log=log,
            workers=WORKERS,
        )

    def start(self) -> None:
        """See `start_egress`."""
        for name, informer in self._informers.items():
            self._process.spawn(name, informer.run())
        # That one runs already.
        self._informers["namespaces"] = self._namespaces
        self._process.spawn(EGRESS_CLIENT_SLICES.plural, self._slices.run())
        self._process.add_readiness("egress", self._missing)

    async def wait_listed(self) -> None:
        """Return when everything has been listed, or has taken long enough."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await wait_synced(self._informers.values(), log=self._log)
        except TimeoutError:
            self._log.warning(
                "starting before all Egresses are listed; ADDs read what they need", missing=self._missing()
            )

    async def adopt(self, attachments: Collection[Attachment]) -> None:
        """Take over the attachments that an earlier process has made. Raises NftError and BusyError."""
        if self._filter is not None:
            await self._filter.adopt(attachments)
        self.clients.adopt(attachments)

    def follow(self) -> None:
        """Follow everything that changes, until the process stops."""
        self._process.spawn(NAME, self._run())
        self._process.spawn(SLICES_NAME, self._run_slices())
        if self._filter is not None:
            self._process.spawn("egress-clients-table", self._filter.follow())
            self._process.spawn("egress-clients-left", self._filter.clean_up())
            self._process.spawn("unsolicited-packets", self._filter.count())

    async def _run(self) -> None:
        await wait_synced(self._informers.values(), log=self._log)
        for key in await self.clients.adopted():
            self._queue.add(render_key(key))
        self._controller.watch(self._pods, self._events.of_pod)
        self._controller.watch(self._egresses, self._events.of_egress)
        self._controller.watch(self._services, self._events.of_service)
        if self._filter is not None:
            self._controller.watch(self._endpoints, self._events.of_endpoints)
        self._controller.watch(self._namespaces, self._events.of_namespace)
        if self._cluster_networks is not None:
            self._controller.watch(self._cluster_networks, self._events.of_networks)
        await self._controller.run()

    async def _run_slices(self) -> None:
        # Not among those that the start and readiness wait for: without it, clients are served, if later.
        await wait_synced([self._slices], log=self._log)
        self._slice_controller.watch(self._slices, self._client_slices.of_slice)
        await self._slice_controller.run()

    def _announce(self, egress: EgressRef) -> None:
        self._slice_controller.enqueue(str(egress))

    def _missing(self) -> str | None:
        missing = [name for name, informer in self._informers.items() if not informer.synced]
        return f"not listed yet: {', '.join(missing)}" if missing else None


@dataclass(frozen=True, slots=True)
class WithoutEgress:
    """`--enable-egress=false`: an `EgressNat` for which there is nothing to do."""

    clients: PodEgress = field(default_factory=NoEgress)

    async def wait_listed(self) -> None:
        pass

    async def adopt(self, attachments: Collection[Attachment]) -> None:
        pass

    def follow(self) -> None:
        pass


NodeEgress: TypeAlias = EgressNat | WithoutEgress
"""What coild's start does with egress. `clients` serves ADDs once it has adopted what is there."""


def client_options(settings: Settings) -> ClientOptions:
    """What the settings say of all clients."""
    return ClientOptions(
        policy=TunnelPolicy(port=settings.egress_port, protocol=settings.route_protocol),
        replies=Replies.WHERE_THEY_CAME_FROM if settings.enable_originating_only else Replies.BY_ROUTE,
        fail_open=settings.egress_fail_open,
    )
