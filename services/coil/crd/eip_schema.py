"""The CRDs of the EIP gateway's kinds as documents: what their schemas refuse before any webhook is asked.

Names and defaults are those of the Egress IP proposal, whose sample manifests fit: an empty address is none. What
needs arithmetic on addresses or other objects is `coil.crd.eip_validation`'s business. Those that people write have
modules of their own.
"""

from collections.abc import Iterator

from coil.crd.definition import AGE, Document, column, define, object_schema
from coil.crd.egress_cluster_info_schema import egress_cluster_info_definition
from coil.crd.egress_gateway_policy import EGRESS_ENDPOINT_SLICES
from coil.crd.egress_gateway_policy_schema import egress_gateway_policy_definition
from coil.crd.egress_gateway_schema import egress_gateway_definition
from coil.crd.egress_policy_schema import egress_cluster_policy_definition, egress_policy_definition
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.field_schema import IPV4, IPV6, address_schema, conditions_schema, phase_schema

MAX_ENDPOINTS = 1000
"""Of one slice; how many it gets is a setting of the controller."""


def eip_definitions() -> Iterator[Document]:
    yield _tunnel_definition()
    yield egress_gateway_definition()
    yield egress_gateway_policy_definition()
    yield _slice_definition()
    yield egress_policy_definition()
    yield egress_cluster_policy_definition()
    yield egress_cluster_info_definition()


def _tunnel_definition() -> Document:
    parent = object_schema(
        "The link that carries the tunnel.",
        {
            "name": {"type": "string", "description": "Name of the link, such as eth0."},
            "ipv4": _interface(4, "Its IPv4 address with the prefix length, such as 10.6.1.21/16."),
            "ipv6": _interface(6, "Its IPv6 address with the prefix length, such as fd00::21/112."),
        },
    )
    tunnel = object_schema(
        "The node's end of the tunnels to all other nodes.",
        {
            "ipv4": address_schema(4, "IPv4 address inside the tunnels."),
            "ipv6": address_schema(6, "IPv6 address inside the tunnels."),
            "mac": {
                "type": "string",
                "pattern": "^([0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5})?$",
                "description": "Hardware address of the node's end.",
            },
            "publicKey": {
                "type": "string",
                "pattern": "^([0-9A-Za-z+/]{43}=)?$",
                "description": "Key of the node's WireGuard, where the tunnels are encrypted.",
            },
            "parent": parent,
        },
    )
    status = object_schema(
        "What controller and agent say of it.",
        {
            "tunnel": tunnel,
            "phase": phase_schema("How far it is."),
            "mark": {
                "type": "string",
                "pattern": "^(0x26[0-9a-fA-F]{4}00)?$",
                "description": "What packets are marked with that are to go to this node, such as 0x26000100.",
            },
            "lastHeartbeatTime": {
                "type": "string",
                "format": "date-time",
                "description": "When the node's agent last said something.",
            },
            "nodeAddresses": _texts("Addresses of the node, which are no egress traffic's destination."),
            "podCIDRs": _texts("Networks of the node's pods, which are no egress traffic's destination."),
            "conditions": conditions_schema(
                "What the node's agent has found.",
                "PolicyTrafficDropped: a packet filter of another program drops what policies send. PoliciesBypassed: "
                "the data plane of another program carries what pods send past policies, or (Unknown) may do so. "
                "PodsOverPolicyLimit: more policies select one of the node's pods than apply to a pod.",
            ),
        },
    )
    return define(
        EGRESS_TUNNELS,
        "One node's end of the tunnels that carry egress traffic to gateway nodes. It has the name of the Node; "
        "nobody configures it.",
        {"status": status},
        required=(),
        columns=[
            column("Tunnel IPv4", ".status.tunnel.ipv4", "IPv4 address inside the tunnels"),
            column("Tunnel IPv6", ".status.tunnel.ipv6", "IPv6 address inside the tunnels"),
            column("Mark", ".status.mark", "Mark of packets that are to go to this node"),
            column("Phase", ".status.phase", "How far it is"),
            AGE,
            column("MAC", ".status.tunnel.mac", "Hardware address of the node's end") | {"priority": 1},
            column("Parent", ".status.tunnel.parent.name", "Link that carries the tunnel") | {"priority": 1},
        ],
        subresources={"status": {}},
        short_name="egt",
    )


def _slice_definition() -> Document:
    endpoint = object_schema(
        "A pod that the policy selects.",
        {
            "podName": {"type": "string", "minLength": 1, "description": "Name of the pod."},
            "ipv4List": _addresses(4, "Its IPv4 addresses."),
            "ipv6List": _addresses(6, "Its IPv6 addresses."),
            "nodeName": {"type": "string", "description": "Node that it runs on."},
            "uuid": {"type": "string", "description": "UID of the pod."},
        },
        required=("podName",),
    )
    return define(
        EGRESS_ENDPOINT_SLICES,
        "Some of the pods that an EgressGatewayPolicy selects, written by the controller. Its label "
        "egressgateway.spidernet.io/egressgatewaypolicy names the policy.",
        {
            "endpoints": {
                "type": "array",
                "maxItems": MAX_ENDPOINTS,
                "description": "The pods.",
                "items": endpoint,
            },
        },
        required=(),
        columns=[
            column(
                "Policy",
                r".metadata.labels['egressgateway\.spidernet\.io/egressgatewaypolicy']",
                "Policy that selects the pods",
            ),
            AGE,
        ],
        short_name="egep",
    )


def _interface(family: int, description: str) -> Document:
    address, bits = (IPV4, 2) if family == 4 else (IPV6, 3)
    return {"type": "string", "pattern": rf"^({address}/[0-9]{{1,{bits}}})?$", "description": description}


def _texts(description: str) -> Document:
    return {
        "type": "array",
        "description": description,
        "items": {"type": "string", "description": "An address or a network."},
    }


def _addresses(family: int, description: str) -> Document:
    return {"type": "array", "description": description, "items": address_schema(family, "An address.")}
