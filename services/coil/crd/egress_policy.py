"""EgressPolicy and EgressClusterPolicy: what egressgateway 0.6 has in place of EgressGatewayPolicy.

The controller keeps an EgressGatewayPolicy for each, in every namespace that it is about (`coil.eip.policy_mirror`),
and everything else of Coil knows only those.
"""

from typing import Any

import msgspec

from coil.crd.egress_gateway_policy import AppliedTo, EgressGatewayPolicySpec, EgressIP, PolicyEip
from coil.crd.meta import Condition, LabelSelector, ObjectMeta, OwnerReference, Struct
from coil.crd.names import EIP_GROUP, EIP_VERSION
from coil.crd.resource import Resource


class EgressPolicyStatus(Struct, frozen=True, kw_only=True):
    """`eip` and `node` are those of the EgressGatewayPolicy; of an EgressClusterPolicy, of the first with a node."""

    eip: PolicyEip = PolicyEip()
    node: str = ""
    conditions: tuple[Condition, ...] = ()


class EgressPolicy(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: EgressGatewayPolicySpec = EgressGatewayPolicySpec()
    status: EgressPolicyStatus = EgressPolicyStatus()


class ClusterAppliedTo(AppliedTo, frozen=True, kw_only=True):
    """`namespace_selector` selects by the namespaces' labels; None means all."""

    namespace_selector: LabelSelector | None = None


class EgressClusterPolicySpec(Struct, frozen=True, kw_only=True):
    """As of an EgressGatewayPolicy, but for pods of several namespaces."""

    egress_gateway_name: str = ""
    egress_ip: EgressIP = msgspec.field(name="egressIP", default=EgressIP())
    applied_to: ClusterAppliedTo = ClusterAppliedTo()
    dest_subnet: tuple[str, ...] = ()
    priority: int = 0


class EgressClusterPolicy(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: EgressClusterPolicySpec = EgressClusterPolicySpec()
    status: EgressPolicyStatus = EgressPolicyStatus()


def cluster_policy_of(metadata: ObjectMeta) -> str:
    """The name of the EgressClusterPolicy that an EgressGatewayPolicy stands for; "" if it stands for none."""
    return next((owner.name for owner in metadata.owner_references if is_source(owner, EGRESS_CLUSTER_POLICIES)), "")


def is_source(owner: OwnerReference, resource: Resource[Any]) -> bool:
    """Whether an EgressGatewayPolicy with this owner stands for an object of that kind. Other groups have kinds of the
    same names.
    """
    group = owner.api_version.partition("/")[0]
    return owner.controller and (group, owner.kind) == (resource.group, resource.kind)


EGRESS_POLICIES: Resource[EgressPolicy] = Resource(
    EIP_GROUP, EIP_VERSION, "egresspolicies", "EgressPolicy", namespaced=True, type=EgressPolicy
)
EGRESS_CLUSTER_POLICIES: Resource[EgressClusterPolicy] = Resource(
    EIP_GROUP,
    EIP_VERSION,
    "egressclusterpolicies",
    "EgressClusterPolicy",
    namespaced=False,
    type=EgressClusterPolicy,
)
