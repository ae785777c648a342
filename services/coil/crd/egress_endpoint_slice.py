"""EgressEndpointSlice: some of the pods that a policy selects, as the controller writes them."""

from coil.crd.eip_names import EIP_GROUP, EIP_VERSION
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource


class EgressEndpoint(Struct, frozen=True, kw_only=True):
    """A pod that runs and has addresses; `uuid` is its UID."""

    pod_name: str
    ipv4_list: tuple[str, ...] = ()
    ipv6_list: tuple[str, ...] = ()
    node_name: str = ""
    uuid: str = ""


class EgressEndpointSlice(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    endpoints: tuple[EgressEndpoint, ...] = ()


EGRESS_ENDPOINT_SLICES: Resource[EgressEndpointSlice] = Resource(
    *(EIP_GROUP, EIP_VERSION, "egressendpointslices", "EgressEndpointSlice"),
    namespaced=True,
    type=EgressEndpointSlice,
)
