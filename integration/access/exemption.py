"""What the comparison passes over: a short list, each entry with its reason."""

from collections.abc import Mapping
from typing import Final

from integration.access.right import RightKey

RBAC: Final = "rbac.authorization.k8s.io"
COORDINATION: Final = "coordination.k8s.io"
COIL: Final = "coil.cybozu.com"
EIP: Final = "egressgateway.spidernet.io"

_FINALIZERS = (
    "no call: the API server asks for it when an owner is named with blockOwnerDeletion. The tests' one does, by the "
    "admission plugin OwnerReferencesPermissionEnforcement: without the right nothing that has owners would be created"
)

UNSEEN: Final[Mapping[RightKey, str]] = {
    (
        "coil-ipam-controller",
        "ClusterRole coil-ipam-controller",
        "update",
        COIL,
        "addresspools/finalizers",
    ): _FINALIZERS,
    (
        "coil-egress-controller",
        "ClusterRole coil-egress-controller",
        "update",
        COIL,
        "egresses/finalizers",
    ): _FINALIZERS,
    (
        "coil-egress-controller",
        "ClusterRole coil-egress-controller",
        "update",
        EIP,
        "egressgatewaypolicies/finalizers",
    ): _FINALIZERS,
    ("coil-egress-controller", "ClusterRole coil-egress-controller", "bind", RBAC, "clusterroles"): (
        "no call: the API server asks for it when the role coil-egress is bound (router_account.py), unless the "
        "account has all that the role allows, and it has"
    ),
}
"""Rights that no log of calls can show."""

_OTHERS_LEASE = "integration/apiserver/test_eip_lease.py asks, with the agent's account, for what no agent may have"

PROVOKED: Final = {
    ("coil-egress-node", verb, COORDINATION, "leases"): _OTHERS_LEASE for verb in ("get", "create", "update", "delete")
}
"""Calls that are refused because a test wants to see that, by account, verb, group and resource."""
