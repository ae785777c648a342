"""The frame of a CustomResourceDefinition document (apiextensions.k8s.io/v1): what every kind's has."""

from collections.abc import Mapping, Sequence
from typing import Any

from coil.crd.resource import Resource

Document = dict[str, Any]

RULES = "x-kubernetes-validations"

Rule = dict[str, Any]


def cel_rule(expression: str, message: str, *, field: str = "", told: str = "") -> Rule:
    """An entry of `x-kubernetes-validations`.

    `message` is told at the value that has the rule, or at its `field`; `told` is an expression for a message that
    names what was found. Kubernetes 1.25 and newer judge rules, 1.28 and newer know the field.
    """
    rule = {"rule": expression, "message": message}
    if told:
        rule["messageExpression"] = told
    if field:
        rule["fieldPath"] = f".{field}"
    return rule


AGE = {
    "name": "Age",
    "type": "date",
    "jsonPath": ".metadata.creationTimestamp",
    "description": "Time since creation",
}


def define(
    resource: Resource[Any],
    description: str,
    properties: Mapping[str, Document],
    *,
    required: Sequence[str],
    columns: Sequence[Document],
    subresources: Mapping[str, Document] | None = None,
    rules: Sequence[Rule] = (),
    short_name: str = "",
) -> Document:
    """`rules` are those of the whole object."""
    own = {
        "apiVersion": {
            "type": "string",
            "description": "Version of this representation, with its API group.",
        },
        "kind": {"type": "string", "description": "What this object represents."},
        "metadata": {"type": "object"},
    }
    schema = object_schema(description, own | dict(properties), required=required)
    if rules:
        schema[RULES] = list(rules)
    version: Document = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": list(columns),
        "schema": {"openAPIV3Schema": schema},
    }
    if subresources is not None:
        version["subresources"] = dict(subresources)
    names: Document = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
    }
    if short_name:
        names["shortNames"] = [short_name]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [version],
        },
    }


def object_schema(description: str, properties: Mapping[str, Document], *, required: Sequence[str] = ()) -> Document:
    schema: Document = {"type": "object", "description": description, "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    return schema


def observed_generation_schema(kind: str) -> Document:
    """What `kubectl wait` compares with the object's generation before it believes a condition."""
    return {
        "type": "integer",
        "format": "int64",
        "description": f"Generation of the {kind} that this status speaks of.",
    }


def column(name: str, path: str, description: str, *, type_: str = "string") -> Document:
    return {"name": name, "type": type_, "jsonPath": path, "description": description}


def label_path(label: str) -> str:
    """The path of a label, for a column."""
    return ".metadata.labels['{}']".format(label.replace(".", r"\."))
