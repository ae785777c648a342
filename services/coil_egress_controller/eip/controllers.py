"""Floating egress addresses: the feature's caches, followed by every replica, and the controllers of a leader's term.

Its kinds may not be served yet, when the program was upgraded before its CRDs. So all caches are optional: the rest of
the process does not wait for them, and each controller starts when the kinds that it reads are listed.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import ConfigMap, Namespace, Node
from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway
from coil.crd.egress_gateway_policy import (
    EGRESS_ENDPOINT_SLICES,
    EGRESS_GATEWAY_POLICIES,
    EgressEndpointSlice,
    EgressGatewayPolicy,
)
from coil.crd.egress_policy import (
    EGRESS_CLUSTER_POLICIES,
    EGRESS_POLICIES,
    EgressClusterPolicy,
    EgressPolicy,
    cluster_policy_of,
)
from coil.crd.egress_tunnel import EGRESS_TUNNELS, EgressTunnel
from coil.crd.meta import Condition
from coil.eip.gateway_lease import LEASE_LABELS
from coil.eip.policy_mirror import stands_for
from coil.eip.tunnel_plan import TunnelNets
from coil.kernel.family import IPNetwork
from coil.kube.api_client import ApiClient
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.kube.lease_lock import LEASES, Lease
from coil.manager.manager import Manager
from coil.manager.term import Channel, Term
from coil.reconcile.cache import Cache, describe_unsynced
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.own_write import OwnWriter, OwnWrites
from coil_egress_controller.eip.endpoint_index import EIP_PODS, POD_INDEXERS, EipPod, EndpointIndex, is_endpoint
from coil_egress_controller.eip.gateway_index import POLICY_INDEXERS, ChoiceIndex, NodeAddressIndex, SelectionIndex
from coil_egress_controller.eip.gateway_reconciler import GatewayDecision, GatewayReconciler
from coil_egress_controller.eip.lease_monitor import LeaseMonitor
from coil_egress_controller.eip.metric import EipMetrics
from coil_egress_controller.eip.node_fact import NodeFactSource
from coil_egress_controller.eip.pod_network_reconciler import PodNetworkReconciler
from coil_egress_controller.eip.policy_mirror_reconciler import PolicyMirrorReconciler
from coil_egress_controller.eip.policy_status_reconciler import PolicyStatusReconciler
from coil_egress_controller.eip.slice_reconciler import SLICE_INDEXERS, SliceReconciler
from coil_egress_controller.eip.standby import PATIENCE, StandbyDelay
from coil_egress_controller.eip.takeover_delay import TakeoverDelay
from coil_egress_controller.eip.tunnel_phase_reconciler import TunnelPhaseReconciler
from coil_egress_controller.eip.tunnel_reconciler import TunnelReconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class EipCaches:
    """Pods only if they are endpoints, Leases only those of gateway nodes.

    A cache may lag behind. Every write is guarded by the version that it was decided on; whether a node is gone, or a
    lease has lapsed, is asked of the API server before it has consequences.
    """

    nodes: Cache[Node]
    namespaces: Cache[Namespace]
    pods: Cache[EipPod]
    leases: Cache[Lease]
    tunnels: Cache[EgressTunnel]
    gateways: Cache[EgressGateway]
    policies: Cache[EgressGatewayPolicy]
    slices: Cache[EgressEndpointSlice]

    @classmethod
    def start(
        cls,
        manager: Manager,
        client: KubeClient,
        *,
        nodes: Cache[Node],
        namespaces: Cache[Namespace],
        lease_namespace: str,
    ) -> "EipCaches":
        """Follow everything else from now on."""
        labels = ",".join(f"{key}={value}" for key, value in LEASE_LABELS.items())
        # There are many objects of the built-in kinds, and no decision relies on a cache for the absence of one.
        cached = Freshness.CACHED
        pods = client.collection(EIP_PODS, freshness=cached, keep=is_endpoint)
        leases = client.collection(LEASES, namespace=lease_namespace, labels=labels)
        policies, slices = client.collection(EGRESS_GATEWAY_POLICIES), client.collection(EGRESS_ENDPOINT_SLICES)
        return cls(
            nodes=nodes,
            namespaces=namespaces,
            pods=manager.cache(pods, indexers=POD_INDEXERS, optional=True),
            leases=manager.cache(leases, optional=True),
            tunnels=manager.cache(client.collection(EGRESS_TUNNELS), optional=True),
            gateways=manager.cache(client.collection(EGRESS_GATEWAYS), optional=True),
            policies=manager.cache(policies, indexers=POLICY_INDEXERS, optional=True),
            slices=manager.cache(slices, indexers=SLICE_INDEXERS, optional=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCaches:
    """The kinds that EgressGatewayPolicies may stand for."""

    policies: Cache[EgressPolicy]
    cluster_policies: Cache[EgressClusterPolicy]

    @classmethod
    def start(cls, manager: Manager, client: KubeClient) -> "SourceCaches":
        """Follow both from now on."""
        return cls(
            policies=manager.cache(client.collection(EGRESS_POLICIES), optional=True),
            cluster_policies=manager.cache(client.collection(EGRESS_CLUSTER_POLICIES), optional=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EipControllers:
    """`setup` declares the controllers of a leader's term, `stand_by` those of a replica that does not lead.

    `cluster_networks` is the cache of the ConfigMap that agents read, if they do; `extra_networks` are what they are
    told beside it. Without `sources`, nobody uses those kinds.

    `lease_namespace` has the Leases of gateway nodes; `slice_endpoints` is the maximum of an EgressEndpointSlice,
    `policies_per_gateway` of an EgressGateway; `resync` is in seconds. `now` is the wall clock in UTC, `clock` gives
    monotonic seconds, `random` [0, 1).
    """

    caches: EipCaches
    sources: SourceCaches | None
    cluster_networks: Cache[ConfigMap] | None
    extra_networks: Collection[IPNetwork]
    client: ApiClient
    recorder: Recorder
    metrics: EipMetrics
    lease_namespace: str
    tunnel_nets: TunnelNets
    slice_endpoints: int
    policies_per_gateway: int
    resync: float
    now: Callable[[], datetime]
    clock: Callable[[], float]
    random: Callable[[], float]
    log: FilteringBoundLogger

    def setup(self, term: Term) -> None:
        """The leader's. Everything that is remembered is made here: nothing of it may outlive the term.

        A lease that was watched in an earlier term would seem to be silent since then, and be revoked under a node
        that renews it.
        """
        caches, client, log = self.caches, self.client, self.log
        unassigned: Channel[str] = Channel()
        decided: Channel[GatewayDecision] = Channel()
        gateways = self._gateways(term, decided=decided, unassigned=unassigned)
        choices, selections, leases = gateways.choices, gateways.selections, gateways.leases
        slices_written: OwnWrites[EgressEndpointSlice] = OwnWrites()
        tunnels_written: OwnWrites[EgressTunnel] = OwnWrites()
        other_conditions: Channel[str] = Channel()
        pod_networks = None
        if (cluster_networks := self.cluster_networks) is not None:
            pod_networks = PodNetworkReconciler(
                policies=caches.policies,
                slices=caches.slices,
                nodes=caches.nodes,
                cluster_networks=cluster_networks,
                extra=self.extra_networks,
                changed=other_conditions,
            )
        # They hear of everything before the controllers that look things up in them.
        term.subscribe(caches.slices, slices_written.observe)
        term.subscribe(caches.tunnels, tunnels_written.observe)
        policies = PolicyStatusReconciler(
            client=client,
            policies=caches.policies,
            choices=choices,
            written=gateways.policies_written,
            recorder=self.recorder,
            now=self.now,
            others=_none if pod_networks is None else pod_networks.conditions,
        )
        slices = SliceReconciler(
            pods=caches.pods,
            policies=caches.policies,
            slices=caches.slices,
            endpoints=EndpointIndex(caches.pods),
            writer=OwnWriter(client, EGRESS_ENDPOINT_SLICES, caches.slices, slices_written),
            limit=self.slice_endpoints,
            metrics=self.metrics,
            random=self.random,
        )
        tunnels = TunnelReconciler(
            client=client,
            nodes=caches.nodes,
            tunnels=caches.tunnels,
            nets=self.tunnel_nets,
            written=tunnels_written,
            log=log,
        )
        phases = TunnelPhaseReconciler(
            client=client,
            nodes=caches.nodes,
            tunnels=caches.tunnels,
            gateways=caches.gateways,
            lease_of=leases.lease,
            is_gateway=selections.selects,
            written=tunnels_written,
            log=log,
        )
        gateways.setup(term, caches.nodes, caches.namespaces, caches.tunnels, caches.leases, resync=self.resync)
        policies.setup(term, decided=decided, unassigned=unassigned, others=other_conditions, resync=self.resync)
        slices.setup(term, resync=self.resync)
        if pod_networks is not None:
            pod_networks.setup(term, resync=self.resync)
        tunnels.setup(term, resync=self.resync)
        # What the gateways' controller needs, too: until that one is open, no node counts as a gateway.
        needs = (caches.leases, caches.policies, caches.namespaces)
        phases.setup(term, leases.changes, needs=needs, resync=self.resync)
        if self.sources is not None:
            self._set_up_mirrors(term, self.sources)
        # Last: the others hear of the leases that are there.
        leases.setup(term, leases=caches.leases, gateways=caches.gateways)

    def _cluster_policy_of(self, policy: EgressGatewayPolicy) -> str:
        name = cluster_policy_of(policy.metadata)
        if not name or self.sources is None:
            return ""
        cache = self.sources.cluster_policies
        if describe_unsynced(cache, optional=True) is not None:
            return name  # not known yet: addresses must not move for that
        source, namespace = cache.get(name), self.caches.namespaces.get(policy.metadata.namespace)
        if source is None or namespace is None or not stands_for(policy, source, namespace):
            return ""
        return name

    def _set_up_mirrors(self, term: Term, sources: SourceCaches) -> None:
        policies_written: OwnWrites[EgressGatewayPolicy] = OwnWrites()
        sources_written: OwnWrites[EgressPolicy] = OwnWrites()
        cluster_sources_written: OwnWrites[EgressClusterPolicy] = OwnWrites()
        term.subscribe(self.caches.policies, policies_written.observe)
        term.subscribe(sources.policies, sources_written.observe)
        term.subscribe(sources.cluster_policies, cluster_sources_written.observe)
        writer = OwnWriter(self.client, EGRESS_GATEWAY_POLICIES, self.caches.policies, policies_written)
        common = partial(
            PolicyMirrorReconciler,
            client=self.client,
            policies=self.caches.policies,
            writer=writer,
            namespaces=self.caches.namespaces,
            recorder=self.recorder,
            now=self.now,
        )
        common(resource=EGRESS_POLICIES, sources=sources.policies, written=sources_written).setup(
            term, resync=self.resync
        )
        common(
            resource=EGRESS_CLUSTER_POLICIES, sources=sources.cluster_policies, written=cluster_sources_written
        ).setup(term, resync=self.resync)

    def stand_by(self, term: Term) -> None:
        """What a replica does that does not lead: see `standby`."""
        caches = self.caches
        gateways = self._gateways(term, decided=Channel(), unassigned=Channel(), standby=True)
        gateways.setup(term, caches.nodes, caches.namespaces, caches.tunnels, caches.leases, resync=self.resync)
        gateways.leases.setup(term, leases=caches.leases, gateways=caches.gateways)

    def _gateways(
        self, term: Term, *, decided: Channel[GatewayDecision], unassigned: Channel[str], standby: bool = False
    ) -> GatewayReconciler:
        """With the indexes of its own, and the monitor of leases; both are yet to be set up."""
        caches, client, log = self.caches, self.client, self.log
        gateways_written: OwnWrites[EgressGateway] = OwnWrites()
        policies_written: OwnWrites[EgressGatewayPolicy] = OwnWrites()
        # They hear of everything before the controllers that look things up in them.
        term.subscribe(caches.gateways, gateways_written.observe)
        term.subscribe(caches.policies, policies_written.observe)
        node_addresses = NodeAddressIndex(caches.gateways)
        term.subscribe(caches.nodes, node_addresses.observe)
        selections = SelectionIndex(gateways=caches.gateways, nodes=caches.nodes)
        choices = ChoiceIndex(
            gateways=caches.gateways, policies=caches.policies, namespaces=caches.namespaces, unassigned=unassigned
        )
        leases = LeaseMonitor(
            client=client,
            namespace=self.lease_namespace,
            listed_term=selections.listed_term,
            metrics=self.metrics,
            clock=self.clock,
            log=log,
            patience=PATIENCE if standby else 0.0,
        )
        delay: Callable[[EgressGateway], Awaitable[float | None]] = _at_once
        if standby:
            delay = StandbyDelay(client=client, policies=caches.policies, lease_of=leases.lease, clock=self.clock)
        elif self.sources is not None:
            delay = TakeoverDelay(
                policies=caches.policies,
                egress_policies=self.sources.policies,
                cluster_policies=self.sources.cluster_policies,
                clock=self.clock,
            )
        return GatewayReconciler(
            client=client,
            choices=choices,
            selections=selections,
            node_addresses=node_addresses,
            facts=NodeFactSource(nodes=caches.nodes, tunnels=caches.tunnels, lease_of=leases.lease),
            leases=leases,
            gateways=caches.gateways,
            policies=caches.policies,
            written=gateways_written,
            policies_written=policies_written,
            decided=decided,
            recorder=self.recorder,
            limit=self.policies_per_gateway,
            delay=delay,
            cluster_policy_of=self._cluster_policy_of,
            now=self.now,
            random=self.random,
            log=log,
        )


def _none(_policy: EgressGatewayPolicy) -> Iterable[Condition]:
    return ()


async def _at_once(_gateway: EgressGateway) -> float:
    return 0.0
