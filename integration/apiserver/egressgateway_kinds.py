"""The custom resource definitions of egressgateway 0.6 as far as a migration meets them: names, scopes and fields.

Without columns and descriptions, and with less than its own schemas where these say no more than "an object".
"""

from typing import Any

Document = dict[str, Any]

GROUP = "egressgateway.spidernet.io"
TEXT: Document = {"type": "string"}
TEXTS: Document = {"type": "array", "items": TEXT}
NUMBER: Document = {"type": "integer", "format": "int64"}
FLAG: Document = {"type": "boolean"}
ANYTHING: Document = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def fields(**properties: Document) -> Document:
    return {"type": "object", "properties": properties}


PAIR = fields(ipv4=TEXT, ipv6=TEXT)
EGRESS_IP = fields(
    ipv4=TEXT,
    ipv6=TEXT,
    useNodeIP={**FLAG, "default": False},
    allocatorPolicy={**TEXT, "default": "default"},
) | {"default": {"allocatorPolicy": "default", "useNodeIP": False}}
POOLS = fields(ipv4=TEXTS, ipv6=TEXTS, ipv4DefaultEIP=TEXT, ipv6DefaultEIP=TEXT)
USER = fields(name=TEXT, namespace=TEXT)
EIP = fields(ipv4=TEXT, ipv6=TEXT, policies={"type": "array", "items": USER})
NODE = fields(name=TEXT, status=TEXT, eips={"type": "array", "items": EIP})
ENDPOINT = fields(ns=TEXT, pod=TEXT, ipv4=TEXTS, ipv6=TEXTS, node=TEXT)
ENDPOINTS: Document = {"endpoints": {"type": "array", "items": ENDPOINT}}


def _policy(**applied_to: Document) -> dict[str, Document]:
    spec = fields(
        egressGatewayName=TEXT,
        egressIP=EGRESS_IP,
        appliedTo=fields(podSelector=ANYTHING, podSubnet=TEXTS, **applied_to),
        destSubnet=TEXTS,
        priority=NUMBER,
    )
    return {"spec": {**spec, "required": ["appliedTo"]}, "status": fields(eip=PAIR, node=TEXT)}


def _define(kind: str, plural: str, short: str, properties: dict[str, Document], *, namespaced: bool) -> Document:
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower(), "shortNames": [short]}
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": fields(metadata={"type": "object"}, **properties)},
    }
    scope = "Namespaced" if namespaced else "Cluster"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": scope, "versions": [version]},
    }


DEFINITIONS = (
    _define(
        *("EgressGateway", "egressgateways", "egw"),
        {
            "spec": fields(clusterDefault=FLAG, ippools=POOLS, nodeSelector=fields(policy=TEXT, selector=ANYTHING)),
            "status": fields(
                nodeList={"type": "array", "items": NODE},
                ipUsage=fields(ipv4Total=NUMBER, ipv4Free=NUMBER, ipv6Total=NUMBER, ipv6Free=NUMBER),
            ),
        },
        namespaced=False,
    ),
    _define("EgressPolicy", "egresspolicies", "egp", _policy(), namespaced=True),
    _define(
        "EgressClusterPolicy", "egressclusterpolicies", "egcp", _policy(namespaceSelector=ANYTHING), namespaced=False
    ),
    _define("EgressEndpointSlice", "egressendpointslices", "egep", ENDPOINTS, namespaced=True),
    _define("EgressClusterEndpointSlice", "egressclusterendpointslices", "egcep", ENDPOINTS, namespaced=False),
    _define(
        *("EgressTunnel", "egresstunnels", "egt"),
        {
            "spec": fields(),
            "status": fields(
                tunnel=fields(ipv4=TEXT, ipv6=TEXT, mac=TEXT, parent=fields(name=TEXT, ipv4=TEXT, ipv6=TEXT)),
                phase=TEXT,
                mark=TEXT,
                lastHeartbeatTime={"type": "string", "format": "date-time"},
            ),
        },
        namespaced=False,
    ),
    _define(
        *("EgressClusterInfo", "egressclusterinfos", "egci"),
        {
            "spec": fields(autoDetect=fields(clusterIP=FLAG, nodeIP=FLAG, podCidrMode=TEXT), extraCidr=TEXTS),
            "status": ANYTHING,
        },
        namespaced=False,
    ),
)
