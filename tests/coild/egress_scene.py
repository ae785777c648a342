"""Egress NAT of one node in memory: caches that tests fill, an API server behind them, and what namespaces have.

`EgressNode` wires what `coild.egress.nat` wires.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from prometheus_client import CollectorRegistry

from coil.crd import builtin
from coil.crd.builtin import ConfigMap, Pod, PodIP, PodSpec, PodStatus, Service, ServiceSpec
from coil.crd.egress import ClientEgress, ClientEgressMeta, ClientEgressSpec
from coil.crd.endpoint_slice import SERVICE_LABEL, Endpoint, EndpointSlice
from coil.crd.meta import LabelSelector, ObjectMeta
from coil.crd.names import ANNOTATION_EGRESS_PREFIX, NodeName
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.egress.client_filter import UNSOLICITED, parse_client_elements
from coil.egress.client_plan import GatewayProblem
from coil.egress.client_pod import EgressRef
from coil.egress.gateway import ClientSpec
from coil.egress.resolution import ClientOptions, resolve_client
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.link import LinkName, Sysctl
from coil.kube.errors import ApiError
from coil.nat.client import ClientChanges
from coil.netlink.host import NetnsPath
from coil.netlink.namespace import Namespace
from coil.podnet.host_link import PodAlias
from coil.reconcile.backoff import Backoff
from coil.reconcile.controller import Controller
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coil.reconcile.store import Indexer, Store
from coild.egress.client import EgressClients
from coild.egress.client_filter import ClientFilter
from coild.egress.directory import ENDPOINT_INDEXERS, INDEXERS, SERVICE_LABELS, EgressDirectory, NodePods
from coild.egress.nat import ClusterNetworksView, EgressFollow, render_key
from coild.egress.pod_tunnel import PodTunnels
from coild.egress.report import EgressMetrics, EgressReport
from coild.model.api_reader import APIReader
from coild.model.attachment import Attachment, PodName
from coild.model.keyed_executor import KeyedExecutor
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coild.memory_network import Kernel, MemoryNamespace, MemoryNetwork
from tests.coild.memory_table import MemoryTable
from tests.coild.scene import LOG, ListRecorder, end, now

T = TypeVar("T", bound=HasMetadata)

NODE = NodeName("node-1")
BACKOFF = Backoff(base=1.0, cap=8.0, jitter=0.0)
OPTIONS = ClientOptions()
FAIL_OPEN = ClientOptions(fail_open=True)


def pod(name: str, *, names: dict[str, str] | None = None, ips: tuple[str, ...] = (), **more: Any) -> Pod:
    """`names`: by namespace, the Egresses that the annotation of that namespace names.

    `more`: uid, annotations, labels, phase, host_network.
    """
    annotations = {ANNOTATION_EGRESS_PREFIX + namespace: value for namespace, value in (names or {}).items()}
    annotations |= more.get("annotations", {})
    return Pod(
        metadata=ObjectMeta(
            namespace="apps",
            name=name,
            uid=more.get("uid", f"uid-of-{name}"),
            annotations=annotations,
            labels=more.get("labels", {}),
        ),
        spec=PodSpec(node_name=NODE, host_network=more.get("host_network", False)),
        status=PodStatus(phase=more.get("phase", "Running"), pod_ips=tuple(PodIP(ip=ip) for ip in ips)),
    )


def egress(
    name: str, *destinations: str, auto: bool = False, replicas: int = 1, allowed: LabelSelector | None = None
) -> ClientEgress:
    return ClientEgress(
        metadata=ClientEgressMeta(namespace="net", name=name, uid=f"uid-of-{name}"),
        spec=ClientEgressSpec(
            destinations=destinations, fou_source_port_auto=auto, replicas=replicas, allowed_namespaces=allowed
        ),
    )


def apps(**labels: str) -> builtin.Namespace:
    """The pods' namespace."""
    return builtin.Namespace(metadata=ObjectMeta(name="apps", uid="uid-of-apps", labels=labels))


def service(name: str, *addresses: str, labels: dict[str, str] = SERVICE_LABELS) -> Service:
    return Service(
        metadata=ObjectMeta(namespace="net", name=name, uid=f"uid-of-{name}", labels=labels),
        spec=ServiceSpec(cluster_ip=addresses[0], cluster_ips=addresses),
    )


def endpoints(name: str, *routers: str) -> EndpointSlice:
    """The router pods of an Egress, in a slice of its Service."""
    return EndpointSlice(
        metadata=ObjectMeta(
            namespace="net", name=f"{name}-1", uid=f"uid-of-{name}-1", labels={**SERVICE_LABELS, SERVICE_LABEL: name}
        ),
        address_type="IPv4",
        endpoints=tuple(Endpoint(addresses=(router,)) for router in routers),
    )


class MemoryCache(Generic[T]):
    """A `Cache` that a test fills, synced from the start."""

    synced = True
    last_error: ApiError | None = None

    def __init__(self, indexers: dict[str, Indexer[T]], earlier: "MemoryCache[T] | None") -> None:
        self._store: Store[T] = Store(indexers)
        self._listeners: list[Callable[[T | None, T | None], None]] = []
        for item in earlier.items() if earlier is not None else ():
            self._store.put(object_key(item.metadata), item)

    def get(self, key: str) -> T | None:
        return self._store.get(key)

    def items(self) -> list[T]:
        return self._store.items()

    def by_index(self, index: str, value: str) -> list[T]:
        return self._store.by_index(index, value)

    def subscribe(self, listener: Callable[[T | None, T | None], None], /) -> None:
        for item in self._store.items():
            listener(None, item)
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[T | None, T | None], None], /) -> None:
        self._listeners.remove(listener)

    async def wait_synced(self, timeout: float) -> None:
        pass

    def put(self, item: T) -> None:
        key = object_key(item.metadata)
        old = self._store.get(key)
        if old is not None and old.metadata.uid != item.metadata.uid:
            self.remove(key)
            old = None
        self._store.put(key, item)
        for listener in self._listeners:
            listener(old, item)

    def remove(self, key: str) -> None:
        if (old := self._store.remove(key)) is not None:
            for listener in self._listeners:
                listener(old, None)


class MemoryServer(MemoryClient):
    """The API server that is asked for single objects. `fault` may fail or delay each call."""

    def __init__(self) -> None:
        super().__init__(MemoryApi(), self._before)
        self.asked: list[tuple[str, str]] = []
        self.fault: Callable[[], Any] | None = None

    def put(self, resource: Resource[Any], item: HasMetadata) -> None:
        self.api.put(resource, item)

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        self.asked.append((resource.plural, f"{namespace}/{name}"))
        return await super().get(resource, name, namespace=namespace)

    async def _before(self, _call: Call, moment: Moment) -> None:
        if moment is Moment.BEFORE and self.fault is not None:
            await self.fault()


@dataclass
class MemoryPods(MemoryNetwork):
    """The pods' side of the kernel, by path of the namespace; `sync` is that of `coil.nat.client.ClientNetwork`."""

    veths: dict[PodAlias, Path] = field(default_factory=dict)
    specs: dict[Path, ClientSpec] = field(default_factory=dict)
    sysctls: dict[Path, set[Sysctl]] = field(default_factory=dict)
    syncs: list[Path] = field(default_factory=list)
    opened: list[PodAlias] = field(default_factory=list)
    probes: int = 0
    probe_fault: Exception | None = None
    fault: Callable[[Path], Exception | None] = lambda path: None
    delay: float = 0.0
    problems: tuple[GatewayProblem, ...] = ()
    busy: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__(Kernel())

    @property
    def modules(self) -> set[str]:
        return self.kernel.modules

    async def sync(self, spec: ClientSpec, netns: NetnsPath | Namespace) -> ClientChanges:
        path = self._path(netns)
        with self._alone(path):
            if self.delay:
                await asyncio.sleep(self.delay)
            self.syncs.append(path)
            if (error := self.fault(path)) is not None:
                raise error
            if spec.is_empty:
                self.specs.pop(path, None)
            else:
                self.specs[path] = spec
        return ClientChanges(problems=() if spec.is_empty else self.problems)

    async def pods_with_link(self, names: Collection[LinkName]) -> frozenset[PodAlias]:
        self.probes += 1
        if self.probe_fault is not None:
            raise self.probe_fault
        return frozenset(alias for alias, path in self.veths.items() if path in self.specs)

    async def open_pod_namespace(self, alias: PodAlias) -> Namespace | None:
        self.opened.append(alias)
        path = self.veths.get(alias)
        return cast(Namespace, MemoryNamespace(path)) if path is not None else None

    async def ensure_pod_sysctls(self, sysctls: Collection[Sysctl], netns: NetnsPath | Namespace) -> None:
        path = self._path(netns)
        if (error := self.fault(path)) is not None:
            raise error
        self.sysctls.setdefault(path, set()).update(sysctls)

    @contextmanager
    def _alone(self, path: Path) -> Iterator[None]:
        assert path not in self.busy, "two at work in one namespace"
        self.busy.add(path)
        try:
            yield
        finally:
            self.busy.discard(path)

    def _path(self, netns: NetnsPath | Namespace) -> Path:
        return netns if isinstance(netns, Path) else netns.path


class EgressNode:
    """One life of coild's egress; with an `earlier` one the next, whose informers list what that one's held."""

    def __init__(self, earlier: "EgressNode | None" = None, *, options: ClientOptions = OPTIONS) -> None:
        self.kernel: MemoryPods = earlier.kernel if earlier else MemoryPods()
        self.server: MemoryServer = earlier.server if earlier else MemoryServer()
        self.pods: MemoryCache[Pod] = MemoryCache(dict(INDEXERS), earlier.pods if earlier else None)
        self.egresses: MemoryCache[ClientEgress] = MemoryCache({}, earlier.egresses if earlier else None)
        self.services: MemoryCache[Service] = MemoryCache({}, earlier.services if earlier else None)
        self.endpoints: MemoryCache[EndpointSlice] = MemoryCache(
            dict(ENDPOINT_INDEXERS), earlier.endpoints if earlier else None
        )
        self.namespaces: MemoryCache[builtin.Namespace] = MemoryCache({}, earlier.namespaces if earlier else None)
        self.config_maps: MemoryCache[ConfigMap] = MemoryCache({}, earlier.config_maps if earlier else None)
        self.cluster = ClusterNetworksView()
        self.config_maps.subscribe(self.cluster.observe)
        self.recorder = ListRecorder()
        self.registry = CollectorRegistry()
        self.executor = KeyedExecutor(LOG)
        self.changed: list[EgressRef] = []
        """Egresses whose clients may have changed."""
        self.table: MemoryTable = earlier.table if earlier else MemoryTable(UNSOLICITED)
        self.filter = ClientFilter(self.table, registry=self.registry, random=lambda: 0.0, log=LOG, clock=now)
        ask = APIReader(self.server, LOG)
        self.node_pods = NodePods(self.pods, ask, node=NODE)
        self.clients = EgressClients(
            pods=self.node_pods,
            egresses=EgressDirectory(
                self.egresses,
                self.services,
                self.endpoints,
                ask,
                namespaces=self.namespaces,
                cluster=lambda: self.cluster.networks,
                clock=now,
            ),
            tunnels=PodTunnels(self.kernel, self.kernel.sync, self.filter),
            executor=self.executor,
            options=options,
            report=EgressReport(self.recorder, EgressMetrics(self.registry)),
            changed=self.changed.append,
            log=LOG,
        )
        metrics = ReconcileMetrics(CollectorRegistry())
        self.queue = WorkQueue("clients", metrics=metrics, backoff=BACKOFF, clock=now, random=lambda: 0.0)
        self._events = EgressFollow(self.clients)
        self._controller = Controller(
            "clients", self._events.reconcile, queue=self.queue, metrics=metrics, log=LOG, workers=2
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def adopt(self, *attachments: Attachment) -> None:
        await self.filter.adopt(attachments)
        self.clients.adopt(attachments)

    async def follow(self) -> None:
        for key in await self.clients.adopted():
            self.queue.add(render_key(key))
        self._controller.watch(self.pods, self._events.of_pod)
        self._controller.watch(self.egresses, self._events.of_egress)
        self._controller.watch(self.services, self._events.of_service)
        self._controller.watch(self.endpoints, self._events.of_endpoints)
        self._controller.watch(self.namespaces, self._events.of_namespace)
        self._controller.watch(self.config_maps, self._events.of_networks)
        works = (self._controller.run(), self.filter.clean_up(), self.filter.follow(), self.filter.count())
        self._tasks += map(asyncio.ensure_future, works)

    async def close(self) -> None:
        await end(self._tasks)

    # --- pods and their sandboxes

    def attachment(
        self, container: str, name: str = "", *, uid: str | None = None, ips: tuple[str, ...] = ("10.1.0.7",)
    ) -> Attachment:
        """The attachment of a container that exists in the kernel; its pod has the same name unless told otherwise."""
        name = name or container
        key = AttachmentKey(ContainerId(container), "eth0")
        alias = PodAlias("default", container, "eth0")
        path = self.kernel.veths.setdefault(alias, Path("/run/netns") / container)
        return Attachment(
            key=key,
            pod=PodName("apps", name, f"uid-of-{name}" if uid is None else uid),
            addresses=tuple(map(ip_address, ips)),
            alias=alias,
            netns=NetnsPath(path),
        )

    async def add(self, attachment: Attachment, *, deadline: float = math.inf) -> None:
        await self.executor.run(attachment.key, lambda: self.clients.connect(attachment, deadline=deadline))

    async def delete(self, attachment: Attachment) -> None:
        async def work() -> None:
            self.clients.forget(attachment.key)
            assert attachment.alias is not None
            path = self.kernel.veths.pop(attachment.alias, None)
            if path is not None:
                self.kernel.specs.pop(path, None)

        await self.executor.run(attachment.key, work)

    def world(self, *destinations: str) -> None:
        """An Egress "world" with its Service, known to the caches."""
        self.egresses.put(egress("world", *(destinations or ("0.0.0.0/0",))))
        self.services.put(service("world", "10.96.0.9"))

    def routes(self, container: str) -> dict[str, list[str]]:
        """The tunnels of the container: destinations by address of the gateway."""
        spec = self.kernel.specs.get(Path("/run/netns") / container)
        gateways = spec.gateways if spec is not None else ()
        return {str(gateway.addresses[0]): list(map(str, gateway.destinations)) for gateway in gateways}

    def peers(self, client: str) -> list[str] | None:
        """Who may send encapsulated packets to the address; None for anybody."""
        found = parse_client_elements(self.table.sets or {}).get(ip_address(client))
        return None if found is None else sorted(map(str, found))

    def blocked(self, container: str) -> list[str]:
        """What is unreachable from the container."""
        spec = self.kernel.specs.get(Path("/run/netns") / container)
        return list(map(str, spec.blocked)) if spec is not None else []

    def events(self) -> list[tuple[str, str]]:
        """Names of the pods and reasons of all Events up to now."""
        return [(name, reason) for _, name, reason, _ in self.recorder.told]

    def take_syncs(self) -> list[str]:
        """The containers whose namespaces were worked on since the last look, in order."""
        names = [path.name for path in self.kernel.syncs]
        self.kernel.syncs.clear()
        return names

    def wanted(self, attachment: Attachment) -> ClientSpec | None:
        """What follows from the caches, by the pure resolution."""
        assert attachment.pod is not None
        found = self.pods.get(f"apps/{attachment.pod.name}")
        if found is None or found.metadata.uid != attachment.pod.uid:
            return None
        view = self.clients._egresses.view
        return resolve_client(found.metadata.annotations, attachment.addresses, view, OPTIONS).spec

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)
