"""The API server's part in structural schemas: which fields of an object do not fit one, and in what way.

As much of OpenAPI as the chart's own schemas use. A keyword that is not known here fails the test.
"""

import re
from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]

_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
_KNOWN = {
    *("type", "description", "default", "format", "properties", "required", "items", "additionalProperties"),
    *("enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-validations"),
}


def faults(schema: Document, value: Any, path: str = "") -> list[str]:
    """`field: keyword` of each that is broken. Fields that the schema does not know are pruned, not refused."""
    return list(_faults(schema, value, path))


def _faults(schema: Document, value: Any, path: str) -> Iterator[str]:
    assert set(schema) <= _KNOWN, f"{path}: {set(schema) - _KNOWN}"
    kind = _TYPES[schema["type"]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield f"{path}: type"
        return
    for keyword, broken in _checks(schema, value).items():
        if keyword in schema and broken:
            yield f"{path}: {keyword}"
    if isinstance(value, dict):
        yield from (
            f"{path}.{name}".lstrip(".") + ": required" for name in schema.get("required", ()) if name not in value
        )
        for name, child in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inner is not None:
                yield from _faults(inner, child, f"{path}.{name}".lstrip("."))
    if isinstance(value, list):
        for position, child in enumerate(value):
            yield from _faults(schema["items"], child, f"{path}[{position}]")


def _checks(schema: Document, value: Any) -> dict[str, bool]:
    """Whether a value of the right type breaks a keyword."""
    match value:
        case str():
            return {
                "enum": value not in schema.get("enum", ()),
                "pattern": re.search(schema.get("pattern", ""), value) is None,
                "minLength": len(value) < schema.get("minLength", 0),
                "maxLength": len(value) > schema.get("maxLength", 0),
            }
        case int():
            return {"minimum": value < schema.get("minimum", 0), "maximum": value > schema.get("maximum", 0)}
        case list():
            unique = schema.get("x-kubernetes-list-type") == "set"
            return {
                "minItems": len(value) < schema.get("minItems", 0),
                "maxItems": len(value) > schema.get("maxItems", 0),
                "x-kubernetes-list-type": unique and len(set(value)) < len(value),
            }
        case dict():
            return {"maxProperties": len(value) > schema.get("maxProperties", 0)}
    return {}
