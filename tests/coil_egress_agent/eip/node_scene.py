"""A node's agent in virtual time: all of its parts, between a cluster, a Lease and a kernel in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import ConfigMap, Node
from coil.crd.egress_gateway import (
    EgressGateway,
    EgressGatewaySpec,
    EgressGatewayStatus,
    EipEntry,
    GatewayNode,
    NodeSelector,
    PolicyRef,
)
from coil.crd.egress_gateway_policy import AppliedTo, EgressGatewayPolicy, EgressGatewayPolicySpec
from coil.crd.egress_tunnel import EgressTunnel, EgressTunnelStatus, TunnelEnd, TunnelParent
from coil.crd.eip_limit import NamespaceLimits
from coil.crd.meta import LabelSelector, ObjectMeta
from coil.crd.names import LABEL_POLICY, NodeName
from coil.crd.resource import HasMetadata, object_key
from coil.eip.data_plane import DataPlaneIndex
from coil.kube.errors import ApiError
from coil.manager.term import Term
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.store import Store
from coil_egress_agent.eip.announcer import Announcer
from coil_egress_agent.eip.applier import Applier, Deps
from coil_egress_agent.eip.change_tracker import (
    BY_POLICY,
    Caches,
    ChangeTracker,
    Endpoint,
    EndpointSlice,
    index_by_policy,
)
from coil_egress_agent.eip.connection_prober import ConnectionProber
from coil_egress_agent.eip.data_plane_builder import DataPlaneBuilder
from coil_egress_agent.eip.former_gateway import FormerGateway
from coil_egress_agent.eip.kernel_lease import KernelLease
from coil_egress_agent.eip.lease_renewer import FenceTiming, LeaseRenewer
from coil_egress_agent.eip.mesh import MeshOptions, MeshSync
from coil_egress_agent.eip.metric import LeaseMetrics, NodeMetrics, ProbeMetrics
from coil_egress_agent.eip.node_pods import NodePod, NodePods
from coil_egress_agent.eip.pod_hold import PodHold
from coil_egress_agent.eip.tunnel_report import TunnelReporter
from tests.coil_egress_agent.eip.memory_lease import MemoryLease
from tests.coil_egress_agent.eip.memory_node import Journal, MemoryFlows, MemoryFormerState, MemoryOverlay, MemoryTables

T = TypeVar("T", bound=HasMetadata)

NODE = NodeName("n1")
LABELS = {"egress": "true"}


class World(Generic[T]):
    """One kind's cache; implements `coil.reconcile.cache.Cache`."""

    synced = True
    last_error: ApiError | None = None

    def __init__(self, indexers: dict[str, Callable[[T], Iterable[str]]] | None = None) -> None:
        self._store: Store[T] = Store(indexers or {})
        self._listeners: list[Callable[[T | None, T | None], None]] = []
        self._version = 0

    def get(self, key: str) -> T | None:
        return self._store.get(key)

    def items(self) -> list[T]:
        return self._store.items()

    def by_index(self, index: str, value: str) -> list[T]:
        return self._store.by_index(index, value)

    async def wait_synced(self, timeout: float) -> None:
        pass

    def subscribe(self, listener: Callable[[T | None, T | None], None]) -> None:
        self._listeners.append(listener)
        for item in self.items():
            listener(None, item)

    def unsubscribe(self, listener: Callable[[T | None, T | None], None]) -> None:
        self._listeners.remove(listener)

    def put(self, item: T) -> T:
        self._version += 1
        metadata = msgspec.structs.replace(
            item.metadata, resource_version=str(self._version), uid=item.metadata.uid or f"uid-{item.metadata.name}"
        )
        new: T = msgspec.structs.replace(item, metadata=metadata)  # type: ignore[type-var]
        old = self._store.put(object_key(metadata), new)
        for listener in self._listeners:
            listener(old, new)
        return new

    def remove(self, key: str) -> None:
        old = self._store.remove(key)
        for listener in self._listeners:
            listener(old, None)


class Cluster:
    """All caches of the agent, and what the agent writes."""

    def __init__(self) -> None:
        self.gateways: World[EgressGateway] = World()
        self.policies: World[EgressGatewayPolicy] = World()
        self.slices: World[EndpointSlice] = World({BY_POLICY: index_by_policy})
        self.tunnels: World[EgressTunnel] = World()
        self.pools: World[AddressPool] = World()
        self.cluster_networks: World[ConfigMap] = World()
        self.nodes: World[Node] = World()
        self.pods: World[NodePod] = World()
        self.refusals: list[Exception] = []
        self.nodes.put(Node(metadata=ObjectMeta(name=NODE, labels=dict(LABELS))))
        for number in (1, 2, 3):
            self.tunnels.put(tunnel(number))

    async def patch_status(self, name: str, patch: Any) -> EgressTunnel:
        """Of a tunnel, by its own agent. Raises what is in `refusals`, one for each call."""
        await asyncio.sleep(0.001)
        if self.refusals:
            raise self.refusals.pop(0)
        known = self.tunnels.get(name)
        assert known is not None
        document = msgspec.to_builtins(known.status)
        merged = _merge(document, patch["status"])
        return self.tunnels.put(
            msgspec.structs.replace(known, status=msgspec.convert(merged, EgressTunnelStatus, strict=False))
        )


def _merge(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    merged = dict(document)
    for key, value in patch.items():
        merged[key] = _merge(merged.get(key, {}), value) if isinstance(value, dict) else value
    return merged


def tunnel(number: int, *, phase: str = "Init") -> EgressTunnel:
    parent = TunnelParent() if number == 1 else TunnelParent(name="eth0", ipv4=f"10.6.0.{number}/16")
    end = TunnelEnd(ipv4=f"172.31.0.{number}", ipv6=f"fd11::{number}", mac=f"66:00:00:00:00:0{number}", parent=parent)
    status = EgressTunnelStatus(
        tunnel=end,
        phase=phase,
        mark=f"{0x26000000 + (number << 8):#010x}",
        node_addresses=(f"10.6.0.{number}",),
        pod_cidrs=(f"10.244.{number}.0/24",),
    )
    return EgressTunnel(metadata=ObjectMeta(name=f"n{number}"), status=status)


def ref(name: str = "p1") -> PolicyRef:
    return PolicyRef(namespace="t1", name=name)


def eip(ipv4: str = "10.6.1.1", *policies: str, leaving: int = 0) -> EipEntry:
    return EipEntry(ipv4=ipv4, policies=tuple(ref(name) for name in policies or ("p1",)), leaving=leaving)


def listed(node: str, *eips: EipEntry, term: int = 1) -> GatewayNode:
    return GatewayNode(name=node, status="Ready", term=term, eips=eips)


def gateway(*nodes: GatewayNode, revision: int = 1, fail_policy: str = "Closed", name: str = "eg1") -> EgressGateway:
    selector = NodeSelector(selector=LabelSelector(match_labels=dict(LABELS)))
    return EgressGateway(
        metadata=ObjectMeta(name=name),
        spec=EgressGatewaySpec(node_selector=selector, fail_policy=fail_policy),
        status=EgressGatewayStatus(revision=revision, node_list=nodes),
    )


def policy(name: str = "p1", *, destinations: tuple[str, ...] = ("8.8.8.0/24",), **spec: Any) -> EgressGatewayPolicy:
    spec.setdefault("applied_to", AppliedTo(pod_selector=LabelSelector()))
    return EgressGatewayPolicy(
        metadata=ObjectMeta(name=name, namespace="t1"),
        spec=EgressGatewayPolicySpec(egress_gateway_name="eg1", dest_subnet=destinations, **spec),
    )


def endpoints(*pods: tuple[str, str], name: str = "p1", number: int = 0) -> EndpointSlice:
    """`pods` are addresses and nodes."""
    return EndpointSlice(
        metadata=ObjectMeta(name=f"{name}-{number}", namespace="t1", labels={LABEL_POLICY: name}),
        endpoints=tuple(Endpoint(ipv4_list=(address,), node_name=node) for address, node in pods),
    )


async def _inline(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    await asyncio.sleep(0.002)
    return function(*args, **named)


class Agent:
    """One life of the process."""

    def __init__(self, cluster: Cluster, lease: MemoryLease, journal: Journal) -> None:
        loop = asyncio.get_running_loop()
        self.logged = structlog.testing.LogCapture()
        log = structlog.wrap_logger(None, processors=[self.logged])
        self.registry = CollectorRegistry()
        self._cluster = cluster
        self._term = partial(
            Term, metrics=ReconcileMetrics(self.registry), log=log, clock=loop.time, random=lambda: 0.5
        )
        self.overlay = MemoryOverlay(journal)
        self.tables = MemoryTables(journal)
        self.flows = MemoryFlows(journal)
        caches = Caches(
            gateways=cluster.gateways,
            policies=cluster.policies,
            slices=cluster.slices,
            tunnels=cluster.tunnels,
            pools=cluster.pools,
            cluster_networks=cluster.cluster_networks,
            nodes=cluster.nodes,
        )
        self.node_pods = NodePods()
        self.tracker = ChangeTracker(caches, self.node_pods, node=NODE)
        self.renewer = LeaseRenewer(
            lease,
            node=NODE,
            timing=FenceTiming(),
            metrics=LeaseMetrics(self.registry),
            log=log,
            clock=loop.time,
            wall=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            random=lambda: 0.5,
        )
        metrics = NodeMetrics(self.registry)
        self.kernel_lease = KernelLease(self.tables, self.renewer, metrics=metrics, log=log)
        self.pod_hold = PodHold(
            self.node_pods, self.tables, caches=(cluster.policies, cluster.pods), metrics=metrics, log=log
        )
        self.announcer = Announcer(
            self.overlay, may_hold=lambda: self.renewer.term is not None, metrics=metrics, log=log, clock=loop.time
        )
        self.prober = ConnectionProber(self.flows, metrics=ProbeMetrics(self.registry), log=log, clock=loop.time)
        self.reporter = TunnelReporter(cluster.patch_status, self.tracker.own_tunnel, node=NODE, log=log)
        self.former_state = MemoryFormerState(journal)
        self.former_agents: list[str] = []
        self.former = FormerGateway(self.former_state, self._list_former_agents, log=log, random=lambda: 0.5)
        self.mesh = MeshSync(
            self.overlay,
            self.reporter,
            options=MeshOptions(vni=100, port=7789),
            log=log,
            hold=lambda: self.former.hold,
        )
        self.applier = Applier(
            Deps(
                overlay=self.overlay,
                tables=self.tables,
                mesh=self.mesh,
                renewer=self.renewer,
                kernel_lease=self.kernel_lease,
                announcer=self.announcer,
                prober=self.prober,
                tracker=self.tracker,
                builder=DataPlaneBuilder(
                    DataPlaneIndex(clock=loop.time), node=NODE, extra=(), limits=NamespaceLimits()
                ),
                pod_hold=self.pod_hold,
                note=self.reporter.tell_condition,
            ),
            node=NODE,
            metrics=metrics,
            log=log,
            random=lambda: 0.5,
            compute=_inline,
            on_loaded=self.former.note_loaded,
        )
        cluster.policies.subscribe(self.node_pods.note_policy)
        cluster.pods.subscribe(self.node_pods.note_pod)
        self.tracker.follow()
        self.renewer.on_term(self.applier.note_term)
        self.renewer.on_renewal(self.kernel_lease.renewed)

    async def _list_former_agents(self) -> list[str]:
        return self.former_agents

    async def run(self) -> None:
        await self.former.wait_until_free()
        with ExitStack() as stack:
            term = self._term(stack)
            self.reporter.setup(term, self._cluster.tunnels)
            async with asyncio.TaskGroup() as group:
                parts = (
                    self.kernel_lease,
                    self.announcer,
                    self.prober,
                    self.pod_hold,
                    self.renewer,
                    self.applier,
                    term,
                )
                for part in parts:
                    group.create_task(part.run())
                group.create_task(self.former.run(self.applier.look_around))


class Scene:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.lease = MemoryLease()
        self.journal = Journal()
        self.agent = Agent(self.cluster, self.lease, self.journal)

    @property
    def eips(self) -> list[str]:
        return sorted(map(str, self.agent.overlay.eips))


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[Scene]:
    """The agent works for the time of the block; a fault of it is raised at its end."""
    task = asyncio.create_task(scene.agent.run())
    try:
        yield scene
    finally:
        if not task.done():
            task.cancel()
        await asyncio.wait({task})
    assert task.cancelled(), task.exception()


async def until(holds: Callable[[], object], *, seconds: float = 30.0, step: float = 0.001) -> None:
    """Return when it holds; looked at every virtual `step`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not holds():
        assert loop.time() < deadline, "not in time"
        await asyncio.sleep(step)
