"""The names that floating egress addresses (EIPs) share with manifests made for the public project: never change one.

Source: the Egress IP proposal, group `egressgateway.spidernet.io`.
"""

from typing import Final

EIP_GROUP: Final = "egressgateway.spidernet.io"
EIP_VERSION: Final = "v1beta1"

LABEL_DEFAULT_GATEWAY: Final = "egressgateway.spidernet.io/default"
"""On a namespace: the EgressGateway of policies that name none."""

LABEL_POLICY: Final = "egressgateway.spidernet.io/egressgatewaypolicy"
"""On an EgressEndpointSlice: the policy, in the same namespace, whose endpoints it has."""

DEFAULT_GATEWAY: Final = "default"
"""The EgressGateway of policies that name none, where the namespace has no label."""

SLICE_ENDPOINTS: Final = 100
"""Endpoints that a slice has at most, unless set otherwise."""
SHARE_LIMIT: Final = 5
"""Policies that a node, or an address, serves at most under the policy Limit, unless set otherwise."""
