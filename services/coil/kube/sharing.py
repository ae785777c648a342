"""One copy in memory of what the objects of a collection have in common.

Every block of a pool names the same owner and carries the same finalizers, and each decoded object has its own copy of
both: a third of its size. Structs are frozen and tuples immutable, so nobody can tell whether they are shared.
"""

from typing import Any

from msgspec.structs import force_setattr

from coil.crd.meta import ObjectMeta

LIMIT = 1024
"""Distinct values that are remembered; more than that means that they have little in common."""


class Sharing:
    """For objects that were just decoded and that nobody else has seen: they are still being made."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def share(self, metadata: ObjectMeta) -> None:
        """Replace the owners and finalizers by the equal ones of earlier objects."""
        if metadata.owner_references:
            force_setattr(metadata, "owner_references", self._first(metadata.owner_references))
        if metadata.finalizers:
            force_setattr(metadata, "finalizers", self._first(metadata.finalizers))

    def _first(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(self._known) >= LIMIT:
            self._known.clear()
        known: tuple[Any, ...] = self._known.setdefault(value, value)
        return known
