"""The objects of the egress figures, as calls to the API server. Pure.

A router pod knows a client by the slice of the client's node, which coild writes while it connects the client. Here
each client is alone on its node. A pod of the measured node is one like a service's; a client is annotated for the
Egress.
"""

import json
from ipaddress import IPv4Address
from typing import Any, Final

from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES
from coil.crd.names import ANNOTATION_EGRESS_PREFIX, LABEL_EGRESS, LABEL_NODE
from coil.egress.gateway import DEFAULT_TUNNEL_POLICY
from coil.egress.router_pod import router_labels
from integration.bench.bare_client import Call

ROUTER_NAMESPACE: Final = "internet"
ROUTER_ACCOUNT: Final = "coil-egress"
EGRESS_NAME: Final = "nat"
CLIENT_NAMESPACE: Final = "apps"
NODE: Final = "bench"

_PODS = f"/api/v1/namespaces/{CLIENT_NAMESPACE}/pods"
_SLICES = f"/apis/coil.cybozu.com/v2/namespaces/{ROUTER_NAMESPACE}/egressclientslices"
_CROWD = IPv4Address("10.65.0.0")
_NAMES_EGRESS: Final = ANNOTATION_EGRESS_PREFIX + ROUTER_NAMESPACE
_ADDRESSES: Final = "10.66.0.0/16"
_BLOCK_BITS: Final = 8
"""More addresses than ADDs: none waits for a block, or for an address to have rested."""


def crowd_address(number: int) -> IPv4Address:
    """The address of the client with that number, from 1: of none of the pods that exist in the kernel."""
    return _CROWD + number


def tell_client(name: str, address: IPv4Address) -> Call:
    """What the coild of a node writes that has this client and no other."""
    metadata = {"name": name, "labels": {LABEL_EGRESS: EGRESS_NAME, LABEL_NODE: name}}
    return _post(
        _SLICES,
        {
            "apiVersion": EGRESS_CLIENT_SLICES.api_version,
            "kind": EGRESS_CLIENT_SLICES.kind,
            "metadata": metadata,
            "nodeName": name,
            "addresses": [str(address)],
            "pods": 1,
        },
    )


def withdraw_client(name: str) -> Call:
    """What it does when the client has gone."""
    return Call("DELETE", f"{_SLICES}/{name}", b"{}")


def create_local_pod(name: str, *, is_client: bool) -> Call:
    """A pod on the node whose coild is measured, without an address."""
    return _create_pod(name, annotations={_NAMES_EGRESS: EGRESS_NAME} if is_client else {})


def _create_pod(name: str, *, annotations: dict[str, str]) -> Call:
    container = {
        "name": "service",
        "image": "images.example.com/team/service:v17",
        "env": [{"name": "LOG_LEVEL", "value": "info"}, {"name": "SHARD", "value": "3"}],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "256Mi"}},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
    }
    return _post(
        _PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {"app.kubernetes.io/name": "service", "tier": "backend"},
                "annotations": {**annotations, "prometheus.io/scrape": "true"},
            },
            "spec": {"nodeName": NODE, "automountServiceAccountToken": False, "containers": [container]},
        },
    )


def backdrop() -> list[dict[str, Any]]:
    """What is there before: namespaces, accounts, the Egress and its router pods' right to watch."""
    kinds = [
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in _ACCOUNTS),
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}
            for namespace, account in _ACCOUNTS.items()
        ),
    ]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": ROUTER_ACCOUNT, "namespace": ROUTER_NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coil-egress"},
        "subjects": [{"kind": "ServiceAccount", "name": ROUTER_ACCOUNT, "namespace": ROUTER_NAMESPACE}],
    }
    egress = {
        "apiVersion": "coil.cybozu.com/v2",
        "kind": "Egress",
        "metadata": {"name": EGRESS_NAME, "namespace": ROUTER_NAMESPACE},
        "spec": {"destinations": ["0.0.0.0/0"]},
    }
    return [*kinds, binding, egress]


def node_backdrop() -> list[dict[str, Any]]:
    """What a coild needs beside `backdrop`: its node, a pool, and the Egress's Service, as its controller makes it."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    pool = {
        "apiVersion": "coil.cybozu.com/v2",
        "kind": "AddressPool",
        "metadata": {"name": "default"},
        "spec": {"blockSizeBits": _BLOCK_BITS, "subnets": [{"ipv4": _ADDRESSES}]},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": EGRESS_NAME, "namespace": ROUTER_NAMESPACE, "labels": router_labels(EGRESS_NAME)},
        "spec": {
            "selector": router_labels(EGRESS_NAME),
            "ports": [{"port": DEFAULT_TUNNEL_POLICY.port, "protocol": "UDP"}],
        },
    }
    return [node, pool, service]


_ACCOUNTS = {ROUTER_NAMESPACE: ROUTER_ACCOUNT, CLIENT_NAMESPACE: "default"}


def _post(path: str, document: dict[str, Any]) -> Call:
    return Call("POST", path, _text(document))


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
