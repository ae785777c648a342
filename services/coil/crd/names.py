"""Names that are a contract with clusters, manifests and Coil's own Go programs: never change one.

Bottom of the house: constants, identifier types, and the rule for names. Those of floating egress addresses (EIPs) are
a contract with manifests made for the public project, too (the Egress IP proposal, group `egressgateway.spidernet.io`).
"""

import re
from typing import Final, NewType

PoolName = NewType("PoolName", str)
NodeName = NewType("NodeName", str)
BlockName = NewType("BlockName", str)
RequestUid = NewType("RequestUid", str)

GROUP = "coil.cybozu.com"
VERSION = "v2"

FINALIZER = "coil.cybozu.com"
NEUTRON_FINALIZER = "coil.cybozu.com/neutron"
"""Of namespaces. The API server takes only qualified names for its own kinds."""

LABEL_POOL = "coil.cybozu.com/pool"
LABEL_NODE = "coil.cybozu.com/node"
LABEL_REQUEST = "coil.cybozu.com/request"
LABEL_EGRESS = "coil.cybozu.com/egress"
"""On an EgressClientSlice: the Egress, in the same namespace, whose clients it has."""
LABEL_RESERVED = "coil.cybozu.com/reserved"
RESERVED = "true"

ANNOTATION_OCCUPIED = "coil.cybozu.com/occupied-by"
"""On an AddressBlock that has addresses of the cluster's own, and whose."""
ANNOTATION_POOL = "coil.cybozu.com/pool"
ANNOTATION_EGRESS_PREFIX = "egress.coil.cybozu.com/"
"""On a client pod; the namespace of the Egresses follows, and their names, separated by commas, are the value."""

LABEL_APP_NAME = "app.kubernetes.io/name"
LABEL_APP_COMPONENT = "app.kubernetes.io/component"
LABEL_APP_INSTANCE = "app.kubernetes.io/instance"
APP_NAME = "coil"
COMPONENT_EGRESS = "egress"
"""The labels of what belongs to an Egress: its router pods, its Deployment, its Service. The instance is its name."""

DEFAULT_POOL = PoolName("default")

LABEL_VALUE_LENGTH = 63
"""The API server's limit on a label value: pool and node names go into labels of each block."""

_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def is_object_name(text: str) -> bool:
    """Whether an object can have that name (RFC 1123 subdomain). Other text need not be looked up."""
    return len(text) <= 253 and _OBJECT_NAME.fullmatch(text) is not None


def is_namespace_name(text: str) -> bool:
    """Whether a namespace can have that name (RFC 1123 label)."""
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


EIP_GROUP: Final = "egressgateway.spidernet.io"
EIP_VERSION: Final = "v1beta1"

LABEL_DEFAULT_GATEWAY: Final = "egressgateway.spidernet.io/default"
"""On a namespace: the EgressGateway of policies that name none."""
LABEL_DEFAULT_GATEWAY_0_6: Final = "spidernet.io/egressgateway-default"
"""The same, as egressgateway 0.6 has it."""
GATEWAY_FINALIZER_0_6: Final = f"{EIP_GROUP}/egressgateway"
"""That egressgateway 0.6 gives each EgressGateway, and removes itself."""

LABEL_POLICY: Final = "egressgateway.spidernet.io/egressgatewaypolicy"
"""On an EgressEndpointSlice: the policy, in the same namespace, whose endpoints it has."""

DEFAULT_GATEWAY: Final = "default"
"""The EgressGateway of policies that name none, where the namespace has no label."""

SLICE_ENDPOINTS: Final = 100
"""Endpoints that a slice has at most, unless set otherwise."""
SHARE_LIMIT: Final = 5
"""Policies that a node, or an address, serves at most under the policy Limit, unless set otherwise."""
