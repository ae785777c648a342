"""The controller's picture of what floating egress addresses depend on: informer caches and their indexes.

A picture may be late. Every write carries the version that it was decided on; that a node is gone, or a lease has
lapsed, is asked for before anybody acts on it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from coil.crd.builtin import Namespace, Node
from coil.crd.egress_endpoint_slice import EgressEndpointSlice
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.eip_names import LABEL_POLICY
from coil.kube.lease_lock import Lease
from coil_egress_controller.cluster_view import BY_NAMESPACE, Cache
from coil_egress_controller.eip.pod import EipPod

BY_GATEWAY = "gateway"
BY_POLICY = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class EipView:
    """Pods, only those that are endpoints, and policies are indexed by namespace, policies also by the gateway they
    name ("" for none), slices by the keys of the policies that they name. Leases are those of gateway nodes.
    """

    nodes: Cache[Node]
    namespaces: Cache[Namespace]
    pods: Cache[EipPod]
    tunnels: Cache[EgressTunnel]
    gateways: Cache[EgressGateway]
    policies: Cache[EgressGatewayPolicy]
    slices: Cache[EgressEndpointSlice]
    leases: Cache[Lease]


def policies_of(slice_: EgressEndpointSlice) -> set[str]:
    """The keys of the policies that it names, by its label and as its owners: one, unless somebody has changed it."""
    metadata = slice_.metadata
    names = {owner.name for owner in metadata.owner_references if owner.kind == EGRESS_GATEWAY_POLICIES.kind}
    if label := metadata.labels.get(LABEL_POLICY):
        names.add(label)
    return {f"{metadata.namespace}/{name}" for name in names}


POD_INDEXERS: Mapping[str, Callable[[EipPod], Iterable[str]]] = {BY_NAMESPACE: lambda pod: [pod.metadata.namespace]}
POLICY_INDEXERS: Mapping[str, Callable[[EgressGatewayPolicy], Iterable[str]]] = {
    BY_NAMESPACE: lambda policy: [policy.metadata.namespace],
    BY_GATEWAY: lambda policy: [policy.spec.egress_gateway_name],
}
SLICE_INDEXERS: Mapping[str, Callable[[EgressEndpointSlice], Iterable[str]]] = {BY_POLICY: policies_of}
