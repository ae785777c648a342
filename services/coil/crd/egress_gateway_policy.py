"""EgressGatewayPolicy: which pods of a namespace leave the cluster through which floating address, and for where.
EgressEndpointSlice: some of the pods that a policy selects, as the controller writes them.

Strings stay strings here, so that one with nonsense in it can still be decoded, listed and reported.
"""

from enum import StrEnum

import msgspec

from coil.crd.meta import Condition, LabelSelector, ObjectMeta, Struct
from coil.crd.names import EIP_GROUP, EIP_VERSION
from coil.crd.resource import Resource


class AllocatorPolicy(StrEnum):
    """Which of the gateway's addresses a policy gets that asks for none in particular."""

    DEFAULT = "default"
    """The gateway's default EIP, if it has one."""
    ROUND_ROBIN = "rr"
    """One that nobody has."""


class EgressIP(Struct, frozen=True, kw_only=True):
    """Explicit addresses, the node's own, or (neither) one of the gateway's: as `allocator_policy`, an AllocatorPolicy,
    says, or with "" the gateway itself.
    """

    ipv4: str = ""
    ipv6: str = ""
    # The API writes "useNodeIP"; the struct's camel case would ask for "useNodeIp".
    use_node_ip: bool = msgspec.field(name="useNodeIP", default=False)
    allocator_policy: str = ""


class AppliedTo(Struct, frozen=True, kw_only=True):
    """One of the two."""

    pod_selector: LabelSelector | None = None
    pod_subnet: tuple[str, ...] = ()


class EgressGatewayPolicySpec(Struct, frozen=True, kw_only=True):
    """Without `dest_subnet` it is about all that leaves the cluster.

    Of policies that concern a packet, the one with the highest `priority` counts, then the first by namespace and name.
    """

    egress_gateway_name: str = ""
    egress_ip: EgressIP = msgspec.field(name="egressIP", default=EgressIP())
    applied_to: AppliedTo = AppliedTo()
    dest_subnet: tuple[str, ...] = ()
    priority: int = 0


class PolicyEip(Struct, frozen=True, kw_only=True):
    ipv4: str = ""
    ipv6: str = ""


class EgressGatewayPolicyStatus(Struct, frozen=True, kw_only=True):
    """Which gateway, address and node serve it. The address stays the policy's while no node can carry it.

    `observed_generation` is that of the spec that was decided on.
    """

    observed_generation: int = 0
    egress_gateway_name: str = ""
    eip: PolicyEip = PolicyEip()
    node: str = ""
    conditions: tuple[Condition, ...] = ()


class EgressGatewayPolicy(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: EgressGatewayPolicySpec = EgressGatewayPolicySpec()
    status: EgressGatewayPolicyStatus = EgressGatewayPolicyStatus()


EGRESS_GATEWAY_POLICIES: Resource[EgressGatewayPolicy] = Resource(
    *(EIP_GROUP, EIP_VERSION, "egressgatewaypolicies", "EgressGatewayPolicy"),
    namespaced=True,
    type=EgressGatewayPolicy,
)


class EgressEndpoint(Struct, frozen=True, kw_only=True):
    """A pod that runs and has addresses; `uuid` is its UID. Of egressgateway's own slices nothing is left but empty
    ones: their fields have other names.
    """

    pod_name: str = ""
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
