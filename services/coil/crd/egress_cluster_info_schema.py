"""The CRD of EgressClusterInfo as a document: names, fields and defaults are egressgateway 0.6's."""

from coil.crd.definition import AGE, Document, column, define, object_schema
from coil.crd.egress_cluster_info import EGRESS_CLUSTER_INFOS

MAX_NETWORKS = 1024
_NETWORK_LENGTH = 43
_MODE_LENGTH = 63


def egress_cluster_info_definition() -> Document:
    detect = object_schema(
        "What is to be found, in egressgateway. Ignored: all of it is found.",
        {
            "clusterIP": {"type": "boolean", "default": True, "description": "Networks of Services."},
            "nodeIP": {"type": "boolean", "default": True, "description": "Addresses of Nodes."},
            "podCidrMode": {
                "type": "string",
                "maxLength": _MODE_LENGTH,
                "default": "auto",
                "description": "Whose networks of pods: those of k8s, of calico, or auto.",
            },
        },
    )
    spec = object_schema(
        "Networks of the cluster.",
        {
            "autoDetect": detect,
            "extraCidr": _networks("Networks, or single addresses, that no object names.") | {"maxItems": MAX_NETWORKS},
        },
    )
    pair = {"ipv4": _networks("IPv4 networks."), "ipv6": _networks("IPv6 networks.")}
    status = object_schema(
        "What was found.",
        {
            "clusterIP": object_schema("Networks of Services.", pair),
            "podCIDR": {
                "type": "object",
                "description": "Networks of pods, by the name of their pool.",
                "additionalProperties": object_schema("Networks of a pool.", pair),
            },
            "extraCidr": _networks("Networks of extraCidr that count."),
        },
    )
    return define(
        EGRESS_CLUSTER_INFOS,
        "As egressgateway 0.6 has it: networks of the cluster, to which policies without destinations do not apply. "
        "Only the one named default is used.",
        {"spec": spec, "status": status},
        required=(),
        columns=[column("Extra", ".spec.extraCidr", "Networks that no object names"), AGE],
        subresources={"status": {}},
        short_name="egci",
    )


def _networks(description: str) -> Document:
    return {
        "type": "array",
        "description": description,
        "items": {"type": "string", "maxLength": _NETWORK_LENGTH, "description": "A network or an address."},
    }
