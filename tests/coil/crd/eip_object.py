"""Gateways and policies as documents and as structs, for tests."""

from typing import Any

import msgspec

from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy

Document = dict[str, Any]
NODES = {"selector": {"matchLabels": {"egress": "true"}}}
PODS = {"podSelector": {"matchLabels": {"app": "shopping"}}}


def gateway_document(name: str = "eg1", **spec: Any) -> Document:
    return {"metadata": {"name": name}, "spec": {"nodeSelector": NODES, **spec}}


def policy_document(name: str = "policy-test", namespace: str = "shop", **spec: Any) -> Document:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"appliedTo": PODS, **spec}}


def gateway(name: str = "eg1", *, status: Document | None = None, **spec: Any) -> EgressGateway:
    return msgspec.convert(gateway_document(name, **spec) | {"status": status or {}}, EgressGateway)


def policy(
    name: str = "policy-test", namespace: str = "shop", *, status: Document | None = None, **spec: Any
) -> EgressGatewayPolicy:
    return msgspec.convert(policy_document(name, namespace, **spec) | {"status": status or {}}, EgressGatewayPolicy)


def placed(gateway_name: str, *, node: str = "node1", **eip: str) -> Document:
    """The status of a policy that has an address."""
    return {"egressGatewayName": gateway_name, "eip": eip, "node": node}
