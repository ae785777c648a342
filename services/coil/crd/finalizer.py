"""Adds and removes Coil's finalizer, and never touches another one. Pure: patches only."""

from typing import Any

from coil.crd.meta import ObjectMeta
from coil.crd.names import FINALIZER


def plan_add(metadata: ObjectMeta) -> dict[str, Any] | None:
    """The merge patch that adds the finalizer; None when it is there. Conflicts when the object has changed."""
    if FINALIZER in metadata.finalizers:
        return None
    return _with_finalizers(metadata, [*metadata.finalizers, FINALIZER])


def plan_remove(metadata: ObjectMeta) -> dict[str, Any] | None:
    """The merge patch that removes it; None when it is not there. Conflicts when the object has changed."""
    if FINALIZER not in metadata.finalizers:
        return None
    return _with_finalizers(metadata, [other for other in metadata.finalizers if other != FINALIZER])


def _with_finalizers(metadata: ObjectMeta, finalizers: list[str]) -> dict[str, Any]:
    # A merge patch replaces the whole list, so it may only meet the very version that the list was read from.
    return {"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}}
