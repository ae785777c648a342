"""Schemas of the fields that several of the EIP gateway's kinds have: selectors, conditions, addresses as texts."""

from coil.crd.definition import RULES, Document, object_schema
from coil.crd.egress_tunnel import TunnelPhase
from coil.crd.eip_rule import REQUIREMENT_RULES
from coil.crd.names import LABEL_VALUE_LENGTH

IPV4 = r"[0-9]{1,3}(\.[0-9]{1,3}){3}"
IPV6 = r"[0-9a-fA-F:.]*:[0-9a-fA-F:.]*"
"""What looks like an address; `coil.crd.eip_validation` knows what is one."""
IPV4_LENGTH = 15
IPV6_LENGTH = 45  # ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255
CIDR = rf"^({IPV4}/[0-9]{{1,2}}|{IPV6}/[0-9]{{1,3}})$"
CIDR_LENGTH = IPV6_LENGTH + len("/128")

_KEY_LENGTH = 253 + len("/") + LABEL_VALUE_LENGTH
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_MOST_LABELS = 64
_MOST_REQUIREMENTS = 32
_MOST_VALUES = 64


def address_schema(family: int, description: str) -> Document:
    """An address of family 4 or 6, or the empty text."""
    pattern, length = (IPV4, IPV4_LENGTH) if family == 4 else (IPV6, IPV6_LENGTH)
    return {"type": "string", "maxLength": length, "pattern": rf"^({pattern})?$", "description": description}


def cidrs_schema(description: str, *, most: int) -> Document:
    """Networks of either family, none twice."""
    return {
        "type": "array",
        "maxItems": most,
        "description": description,
        "items": {
            "type": "string",
            "maxLength": CIDR_LENGTH,
            "pattern": CIDR,
            "description": "A network of either family in CIDR notation, such as 10.6.1.0/24 or fd00::92/128.",
        },
        "x-kubernetes-list-type": "set",
    }


def selector_schema(description: str) -> Document:
    """metav1.LabelSelector. Two people's halves of one are never merged."""
    value: Document = {"type": "string", "maxLength": LABEL_VALUE_LENGTH, "pattern": _LABEL_VALUE}
    requirement = object_schema(
        "Something that a label must satisfy.",
        {
            "key": {
                "type": "string",
                "minLength": 1,
                "maxLength": _KEY_LENGTH,
                "description": "Key of the label.",
            },
            "operator": {
                "type": "string",
                "maxLength": len("DoesNotExist"),
                "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                "description": "How the label's value relates to the values, or whether there is such a label.",
            },
            "values": {
                "type": "array",
                "maxItems": _MOST_VALUES,
                "description": "For In and NotIn only.",
                "items": value | {"description": "A value of the label."},
            },
        },
        required=("key", "operator"),
    )
    return object_schema(
        description,
        {
            "matchLabels": {
                "type": "object",
                "maxProperties": _MOST_LABELS,
                "description": "Labels that there must be.",
                "additionalProperties": value,
            },
            "matchExpressions": {
                "type": "array",
                "maxItems": _MOST_REQUIREMENTS,
                "description": "Requirements that must all be satisfied.",
                "items": requirement | {RULES: REQUIREMENT_RULES},
            },
        },
    ) | {"x-kubernetes-map-type": "atomic"}


def conditions_schema(description: str, types: str) -> Document:
    """`types` says which there are, and what they mean."""
    condition = object_schema(
        "One aspect of it.",
        {
            "type": {"type": "string", "minLength": 1, "description": types},
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Whether the condition holds.",
            },
            "reason": {"type": "string", "description": "Why, in one word."},
            "message": {"type": "string", "description": "Why, in a sentence for people."},
            "lastProbeTime": {
                "type": "string",
                "format": "date-time",
                "description": "When the condition was last looked at.",
            },
            "lastTransitionTime": {
                "type": "string",
                "format": "date-time",
                "description": "When its status last changed.",
            },
        },
        required=("type", "status"),
    )
    return {
        "type": "array",
        "description": description,
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }


def count_schema(description: str) -> Document:
    return {"type": "integer", "format": "int64", "minimum": 0, "description": description}


def phase_schema(description: str) -> Document:
    """A TunnelPhase, or none yet."""
    return {"type": "string", "enum": ["", *(str(phase) for phase in TunnelPhase)], "description": description}


def condition_path(kind: str, field: str) -> str:
    """For a column."""
    return f'.status.conditions[?(@.type=="{kind}")].{field}'
