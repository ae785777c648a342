"""What documents of every kind have in common (metav1): metadata, conditions, label selectors, and finalizers.

Only the fields that the suite reads: unknown ones are skipped while decoding. Structs are frozen: an object in a cache
is a fact that was observed, never a scratch pad. (`frozen` and `kw_only` are repeated on each class because type
checkers, unlike msgspec, do not inherit them.)
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from coil.crd.names import FINALIZER


class Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The base of everything that is decoded from, or encoded for, the API server."""


class OwnerReference(Struct, frozen=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None

    @property
    def deleting(self) -> bool:
        """True once a deletion was asked for: only finalizers keep the object."""
        return self.deletion_timestamp is not None


class Condition(Struct, frozen=True, kw_only=True):
    """The usual condition. `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_probe_time: datetime | None = None
    last_transition_time: datetime | None = None


class Requirement(Struct, frozen=True, kw_only=True):
    """`operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Struct, frozen=True, kw_only=True):
    """apimachinery's `LabelSelectorAsSelector`. All of it must hold; an empty selector selects everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.match_labels and not self.match_expressions

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether something with these labels is meant. An operator that does not exist selects nothing."""
        plain = all(labels.get(key) == value for key, value in self.match_labels.items())
        return plain and all(_holds(requirement, labels) for requirement in self.match_expressions)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def with_finalizer(finalizers: Sequence[str], finalizer: str = FINALIZER) -> list[str]:
    """`finalizers` and Coil's, which stays where it is."""
    return [*finalizers] if finalizer in finalizers else [*finalizers, finalizer]


def without_finalizer(finalizers: Sequence[str], finalizer: str = FINALIZER) -> list[str]:
    """`finalizers` but Coil's."""
    return [other for other in finalizers if other != finalizer]


def plan_add_finalizer(metadata: ObjectMeta, finalizer: str = FINALIZER) -> dict[str, Any] | None:
    """The merge patch that adds the finalizer; None when it is there. Conflicts when the object has changed."""
    if finalizer in metadata.finalizers:
        return None
    return _plan(metadata, with_finalizer(metadata.finalizers, finalizer))


def plan_remove_finalizer(metadata: ObjectMeta, finalizer: str = FINALIZER) -> dict[str, Any] | None:
    """The merge patch that removes it; None when it is not there. Conflicts when the object has changed."""
    if finalizer not in metadata.finalizers:
        return None
    return _plan(metadata, without_finalizer(metadata.finalizers, finalizer))


def _plan(metadata: ObjectMeta, finalizers: list[str]) -> dict[str, Any]:
    # A merge patch replaces the whole list, so it may only meet the very version that the list was read from.
    return {"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}}
