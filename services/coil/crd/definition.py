"""The frame of a CustomResourceDefinition document (apiextensions.k8s.io/v1): what every kind's has."""

from collections.abc import Mapping, Sequence
from typing import Any

from coil.crd.resource import Resource

Document = dict[str, Any]

RULES = "x-kubernetes-validations"
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
) -> Document:
    own = {
        "apiVersion": {
            "type": "string",
            "description": "Version of this representation, with its API group.",
        },
        "kind": {"type": "string", "description": "What this object represents."},
        "metadata": {"type": "object"},
    }
    version: Document = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": list(columns),
        "schema": {"openAPIV3Schema": object_schema(description, own | dict(properties), required=required)},
    }
    if subresources is not None:
        version["subresources"] = dict(subresources)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
            },
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [version],
        },
    }


def object_schema(description: str, properties: Mapping[str, Document], *, required: Sequence[str] = ()) -> Document:
    schema: Document = {"type": "object", "description": description, "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    return schema


def column(name: str, path: str, description: str, *, type_: str = "string") -> Document:
    return {"name": name, "type": type_, "jsonPath": path, "description": description}
