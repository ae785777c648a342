"""Validates Egresses: every rule one must keep, as a pure function from documents to lists of field errors.

Used twice: admission refuses what breaks a rule, and the controller tells of those that were stored past admission, and
makes no router pods of a template with rights that it may not give. An empty list means valid. What the template says
beyond its labels, annotations and rights is judged by the API server, when the controller makes a Deployment of it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from coil.crd.cidr import parse_cidr
from coil.crd.egress import Egress
from coil.crd.meta import LabelSelector
from coil.crd.names import LABEL_VALUE_LENGTH
from coil.crd.template_privilege import validate_privileges
from coil.crd.validation import FieldError, validate_annotations, validate_labels, validate_selector

STRATEGIES = ("Recreate", "RollingUpdate")

_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PERCENTAGE = re.compile(r"(0|[1-9][0-9]*)%")
_BOUNDS = ("minAvailable", "maxUnavailable")


def validate_egress(egress: Egress, *, privileged_templates: bool = False) -> list[FieldError]:
    """All rules that an Egress keeps by itself, whatever else is in the cluster.

    `privileged_templates`: its router pods may have any privilege (`coil.crd.template_privilege`).
    """
    return [*validate_fields(egress), *validate_rights(egress, privileged_templates=privileged_templates)]


def validate_fields(egress: Egress) -> list[FieldError]:
    """The rules that are not about the rights of router pods."""
    spec = egress.spec
    return [
        *_validate_name(egress.metadata.name),
        *_validate_destinations(spec.destinations),
        *_validate_strategy(spec.strategy or {}),
        *_validate_template(spec.template or {}),
        *_validate_budget(spec.pod_disruption_budget or {}),
        *_validate_namespaces(spec.allowed_namespaces),
    ]


def validate_rights(egress: Egress, *, privileged_templates: bool = False) -> list[FieldError]:
    """What the template says that router pods may not have. Any container of theirs could use it, so the template as a
    whole is to be refused, and not the one field.
    """
    template = egress.spec.template or {}
    faults = [] if privileged_templates else list(validate_privileges(template, path="spec.template"))
    if (template.get("spec") or {}).get("hostNetwork"):
        message = "must not be true: a router pod needs a network namespace of its own"
        faults.append(FieldError("spec.template.spec.hostNetwork", message))
    return faults


def _validate_name(name: str) -> Iterator[FieldError]:
    # An object that is yet to be named by the API server has no name here.
    if name and (len(name) > LABEL_VALUE_LENGTH or not _SERVICE_NAME.fullmatch(name)):
        rule = "lower case letters, digits and '-', beginning with a letter and not ending with '-'"
        message = f"must have at most {LABEL_VALUE_LENGTH} characters, as the name of a Service: {rule}"
        yield FieldError("metadata.name", message)


def _validate_destinations(destinations: tuple[str, ...]) -> Iterator[FieldError]:
    if not destinations:
        yield FieldError("spec.destinations", "must have at least one entry")
    for position, text in enumerate(destinations):
        try:
            parse_cidr(text)
        except ValueError as error:
            yield FieldError(f"spec.destinations[{position}]", str(error))


def _validate_namespaces(selector: LabelSelector | None) -> Iterator[FieldError]:
    if selector is not None:
        yield from validate_selector(selector, path="spec.allowedNamespaces")


def _validate_strategy(strategy: Mapping[str, Any]) -> Iterator[FieldError]:
    kind = strategy.get("type", "RollingUpdate")
    if kind not in STRATEGIES:
        yield FieldError("spec.strategy.type", f"{kind!r} must be one of {', '.join(STRATEGIES)}")
    rolling = strategy.get("rollingUpdate") or {}
    path = "spec.strategy.rollingUpdate"
    if rolling and kind == "Recreate":
        yield FieldError(path, "must not be given for the type Recreate")
    for name in ("maxSurge", "maxUnavailable"):
        yield from _validate_count(rolling.get(name), f"{path}.{name}")


def _validate_template(template: Mapping[str, Any]) -> Iterator[FieldError]:
    metadata = template.get("metadata") or {}
    yield from validate_labels(metadata.get("labels") or {}, path="spec.template.metadata.labels")
    yield from validate_annotations(metadata.get("annotations") or {}, path="spec.template.metadata.annotations")


def _validate_budget(budget: Mapping[str, Any]) -> Iterator[FieldError]:
    path = "spec.podDisruptionBudget"
    if all(budget.get(bound) is not None for bound in _BOUNDS):
        yield FieldError(path, f"must not have both {' and '.join(_BOUNDS)}")
    for bound in _BOUNDS:
        yield from _validate_count(budget.get(bound), f"{path}.{bound}", largest=100)


def _validate_count(value: Any, path: str, *, largest: int | None = None) -> Iterator[FieldError]:
    """A number, or a percentage of at most `largest`."""
    if value is None:
        return
    if isinstance(value, int):
        if value < 0:
            yield FieldError(path, f"{value} must not be negative")
        return
    bound = "" if largest is None else f" of at most {largest}%"
    if not _PERCENTAGE.fullmatch(str(value)):
        yield FieldError(path, f"{value!r} must be a whole number, or a percentage{bound} such as 50%")
    elif largest is not None and int(str(value)[:-1]) > largest:
        yield FieldError(path, f"{value!r} must be at most {largest}%")
