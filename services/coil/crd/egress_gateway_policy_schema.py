"""The CRD of EgressGatewayPolicy as a document: whose traffic leaves the cluster with which address, and for where.

An absent field and an empty one mean the same; the rules see to it, as not every API server takes an empty text for a
default.
"""

from coil.crd.definition import AGE, RULES, Document, column, define, object_schema, observed_generation_schema
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, AllocatorPolicy
from coil.crd.eip_rule import APPLIED_TO_RULES, EGRESS_IP_RULES, IMMUTABLE_RULES
from coil.crd.field_schema import address_schema, cidrs_schema, condition_path, conditions_schema, selector_schema

MAX_POD_SUBNETS = 256
MAX_DEST_SUBNETS = 1024

_NAME_LENGTH = 253
_OPTIONAL_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"


def policy_spec_schema(**applied_to: Document) -> Document:
    """The spec of this kind, and of those that it stands for; `applied_to` are their fields beside this kind's."""
    egress_ip = object_schema(
        "The address to leave with. Immutable. Without any of it, one that the gateway chooses.",
        {
            "ipv4": address_schema(4, "An IPv4 address of the gateway's ranges."),
            "ipv6": address_schema(6, "An IPv6 address of the gateway's ranges."),
            "useNodeIP": {
                "type": "boolean",
                "description": "Leave with the gateway node's own address; excludes the other two.",
            },
            "allocatorPolicy": {
                "type": "string",
                "enum": ["", *map(str, AllocatorPolicy)],
                "description": "Without an address. default: the gateway's default EIP (ippools.ipv4DefaultEIP, "
                "ippools.ipv6DefaultEIP), if it has ippools. rr: an address that no policy has. Otherwise as the "
                "gateway's ranges.policy says.",
            },
        },
    )
    applied = object_schema(
        "Whose traffic it is about: one of the two.",
        {
            "podSelector": selector_schema("Selects pods of the policy's namespace by their labels."),
            "podSubnet": cidrs_schema(
                "Selects pods by their addresses, of whatever namespace they are: it takes the right to `use` "
                "egressgatewaypolicies/podsubnet.",
                most=MAX_POD_SUBNETS,
            ),
            **applied_to,
        },
    )
    return object_schema(
        "Whose traffic leaves the cluster by which gateway, with which address, and for where.",
        {
            "egressGatewayName": {
                "type": "string",
                "maxLength": _NAME_LENGTH,
                "pattern": _OPTIONAL_NAME,
                "description": "The EgressGateway. Immutable. If empty, the one that the namespace's label "
                "egressgateway.spidernet.io/default names, else the one named default.",
            },
            "egressIP": egress_ip | {RULES: EGRESS_IP_RULES},
            "appliedTo": applied | {RULES: APPLIED_TO_RULES},
            "destSubnet": cidrs_schema(
                "Destinations that it is about. If empty, everything but the cluster's own addresses.",
                most=MAX_DEST_SUBNETS,
            ),
            "priority": {
                "type": "integer",
                "format": "int32",
                "default": 0,
                "description": "Of policies that concern the same packet the one with the highest counts, then the "
                "first by namespace and name.",
            },
        },
        required=("appliedTo",),
    ) | {RULES: IMMUTABLE_RULES}


def egress_gateway_policy_definition() -> Document:
    status = object_schema(
        "What serves the policy.",
        {
            "observedGeneration": observed_generation_schema("policy"),
            "egressGatewayName": {"type": "string", "description": "The gateway."},
            "eip": object_schema(
                "Its address. It stays the policy's while no node can carry it. Empty with useNodeIP.",
                {
                    "ipv4": address_schema(4, "The IPv4 address."),
                    "ipv6": address_schema(6, "The IPv6 address."),
                },
            ),
            "node": {"type": "string", "description": "The node that carries it; empty while none can."},
            "conditions": conditions_schema(
                "State of the policy.",
                "Ready: a node carries the policy's traffic. PodNetworksKnown: False where one of its pods has an "
                "address in no known network of the cluster.",
            ),
        },
    )
    return define(
        EGRESS_GATEWAY_POLICIES,
        "Has the traffic of some pods leave the cluster by the nodes of an EgressGateway, with an address of its own.",
        {"spec": policy_spec_schema(), "status": status},
        required=("spec",),
        columns=[
            column("Gateway", ".status.egressGatewayName", "Gateway that serves it"),
            column("IPv4", ".status.eip.ipv4", "IPv4 address that its traffic leaves with"),
            column("IPv6", ".status.eip.ipv6", "IPv6 address that its traffic leaves with"),
            column("Node", ".status.node", "Node that its traffic leaves from"),
            column("Ready", condition_path("Ready", "status"), "Whether a node carries its traffic"),
            AGE,
            column("Reason", condition_path("Ready", "reason"), "Why it is ready or not") | {"priority": 1},
            column("Priority", ".spec.priority", "Among policies of the same traffic", type_="integer")
            | {"priority": 1},
        ],
        subresources={"status": {}},
    )
