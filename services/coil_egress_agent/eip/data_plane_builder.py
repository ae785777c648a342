"""From API objects to the elements of nftables. Synchronous; runs in a thread, one call at a time, since a cluster of a
thousand policies with a hundred pods each keeps it busy for seconds at the start.

It translates the API's terms for `coil.eip.data_plane` and knows nothing of sets and maps.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network

from coil.crd.egress_gateway import EgressGateway, FailPolicy, PolicyRef
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.eip_limit import NamespaceLimits, find_excess
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.eip.data_plane import DataPlaneIndex, PolicyView
from coil.eip.path_change import PathChanges
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import IPAddress, IPNetwork
from coil.kernel.nft_element import ElementChanges
from coil_egress_agent.eip.change_tracker import Snapshot, source_nodes
from coil_egress_agent.eip.node_assignment import EgressPath, LeaseState, parse_address, plan_paths
from coil_egress_agent.eip.node_pods import PodsView


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`changes` since the last one, and whose ways they `moved`. `clients` are the nodes whose pods leave through this
    node; None: any may be. `crowded` are the keys of this node's pods that have more policies than apply to a pod.
    """

    changes: ElementChanges
    moved: PathChanges
    clients: frozenset[NodeName] | None
    crowded: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Statement:
    """What a policy's spec says, parsed."""

    version: str
    destinations: tuple[IPNetwork, ...]
    pod_subnets: tuple[IPNetwork, ...]


class DataPlaneBuilder:
    """`extra` are networks of the cluster that no object names. Nothing else writes `index`. `excess` are the policies
    that go beyond `limits`, of which nothing but their sources is kept: all that these send out of the cluster is
    dropped.
    """

    def __init__(
        self, index: DataPlaneIndex, *, node: NodeName, extra: Collection[IPNetwork], limits: NamespaceLimits
    ) -> None:
        self.index = index
        self.excess: frozenset[PolicyRef] = frozenset()
        self._limits = limits
        self._node = node
        self._extra = frozenset(extra)
        self._policies: tuple[EgressGatewayPolicy, ...] = ()
        self._networks: frozenset[IPNetwork] = frozenset()
        self._pods = PodsView()
        self._statements: dict[PolicyRef, _Statement] = {}
        self._nodes: dict[PolicyRef, frozenset[NodeName]] = {}  # where its pods are
        index.set_own(node)

    def update(
        self, snapshot: Snapshot, lease: LeaseState, *, peers: Iterable[Peer], held: Collection[IPAddress]
    ) -> Outcome:
        """Enter what has changed. `peers` are the nodes that the mesh leads to, `held` the EIPs that are on the node's
        device, or about to be.
        """
        self.index.set_held(held)
        self.index.set_node_addresses(lease.of_nodes)
        if snapshot.policies is not None:
            self._policies = snapshot.policies
            self._parse_policies()
        if snapshot.networks is not None:
            self._networks = snapshot.networks
        if snapshot.networks is not None or snapshot.tunnels_changed:
            self.index.set_cluster(self._cluster(snapshot.tunnels))
        self.index.set_peers(tuple(peers))
        gateways = {gateway.metadata.name: gateway for gateway in snapshot.gateways}
        views = self._views(gateways, plan_paths(snapshot.gateways, lease))
        self.index.set_policies(views)
        if snapshot.pods is not None:
            self._pods = snapshot.pods
            self.index.set_known(self._pods.known)
        for ref, slices in snapshot.slices.items():
            sources = source_nodes(slices) | dict.fromkeys(self._pods.sources.get(ref, ()), self._node)
            self.index.set_sources(ref, sources)
            if sources:
                self._nodes[ref] = frozenset(sources.values())
            else:
                self._nodes.pop(ref, None)
        changes, moved = self.index.take_changes(), self.index.take_moves()
        known = self._pods.known
        crowded = frozenset(known[address] for address in self.index.find_crowded(known))
        return Outcome(changes=changes, moved=moved, clients=self._clients(views), crowded=crowded)

    def _parse_policies(self) -> None:
        known, self._statements = self._statements, {}
        for policy in self._policies:
            ref = _ref(policy)
            statement = known.get(ref)
            if statement is None or statement.version != policy.metadata.resource_version:
                statement = _Statement(
                    policy.metadata.resource_version,
                    parse_networks(policy.spec.dest_subnet),
                    parse_networks(policy.spec.applied_to.pod_subnet),
                )
            self._statements[ref] = statement
        self.excess = find_excess(self._policies, self._limits)

    def _views(
        self, gateways: Mapping[str, EgressGateway], paths: Mapping[PolicyRef, EgressPath]
    ) -> tuple[PolicyView, ...]:
        views = []
        for policy in self._policies:
            ref = _ref(policy)
            statement = self._statements[ref]
            if ref in self.excess:
                views.append(_closed(policy, statement))
                continue
            if policy.spec.dest_subnet and not statement.destinations:
                # None of its destinations is a network: it is about nothing, not about everything.
                continue
            name = policy.status.egress_gateway_name or policy.spec.egress_gateway_name
            gateway = gateways.get(name)
            fails_open = gateway is not None and gateway.spec.fail_policy == FailPolicy.OPEN
            path = paths.get(ref)
            views.append(
                PolicyView(
                    ref=ref,
                    priority=policy.spec.priority,
                    destinations=statement.destinations,
                    pod_subnets=statement.pod_subnets,
                    eip=_eip(path) if path is not None else wished_eip(policy, gateway),
                    node=path.node if path is not None else None,
                    given=path.given if path is not None else None,
                    # Between two nodes nothing leaks: connections that once left otherwise would stay that way.
                    fail_open=path is None and fails_open,
                    closed=not fails_open and policy.spec.applied_to.pod_selector is not None,
                    strict=gateway is None or gateway.spec.is_strict,
                )
            )
        return tuple(views)

    def _cluster(self, tunnels: Iterable[EgressTunnel]) -> frozenset[IPNetwork]:
        """The cluster's own addresses: nobody's egress traffic."""
        texts = [
            text
            for tunnel in tunnels
            for status in (tunnel.status,)
            for text in (*status.node_addresses, *status.pod_cidrs, status.tunnel.ipv4, status.tunnel.ipv6)
        ]
        return self._extra | self._networks | frozenset(parse_networks(texts))

    def _clients(self, views: Iterable[PolicyView]) -> frozenset[NodeName] | None:
        found: set[NodeName] = set()
        for view in views:
            if view.node == self._node:
                if view.pod_subnets:
                    return None  # whose pods these are, no slice tells
                found |= self._nodes.get(view.ref, frozenset())
        return frozenset(found)


def _closed(policy: EgressGatewayPolicy, statement: _Statement) -> PolicyView:
    """The policy without a way, for all destinations."""
    return PolicyView(
        ref=_ref(policy),
        priority=policy.spec.priority,
        pod_subnets=statement.pod_subnets,
        closed=policy.spec.applied_to.pod_selector is not None,
    )


def wished_eip(policy: EgressGatewayPolicy, gateway: EgressGateway | None) -> Eip | None:
    """The EIP of a policy that no node carries: it says which families the policy is about.

    Where no address is known yet but the families of the gateway's ranges are, the unspecified ones stand for them.
    """
    demand = policy.spec.egress_ip
    if demand.use_node_ip:
        return None
    for ipv4, ipv6 in ((policy.status.eip.ipv4, policy.status.eip.ipv6), (demand.ipv4, demand.ipv6)):
        first, second = parse_address(ipv4), parse_address(ipv6)
        pair = (
            first if isinstance(first, IPv4Address) else None,
            second if isinstance(second, IPv6Address) else None,
        )
        if any(pair):
            return Eip(*pair)
    if gateway is None:
        return None
    has_ipv4, has_ipv6 = any(gateway.spec.offers(4)), any(gateway.spec.offers(6))
    if not has_ipv4 and not has_ipv6:
        return None
    return Eip(IPv4Address(0) if has_ipv4 else None, IPv6Address(0) if has_ipv6 else None)


def parse_networks(texts: Iterable[str]) -> tuple[IPNetwork, ...]:
    """The networks among the texts; an address within one stands for it, and an address alone for itself."""
    found: list[IPNetwork] = []
    for text in texts:
        try:
            found.append(ip_network(text, strict=False))
        except ValueError:
            continue
    return tuple(found)


def _eip(path: EgressPath) -> Eip | None:
    return None if path.ipv4 is None and path.ipv6 is None else Eip(path.ipv4, path.ipv6)


def _ref(policy: EgressGatewayPolicy) -> PolicyRef:
    return PolicyRef(namespace=policy.metadata.namespace, name=policy.metadata.name)
