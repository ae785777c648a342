"""The CRDs of EgressPolicy and EgressClusterPolicy as documents: names, fields, defaults and columns are egressgateway
0.6's.
"""

from coil.crd.definition import AGE, Document, column, define, object_schema
from coil.crd.egress_gateway_policy import AllocatorPolicy
from coil.crd.egress_gateway_policy_schema import policy_spec_schema
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES
from coil.crd.field_schema import address_schema, condition_path, conditions_schema, selector_schema


def egress_policy_definition() -> Document:
    return define(
        EGRESS_POLICIES,
        "As egressgateway 0.6 has it: has the traffic of some pods of its namespace leave the cluster by an "
        "EgressGateway. An EgressGatewayPolicy of the same name does it.",
        {"spec": _with_defaults(policy_spec_schema()), "status": _status()},
        required=("spec",),
        columns=_columns("egressNode"),
        subresources={"status": {}},
        short_name="egp",
    )


def egress_cluster_policy_definition() -> Document:
    namespaces = selector_schema("Selects namespaces by their labels; all if absent.")
    return define(
        EGRESS_CLUSTER_POLICIES,
        "As egressgateway 0.6 has it: has the traffic of some pods of several namespaces leave the cluster by an "
        "EgressGateway. An EgressGatewayPolicy in each of these namespaces does it.",
        {"spec": _with_defaults(policy_spec_schema(namespaceSelector=namespaces)), "status": _status()},
        required=("spec",),
        columns=_columns("egressTunnel"),
        subresources={"status": {}},
        short_name="egcp",
    )


def _with_defaults(spec: Document) -> Document:
    address = spec["properties"]["egressIP"]
    address["properties"]["allocatorPolicy"]["default"] = str(AllocatorPolicy.DEFAULT)
    address["default"] = {}  # the field's own default is filled in
    return spec


def _status() -> Document:
    eip = object_schema(
        "Its address. Empty with useNodeIP.",
        {"ipv4": address_schema(4, "The IPv4 address."), "ipv6": address_schema(6, "The IPv6 address.")},
    )
    return object_schema(
        "What serves the policy; of several namespaces, in the first that has a node.",
        {
            "eip": eip,
            "node": {"type": "string", "description": "The node that carries it; empty while none can."},
            "conditions": conditions_schema(
                "State of the policy.", "Ready: a node carries its traffic, in all namespaces."
            ),
        },
    )


def _columns(node: str) -> list[Document]:
    return [
        column("Gateway", ".spec.egressGatewayName", "Gateway that it names"),
        column("IPv4", ".status.eip.ipv4", "IPv4 address that it leaves with"),
        column("IPv6", ".status.eip.ipv6", "IPv6 address that it leaves with"),
        column(node, ".status.node", "Node that its traffic leaves from"),
        column("Ready", condition_path("Ready", "status"), "Whether a node carries its traffic"),
        AGE,
    ]
