"""The schema of a PodTemplateSpec, for the CRD of Egress: made from the client library's description of the API.

Only `integration.generate` asks for it; no process ever loads the library's models. Types and required fields are
checked by the API server when an Egress is applied, and a mistake is not found out only when its Deployment is made.
Fields that are newer than the library are kept, not pruned. There are no descriptions: with them the CRD would not fit
client-side apply.

What the models do not say stands here: which texts are quantities, and which objects may be a number or a text.
"""

import re
from typing import Any

from kubernetes_asyncio.client import Configuration, models

Schema = dict[str, Any]

# kube-apiserver's own pattern of resource.Quantity.
_QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_INT_OR_STRING: Schema = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
_QUANTITY = _INT_OR_STRING | {"pattern": _QUANTITY_PATTERN}

_QUANTITY_MAPS = {
    ("V1ResourceRequirements", "limits"),
    ("V1ResourceRequirements", "requests"),
    ("V1VolumeResourceRequirements", "limits"),
    ("V1VolumeResourceRequirements", "requests"),
    ("V1PodSpec", "overhead"),
}
_QUANTITIES = {("V1EmptyDirVolumeSource", "sizeLimit"), ("V1ResourceFieldSelector", "divisor")}
_INTS_OR_STRINGS = {("V1HTTPGetAction", "port"), ("V1TCPSocketAction", "port")}

_SCALARS: dict[str, Schema] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
}
_LIST = re.compile(r"list\[(.+)\]")
_MAP = re.compile(r"dict\(str, (.+)\)")


def pod_template_schema() -> Schema:
    """A structural schema. Raises KeyError when the library has a type that nobody has looked at."""
    spec = _model("V1PodSpec")
    # A template without containers gets one from the webhook, or from the controller.
    required = [name for name in spec.pop("required") if name != "containers"]
    # No template may have them.
    del spec["properties"]["ephemeralContainers"]
    return _object({"metadata": _template_metadata(), "spec": spec | ({"required": required} if required else {})})


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "x-kubernetes-preserve-unknown-fields": True}


def _template_metadata() -> Schema:
    """Of all metadata, what has a meaning in a template."""
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    return _object({"annotations": texts, "labels": texts})


def _model(name: str) -> Schema:
    if name == "V1ObjectMeta":
        return _template_metadata()
    model = getattr(models, name)
    fields = {model.attribute_map[field]: kind for field, kind in model.openapi_types.items()}
    schema = _object({field: _field(name, field, kind) for field, kind in sorted(fields.items())})
    if required := _required(model):
        schema["required"] = required
    return schema


def _field(model: str, field: str, kind: str) -> Schema:
    place = model, field
    if place in _QUANTITIES:
        return dict(_QUANTITY)
    if place in _QUANTITY_MAPS:
        return {"type": "object", "additionalProperties": dict(_QUANTITY)}
    if place in _INTS_OR_STRINGS:
        return dict(_INT_OR_STRING)
    return _type(kind)


def _type(kind: str) -> Schema:
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if found := _LIST.fullmatch(kind):
        return {"type": "array", "items": _type(found[1])}
    if found := _MAP.fullmatch(kind):
        return {"type": "object", "additionalProperties": _type(found[1])}
    if kind.startswith(("V1", "CoreV1")):
        return _model(kind)
    raise KeyError(f"a field of type {kind}")


def _required(model: Any) -> list[str]:
    """The fields that the model's own validation asks for: its setters refuse None."""
    empty = model(local_vars_configuration=_unchecked())
    empty.local_vars_configuration = Configuration()
    required = []
    for field, name in model.attribute_map.items():
        try:
            setattr(empty, field, None)
        except ValueError:
            required.append(name)
    return sorted(required)


def _unchecked() -> Configuration:
    configuration = Configuration()
    configuration.client_side_validation = False
    return configuration
