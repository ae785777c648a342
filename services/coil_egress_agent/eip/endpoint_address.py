"""EgressEndpointSlices as a node needs them: addresses and nodes, without names and UIDs of a hundred thousand pods."""

from collections.abc import Iterable

from coil.crd.egress_endpoint_slice import EGRESS_ENDPOINT_SLICES
from coil.crd.egress_gateway import PolicyRef
from coil.crd.eip_names import LABEL_POLICY
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.names import NodeName
from coil.crd.resource import Resource
from coil.kernel.family import IPAddress
from coil_egress_agent.eip.node_assignment import parse_address

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
