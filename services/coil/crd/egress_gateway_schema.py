"""The CRD of EgressGateway as a document: floating addresses, and the nodes that may carry them."""

from coil.crd.definition import AGE, RULES, Document, column, define, object_schema, observed_generation_schema
from coil.crd.egress_gateway import EGRESS_GATEWAYS, AddressPolicy, FailPolicy, NodePolicy, Sharing
from coil.crd.eip_rule import NODE_SELECTOR_RULES
from coil.crd.field_schema import (
    IPV4,
    IPV4_LENGTH,
    IPV6,
    IPV6_LENGTH,
    address_schema,
    condition_path,
    conditions_schema,
    count_schema,
    phase_schema,
    selector_schema,
)
from coil.crd.names import SHARE_LIMIT

MAX_RANGES = 1024
_DEFAULT_EIP = "The address of policies with the allocatorPolicy default. If empty, the first address of the pool."
_NODE_POLICY_LENGTH = 63
_NODE_NAME_LENGTH = 253
MAX_PREFERENCES = 1024


def egress_gateway_definition() -> Document:
    ranges = object_schema(
        "The floating addresses (EIPs). Without any, the gateway serves policies with useNodeIP only.",
        {
            "policy": {
                "type": "string",
                "enum": [str(policy) for policy in AddressPolicy],
                "default": str(AddressPolicy.RANDOM),
                "description": "How a policy's address is chosen. Random: any that it may share, or one that nobody "
                "has. PreferUnused: one that nobody has. Limit: the same until so many policies have it.",
            },
            "limit": _limit("Policies that share an address under the policy Limit."),
            "ipv4": _ranges(4, "IPv4 addresses. Where there are both families, they have equally many."),
            "ipv6": _ranges(6, "IPv6 addresses. Where there are both families, they have equally many."),
        },
    )
    pools = object_schema(
        "Floating addresses, as egressgateway 0.6 has them; they count beside ranges.",
        {
            "ipv4": _pool(4, "IPv4 addresses. Where there are both families, they have equally many."),
            "ipv6": _pool(6, "IPv6 addresses. Where there are both families, they have equally many."),
            "ipv4DefaultEIP": address_schema(4, _DEFAULT_EIP),
            "ipv6DefaultEIP": address_schema(6, _DEFAULT_EIP),
        },
    )
    nodes = object_schema(
        "The nodes that may carry the addresses.",
        {
            "selector": selector_schema("Selects nodes by their labels; not empty.") | {RULES: NODE_SELECTOR_RULES},
            "policy": {
                "type": "string",
                "maxLength": _NODE_POLICY_LENGTH,
                "default": str(NodePolicy.AVERAGE),
                "description": "How a policy's node is chosen. AverageSelection (also AverageSelecton): the one that "
                "carries the fewest. MinimumNodes: the same as long as possible. Limit: the same for so many. "
                "Anything else, which egressgateway accepts, counts as AverageSelection.",
            },
            "limit": _limit("Policies that a node serves under the policy Limit."),
            "preferredNodes": {
                "type": "array",
                "maxItems": MAX_PREFERENCES,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["eip"],
                "description": "Where addresses are to be, while these nodes can carry them. To move one, add it here.",
                "items": object_schema(
                    "An address, with its partner of the other family, and its node.",
                    {
                        "eip": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": IPV6_LENGTH,
                            "pattern": rf"^({IPV4}|{IPV6})$",
                            "description": "An IPv4 or IPv6 address of the gateway.",
                        },
                        "node": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": _NODE_NAME_LENGTH,
                            "description": "Name of a Node that the selector selects.",
                        },
                    },
                    required=("eip", "node"),
                ),
            },
        },
        required=("selector",),
    )
    spec = object_schema(
        "What the gateway consists of, and who may use it.",
        {
            "clusterDefault": {
                "type": "boolean",
                "description": "Whether it serves policies that name no gateway, where their namespace names none, "
                "either. At most one EgressGateway.",
            },
            "ranges": ranges,
            "ippools": pools,
            "nodeSelector": nodes,
            "sharing": {
                "type": "string",
                "enum": [str(sharing) for sharing in Sharing],
                "description": "Whose policies may have the same address. Namespace: those of one namespace; where no "
                "address is left, policies of other namespaces get none. Any: all. If absent, Any with ippools, and "
                "else Namespace.",
            },
            "allowedNamespaces": selector_schema(
                "Namespaces, by their labels, whose policies may use the gateway. All if absent."
            ),
            "failPolicy": {
                "type": "string",
                "enum": [str(policy) for policy in FailPolicy],
                "default": str(FailPolicy.CLOSED),
                "description": "What becomes of a policy's traffic while no node can carry it. Closed: it is dropped. "
                "Open: it leaves from its own node, with that node's address.",
            },
            "unservedFamily": {
                "type": "string",
                "enum": [str(policy) for policy in FailPolicy],
                "description": "What becomes of a policy's traffic of a family of which it has no address, such as "
                "IPv6 where the ranges are IPv4. Closed: it is dropped. Open: the policy is not about it. As "
                "failPolicy if absent.",
            },
        },
        required=("nodeSelector",),
    )
    return define(
        EGRESS_GATEWAYS,
        "Floating egress addresses (EIPs), and the nodes that may carry them.",
        {"spec": spec, "status": _gateway_status()},
        required=("spec",),
        columns=[
            column("Nodes", ".spec.nodeSelector.policy", "How nodes are chosen"),
            column("IPv4 Total", ".status.ipUsage.ipv4Total", "IPv4 addresses of the ranges", type_="integer"),
            column("IPv4 Free", ".status.ipUsage.ipv4Free", "Those that no policy has", type_="integer"),
            column("IPv6 Total", ".status.ipUsage.ipv6Total", "IPv6 addresses of the ranges", type_="integer"),
            column("IPv6 Free", ".status.ipUsage.ipv6Free", "Those that no policy has", type_="integer"),
            column("Ready", condition_path("Ready", "status"), "Whether a node can carry addresses"),
            AGE,
            column("Reason", condition_path("Ready", "reason"), "Why it is ready or not") | {"priority": 1},
            column("Fail Policy", ".spec.failPolicy", "What becomes of traffic without a node") | {"priority": 1},
        ],
        subresources={"status": {}},
        short_name="egw",
    )


def _gateway_status() -> Document:
    eip = object_schema(
        "An address, or a pair of both families. Without any, the node's own address (useNodeIP).",
        {
            "ipv4": address_schema(4, "The IPv4 address."),
            "ipv6": address_schema(6, "The IPv6 address."),
            "policies": {
                "type": "array",
                "description": "Policies whose traffic leaves with it.",
                "items": object_schema(
                    "An EgressGatewayPolicy.",
                    {
                        "namespace": {"type": "string", "description": "Its namespace."},
                        "name": {"type": "string", "description": "Its name."},
                    },
                    required=("namespace", "name"),
                ),
            },
            "leaving": count_schema(
                "Revision of this status in which it was decided that it leaves the node; 0: none."
            ),
        },
    )
    node = object_schema(
        "A node that the selector selects.",
        {
            "name": {"type": "string", "minLength": 1, "description": "Name of the Node."},
            "status": phase_schema("Phase of the node's EgressTunnel."),
            "term": count_schema("Term of the node's lease for which the addresses were decided."),
            "eips": {"type": "array", "description": "Addresses on the node.", "items": eip},
        },
        required=("name",),
    )
    usage = object_schema(
        "How many addresses there are. Counts end at 2^63 - 1.",
        {
            "ipv4Total": count_schema("IPv4 addresses of the ranges."),
            "ipv4Free": count_schema("Those that no policy has."),
            "ipv6Total": count_schema("IPv6 addresses of the ranges."),
            "ipv6Free": count_schema("Those that no policy has."),
        },
    )
    return object_schema(
        "Which node carries which address, for whom.",
        {
            "observedGeneration": observed_generation_schema("gateway"),
            "revision": count_schema("Counts the changes of nodeList."),
            "nodeList": {
                "type": "array",
                "description": "The nodes that the selector selects, and those that still carry an address.",
                "items": node,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
            "ipUsage": usage,
            "policyUsage": object_schema(
                "Number of policies that the gateway serves, and its maximum. It refuses further policies.",
                {
                    "served": count_schema("Policies that have an address of the gateway, or use that of a node."),
                    "limit": count_schema("Flag --policies-per-gateway of coil-egress-controller."),
                },
            ),
            "conditions": conditions_schema(
                "State of the gateway.",
                "Ready: some node can carry addresses. Exhausted: a policy asks for an address, and none is left.",
            ),
        },
    )


def _limit(description: str) -> Document:
    return {
        "type": "integer",
        "format": "int32",
        "minimum": 1,
        "default": SHARE_LIMIT,
        "description": description,
    }


def _ranges(family: int, description: str) -> Document:
    return _pool(family, description) | {"x-kubernetes-list-type": "set"}


def _pool(family: int, description: str) -> Document:
    address, length, bits = (IPV4, IPV4_LENGTH, 2) if family == 4 else (IPV6, IPV6_LENGTH, 3)
    example = "10.6.0.1, 10.6.0.1-10.6.0.10 or 10.6.0.0/26" if family == 4 else "fd00::1, fd00::1-fd00::a or fd00::/122"
    return {
        "type": "array",
        "maxItems": MAX_RANGES,
        "description": description,
        "items": {
            "type": "string",
            "maxLength": 2 * length + len("-"),
            "pattern": rf"^({address}(-{address}|/[0-9]{{1,{bits}}})?)?$",
            "description": f"An address, the first and the last of several, or a network: {example}.",
        },
    }
