"""What has changed in the caches since the applier's last round.

    caches ─ note_… ─► ChangeTracker ─ take ─► Snapshot ─► data_plane_builder (in a thread)

Objects in the caches are frozen, so a snapshot is a few tuples of references, and a thread may read it while the caches
change. EgressEndpointSlices are decoded to what a node needs of them: addresses and nodes, without names and UIDs of a
hundred thousand pods.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import ConfigMap, Node
from coil.crd.egress_gateway import EgressGateway, PolicyRef
from coil.crd.egress_gateway_policy import EGRESS_ENDPOINT_SLICES, EgressGatewayPolicy
from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.names import LABEL_POLICY, NodeName
from coil.crd.resource import Resource
from coil.egress.cluster_networks import (
    POD_AND_SERVICE_NETWORKS,
    collect_pod_and_service_networks,
    parse_cluster_networks,
)
from coil.kernel.family import IPAddress, IPNetwork
from coil.reconcile.cache import Cache
from coil_egress_agent.eip.node_assignment import parse_address
from coil_egress_agent.eip.node_pods import NodePods, PodsView

BY_POLICY = "policy"
"""The informer's index of slices, by the policy's key."""


class Endpoint(Struct, frozen=True, kw_only=True, gc=False):
    ipv4_list: tuple[str, ...] = ()
    ipv6_list: tuple[str, ...] = ()
    node_name: str = ""


class EndpointSlice(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    endpoints: tuple[Endpoint, ...] = ()


ENDPOINT_SLICES: Resource[EndpointSlice] = Resource(
    EGRESS_ENDPOINT_SLICES.group,
    EGRESS_ENDPOINT_SLICES.version,
    EGRESS_ENDPOINT_SLICES.plural,
    EGRESS_ENDPOINT_SLICES.kind,
    namespaced=True,
    type=EndpointSlice,
)


def policy_of(slice_: EndpointSlice) -> PolicyRef | None:
    """The policy whose endpoints it has."""
    name = slice_.metadata.labels.get(LABEL_POLICY)
    return PolicyRef(namespace=slice_.metadata.namespace, name=name) if name else None


def policy_key(ref: PolicyRef) -> str:
    """As in the index."""
    return f"{ref.namespace}/{ref.name}"


def index_by_policy(slice_: EndpointSlice) -> list[str]:
    """An indexer for the informer."""
    ref = policy_of(slice_)
    return [] if ref is None else [policy_key(ref)]


def source_nodes(slices: Iterable[EndpointSlice]) -> dict[IPAddress, NodeName]:
    """Every endpoint's addresses, and the node that it is on. What is no address is passed over."""
    return {
        address: NodeName(endpoint.node_name)
        for slice_ in slices
        for endpoint in slice_.endpoints
        for text in (*endpoint.ipv4_list, *endpoint.ipv6_list)
        if (address := parse_address(text)) is not None
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Slices are indexed by their policy; `nodes` holds this node alone, `cluster_networks` the ConfigMap in which the
    controller tells the cluster's networks, or nothing where no such ConfigMap is named.
    """

    gateways: Cache[EgressGateway]
    policies: Cache[EgressGatewayPolicy]
    slices: Cache[EndpointSlice]
    tunnels: Cache[EgressTunnel]
    pools: Cache[AddressPool]
    cluster_networks: Cache[ConfigMap] | None = None
    nodes: Cache[Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`policies`, `networks` and `pods` are None where none has changed since the last snapshot; `slices` are those of
    the policies of which any has, or which select other pods of this node than then. `networks` are those of pools and
    those that the controller has found. `node_addresses` are those of all Nodes: this one's by its Node, the others' by
    what the controller says of them in their tunnels.
    """

    gateways: tuple[EgressGateway, ...]
    tunnels: tuple[EgressTunnel, ...]
    own: EgressTunnel | None
    node: Node | None
    node_addresses: frozenset[IPAddress]
    policies: tuple[EgressGatewayPolicy, ...] | None
    networks: frozenset[IPNetwork] | None
    slices: Mapping[PolicyRef, tuple[EndpointSlice, ...]]
    pods: PodsView | None
    tunnels_changed: bool


class ChangeTracker:
    """`changed` is set when there is something to `take`."""

    def __init__(self, caches: Caches, pods: NodePods, *, node: NodeName) -> None:
        self._caches = caches
        self._pods = pods
        self._node = node
        self._tunnels = self._policies = self._networks = True
        self._tunnel_addresses: frozenset[IPAddress] = frozenset()
        self._slices: set[PolicyRef] = set()
        self._pods_changed = True
        self._pods_view = PodsView()
        pods.on_change(self._note_pods)
        self.changed = asyncio.Event()
        self.changed.set()

    def follow(self) -> None:
        """Hear of every change in the caches from now on. Once."""
        caches = self._caches
        caches.gateways.subscribe(self.note_gateway)
        caches.policies.subscribe(self.note_policy)
        caches.slices.subscribe(self.note_slice)
        caches.tunnels.subscribe(self.note_tunnel)
        caches.pools.subscribe(self.note_pool)
        caches.nodes.subscribe(self.note_node)
        if caches.cluster_networks is not None:
            caches.cluster_networks.subscribe(self.note_cluster_networks)

    def note_gateway(self, old: EgressGateway | None, new: EgressGateway | None) -> None:
        if old is None or new is None or (old.spec, old.status) != (new.spec, new.status):
            self.changed.set()

    def note_policy(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> None:
        if old is None or new is None or _meaning(old) != _meaning(new):
            self._policies = True
            self.changed.set()

    def _note_pods(self) -> None:
        self._pods_changed = True
        self.changed.set()

    def note_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        if old is not None and new is not None and old.endpoints == new.endpoints and policy_of(old) == policy_of(new):
            return
        for slice_ in (old, new):
            if slice_ is not None and (ref := policy_of(slice_)) is not None:
                self._slices.add(ref)
        self.changed.set()

    def note_tunnel(self, old: EgressTunnel | None, new: EgressTunnel | None) -> None:
        # Its phase and its time change what others decide, never what this node's kernel is to hold.
        if old is None or new is None or _facts(old) != _facts(new):
            self._tunnels = True
            self.changed.set()

    def note_pool(self, old: AddressPool | None, new: AddressPool | None) -> None:
        if old is None or new is None or old.spec.subnets != new.spec.subnets:
            self._networks = True
            self.changed.set()

    def note_cluster_networks(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        before, after = (None if each is None else each.data.get(POD_AND_SERVICE_NETWORKS) for each in (old, new))
        if before != after:
            self._networks = True
            self.changed.set()

    def note_node(self, old: Node | None, new: Node | None) -> None:
        before, after = ((node.metadata.labels, node.addresses()) if node is not None else None for node in (old, new))
        if before != after:
            self.changed.set()

    def own_tunnel(self) -> EgressTunnel | None:
        """This node's, as last seen."""
        return self._caches.tunnels.get(self._node)

    def own_status_names(self) -> bool:
        """Whether some gateway's status still gives this node anything."""
        return any(
            listed.name == self._node and listed.eips
            for gateway in self._caches.gateways.items()
            for listed in gateway.status.node_list
        )

    def take(self) -> Snapshot:
        """What there is, and which of it has changed since the last time."""
        caches = self._caches
        pods = self._take_pods() if self._pods_changed else None
        if self._tunnels:
            self._tunnel_addresses = self._take_tunnel_addresses()
        node = caches.nodes.get(self._node)
        snapshot = Snapshot(
            gateways=tuple(caches.gateways.items()),
            tunnels=tuple(caches.tunnels.items()),
            own=self.own_tunnel(),
            node=node,
            node_addresses=self._tunnel_addresses.union(() if node is None else node.addresses()),
            policies=tuple(caches.policies.items()) if self._policies else None,
            networks=self._take_networks() if self._networks else None,
            slices={ref: tuple(caches.slices.by_index(BY_POLICY, policy_key(ref))) for ref in self._slices},
            pods=pods,
            tunnels_changed=self._tunnels,
        )
        self._tunnels = self._policies = self._networks = False
        self._slices = set()
        self.changed.clear()
        return snapshot

    def put_back(self, snapshot: Snapshot) -> None:
        """What was taken has come to nothing: it counts as changed still."""
        self._policies |= snapshot.policies is not None
        self._networks |= snapshot.networks is not None
        self._tunnels |= snapshot.tunnels_changed
        self._slices |= snapshot.slices.keys()
        self._pods_changed |= snapshot.pods is not None
        self.changed.set()

    def _take_tunnel_addresses(self) -> frozenset[IPAddress]:
        texts = (text for tunnel in self._caches.tunnels.items() for text in tunnel.status.node_addresses)
        return frozenset(address for text in texts if (address := parse_address(text)) is not None)

    def _take_networks(self) -> frozenset[IPNetwork]:
        caches = self._caches
        found = {*collect_pod_and_service_networks(pools=caches.pools.items())}
        for config_map in caches.cluster_networks.items() if caches.cluster_networks is not None else ():
            found.update(parse_cluster_networks(config_map.data, POD_AND_SERVICE_NETWORKS))
        return frozenset(found)

    def _take_pods(self) -> PodsView:
        former, self._pods_view = self._pods_view, self._pods.view()
        self._pods_changed = False
        for ref in former.sources.keys() | self._pods_view.sources.keys():
            if former.sources.get(ref) != self._pods_view.sources.get(ref):
                self._slices.add(ref)
        return self._pods_view


def _meaning(policy: EgressGatewayPolicy) -> object:
    return policy.metadata.uid, policy.spec, policy.status.egress_gateway_name, policy.status.eip


def _facts(tunnel: EgressTunnel) -> object:
    status = tunnel.status
    return status.tunnel, status.mark, status.node_addresses, status.pod_cidrs
