"""Adds and removes Coil's finalizer, and never touches another one. Pure: lists and patches only."""

from collections.abc import Sequence
from typing import Any

from coil.crd.meta import ObjectMeta
from coil.crd.names import FINALIZER


def with_finalizer(finalizers: Sequence[str]) -> list[str]:
    """`finalizers` and Coil's, which stays where it is."""
    return [*finalizers] if FINALIZER in finalizers else [*finalizers, FINALIZER]


def without_finalizer(finalizers: Sequence[str]) -> list[str]:
    """`finalizers` but Coil's."""
    return [other for other in finalizers if other != FINALIZER]


def plan_add(metadata: ObjectMeta) -> dict[str, Any] | None:
    """The merge patch that adds the finalizer; None when it is there. Conflicts when the object has changed."""
    if FINALIZER in metadata.finalizers:
        return None
    return _plan(metadata, with_finalizer(metadata.finalizers))


def plan_remove(metadata: ObjectMeta) -> dict[str, Any] | None:
    """The merge patch that removes it; None when it is not there. Conflicts when the object has changed."""
    if FINALIZER not in metadata.finalizers:
        return None
    return _plan(metadata, without_finalizer(metadata.finalizers))


def _plan(metadata: ObjectMeta, finalizers: list[str]) -> dict[str, Any]:
    # A merge patch replaces the whole list, so it may only meet the very version that the list was read from.
    return {"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}}
