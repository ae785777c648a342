"""The API server's part in CEL rules: finds them in a schema, fills in defaults, and judges an object by them.

A stand-in for Kubernetes 1.28 and newer, with celpy as the interpreter. A rule that names `oldSelf` is judged only
where there is an old value at the same place; items of a list have no old value.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

Document = dict[str, Any]
_ABSENT = object()
_ENVIRONMENT = celpy.Environment()
"""Made here, as it raises the interpreter's recursion limit, which no test may do in the middle of an example."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a rule tells, and of which field; a rule that cannot be evaluated refuses as well."""

    path: str
    message: str


def evaluate_rules(schema: Document, new: Any, old: Any = _ABSENT) -> list[Refusal]:
    """What the rules of `schema` refuse of `new`, after `old` if there was one."""
    return list(_evaluate(schema, _filled(schema, new), _filled(schema, old), ""))


def _evaluate(schema: Document, new: Any, old: Any, path: str) -> Iterator[Refusal]:
    for rule in schema.get("x-kubernetes-validations", ()):
        transition = "oldSelf" in rule["rule"]
        if transition and old is _ABSENT:
            continue
        variables = {"self": json_to_cel(new)} | ({"oldSelf": json_to_cel(old)} if transition else {})
        try:
            held = bool(_program(rule["rule"]).evaluate(variables))
        except CELEvalError:
            held = False
        if not held:
            yield Refusal(f"{path}{rule.get('fieldPath', '')}", _message(rule, variables))
    if isinstance(new, dict):
        for name, child in schema.get("properties", {}).items():
            if name in new:
                before = old.get(name, _ABSENT) if isinstance(old, dict) else _ABSENT
                yield from _evaluate(child, new[name], before, f"{path}.{name}".lstrip("."))
    if isinstance(new, list):
        for position, item in enumerate(new):
            yield from _evaluate(schema["items"], item, _ABSENT, f"{path}[{position}]")


def _message(rule: Document, variables: Document) -> str:
    """The expression's, unless that cannot be evaluated."""
    try:
        return str(_program(rule["messageExpression"]).evaluate(variables))
    except (KeyError, CELEvalError):
        return str(rule["message"])


def _filled(schema: Document, value: Any) -> Any:
    """With the defaults, as the API server fills them in before it validates."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        defaults = {name: child["default"] for name, child in properties.items() if "default" in child}
        return {
            name: _filled(properties.get(name, {}), child)
            for name, child in (defaults | value).items()
            if child is not None
        }
    if isinstance(value, list):
        return [_filled(schema["items"], item) for item in value]
    return value


@cache
def _program(rule: str) -> celpy.Runner:
    return _ENVIRONMENT.program(_ENVIRONMENT.compile(rule), functions={"split": _split})


def _split(text: celtypes.StringType, separator: celtypes.StringType) -> celtypes.ListType:
    """Of CEL's extended strings, which Kubernetes has and celpy does not."""
    return celtypes.ListType([celtypes.StringType(part) for part in str(text).split(str(separator))])
