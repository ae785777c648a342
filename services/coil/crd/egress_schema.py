"""The CRDs of Egress and EgressClientSlice as documents: what their schemas refuse before any webhook is asked.

Names, defaults and bounds are those of Coil v2. The router pods' template is the API server's own vocabulary: its
schema comes in as an argument, without descriptions, so that the definition stays small enough for client-side apply,
whose annotation holds 256 KiB. What needs arithmetic is `coil.crd.egress_validation`'s business.
"""

from collections.abc import Mapping

from coil.crd.definition import (
    AGE,
    RULES,
    Document,
    cel_rule,
    column,
    define,
    label_path,
    object_schema,
    observed_generation_schema,
)
from coil.crd.egress import DEFAULT_SESSION_AFFINITY, EGRESSES
from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES, MAX_ADDRESSES
from coil.crd.field_schema import selector_schema
from coil.crd.names import LABEL_EGRESS

MAX_DESTINATIONS = 4096
"""Each is a route in every client."""
MAX_AFFINITY_SECONDS = 86400
"""The API server's limit for a Service."""

_CIDR = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/[0-9]{1,3})$"
_ADDRESS = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-f:]*:[0-9a-f:]*)$"
_CIDR_LENGTH = 49  # ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128
_COUNT_OR_PERCENTAGE: Document = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
}
_ONE_BOUND = cel_rule(
    "!(has(self.minAvailable) && has(self.maxUnavailable))", "must not have both minAvailable and maxUnavailable"
)


def egress_definition(pod_template: Document) -> Document:
    """`pod_template` is the schema of a PodTemplateSpec."""
    about = "What the gateway is for, and its router pods."
    spec = object_schema(about, _spec(pod_template), required=("destinations",))
    status = object_schema(
        "What the scale subresource shows, and what router pods do not serve.",
        {
            "observedGeneration": observed_generation_schema("Egress"),
            "replicas": {"type": "integer", "format": "int32", "description": "Router pods that there are."},
            "selector": {"type": "string", "description": "Label selector of the router pods."},
            "clusterNetworks": {
                "type": "array",
                "description": "Networks of the cluster that are not private. Where a destination contains one, "
                "clients reach it without the Egress, and router pods do not forward to it.",
                "items": {"type": "string", "description": "A network in CIDR notation."},
            },
        },
    )
    return define(
        EGRESSES,
        "A gateway for traffic that leaves the cluster: router pods behind a Service, which give packets their own "
        "address, and the destinations that client pods send through them.",
        {"spec": spec, "status": status},
        required=("spec",),
        columns=[
            column("Replicas", ".spec.replicas", "Router pods that there are to be", type_="integer"),
            column("Current", ".status.replicas", "Router pods that there are", type_="integer"),
            column("Destinations", ".spec.destinations", "Networks that clients send through the gateway"),
            AGE,
        ],
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    )


def egress_client_slice_definition() -> Document:
    return define(
        EGRESS_CLIENT_SLICES,
        "Addresses of pods of one node that are clients of an Egress in the same namespace, which its label "
        f"{LABEL_EGRESS} names. Written by coild and coil-egress-controller for the Egress's router pods.",
        {
            "nodeName": {
                "type": "string",
                "minLength": 1,
                "maxLength": 253,
                "description": "Node that the pods are on. Immutable.",
                RULES: [cel_rule("self == oldSelf", "must not change")],
            },
            "addresses": {
                "type": "array",
                "maxItems": MAX_ADDRESSES,
                "description": "Addresses of the pods, each once.",
                "items": {"type": "string", "minLength": 2, "maxLength": 39, "pattern": _ADDRESS},
                "x-kubernetes-list-type": "set",
            },
            "pods": {
                "type": "integer",
                "format": "int32",
                "minimum": 0,
                "description": "How many pods have these addresses.",
            },
        },
        required=("nodeName",),
        columns=[
            column("Egress", label_path(LABEL_EGRESS), "Egress of the clients"),
            column("Node", ".nodeName", "Node that the clients are on"),
            column("Addresses", ".addresses", "Addresses of the clients"),
            AGE,
        ],
    )


def _spec(pod_template: Document) -> Mapping[str, Document]:
    return {
        "destinations": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_DESTINATIONS,
            "description": "Networks that clients send through the gateway, in CIDR notation.",
            "items": {
                "type": "string",
                "maxLength": _CIDR_LENGTH,
                "pattern": _CIDR,
                "description": "A network of either family, such as 0.0.0.0/0 or fd01:203::/32.",
            },
        },
        "replicas": {
            "type": "integer",
            "format": "int32",
            "minimum": 1,
            "default": 1,
            "description": "How many router pods there are to be.",
        },
        "strategy": _strategy(),
        "template": pod_template | {"description": "What the router pods are to have beside what they need."},
        "sessionAffinity": {
            "type": "string",
            "enum": ["ClientIP", "None"],
            "default": DEFAULT_SESSION_AFFINITY,
            "description": "ClientIP: all of a client's traffic goes to one router pod, as TCP through NAT needs it.",
        },
        "sessionAffinityConfig": object_schema(
            "How the affinity of sessions works.",
            {
                "clientIP": object_schema(
                    "For the affinity ClientIP.",
                    {
                        "timeoutSeconds": {
                            "type": "integer",
                            "format": "int32",
                            "minimum": 1,
                            "maximum": MAX_AFFINITY_SECONDS,
                            "description": "How long a client that sends nothing keeps its router pod; 10800 if unset.",
                        }
                    },
                )
            },
        ),
        "fouSourcePortAuto": {
            "type": "boolean",
            "default": False,
            "description": "Whether each flow has a source port of its own in the tunnel, or all have the tunnel's.",
        },
        "podDisruptionBudget": object_schema(
            "Bounds how many router pods may be evicted at once. Either of both.",
            {
                "minAvailable": _COUNT_OR_PERCENTAGE | {"description": "So many stay: a number or a percentage."},
                "maxUnavailable": _COUNT_OR_PERCENTAGE | {"description": "So many may go: a number or a percentage."},
            },
        )
        | {RULES: [_ONE_BOUND]},
        "allowedNamespaces": selector_schema(
            "Namespaces, by their labels, whose pods the Egress serves. All if absent. Pods of others that name it do "
            "not start, and get an Event."
        ),
    }


def _strategy() -> Document:
    return object_schema(
        "How router pods are replaced by new ones.",
        {
            "type": {
                "type": "string",
                "enum": ["Recreate", "RollingUpdate"],
                "description": "Recreate: the old ones go first.",
            },
            "rollingUpdate": object_schema(
                "For the type RollingUpdate.",
                {
                    "maxSurge": _COUNT_OR_PERCENTAGE | {"description": "So many more than wanted for a while."},
                    "maxUnavailable": _COUNT_OR_PERCENTAGE | {"description": "So many fewer than wanted for a while."},
                },
            ),
        },
    )
