"""Brings one object of an Egress in line with what is wanted: read, overlay, replace.

Why whole objects are read and replaced, and not applied server-side (measured on Kubernetes 1.20):
* The API server itself decides whether a replacement changes anything, after it has filled in defaults and normalised
  quantities; if not, nothing is stored and the resource version stays. An apply with `0.5Gi` is stored again each time,
  and one with the number 1 for a quantity, or with a field that is newer than the server, is refused.
* What is no longer wanted is removed, including the defaults that the server has derived from it; an apply cannot
  remove the `rollingUpdate` that conflicts with `Recreate`.
* A creation cannot overwrite an object of somebody else that has just been created, nor a replacement one that was
  created anew: both are refused.
Which parts of an object are ours, and which others may keep there, is defined by the overlay of its kind.

Once in line, an object costs no request until it changes or something else is wanted. A fingerprint tells, which leaves
out the status and what others keep in the metadata.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.crd.egress import Egress
from coil.crd.meta import ObjectMeta
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.egress.router_objects import Ownership, find_ownership
from coil.kube.api_client import ApiClient, Document
from coil.kube.errors import NotFoundError

T = TypeVar("T", bound=HasMetadata)

Overlay: TypeAlias = Callable[[Document, Document], Document]
"""(live, wanted) → the document to store. Pure."""

_OUR_ANNOTATIONS = "coil.cybozu.com/"


class NameTakenError(Exception):
    """There is an object of that name that is not ours, so it is left alone."""

    def __init__(self, resource: Resource[Any], ownership: Ownership) -> None:
        super().__init__(f"the {resource.kind} of that name was not made for this Egress")
        self.resource = resource
        self.ownership = ownership


@dataclass(frozen=True, slots=True)
class _Applied:
    """`wanted` was stored, and the object had `fingerprint` then."""

    wanted: Document
    fingerprint: tuple[Any, ...]


class OwnedObjects:
    """All objects of all Egresses, of one term."""

    def __init__(self, client: ApiClient, *, log: FilteringBoundLogger) -> None:
        self._client = client
        self._log = log
        self._applied: dict[tuple[str, str], _Applied] = {}

    def forget(self, egress_key: str | None = None) -> None:
        """Compare the objects of that Egress, or of all, with the API server the next time in any case."""
        forgotten = [key for key in self._applied if egress_key in {None, key[1]}]
        for key in forgotten:
            del self._applied[key]

    async def ensure(
        self, resource: Resource[T], cached: T | None, egress: Egress, *, wanted: Document, overlay: Overlay
    ) -> T:
        """Create the object, or bring it in line; returns it. It has the name of the Egress. Idempotent.

        Raises NameTakenError, or ApiError with the API server's refusal; then nothing has changed.
        """
        try:
            return await self.adjust(resource, cached, egress, wanted=wanted, overlay=overlay)
        except NotFoundError:
            # AlreadyExistsError: somebody was faster. The retry reads the present state.
            stored = await self._client.create(resource, wanted, namespace=egress.metadata.namespace)
        self._log_change(resource, egress, "created")
        self._note(resource, egress, wanted, stored)
        return stored

    async def adjust(
        self, resource: Resource[T], cached: T | None, egress: Egress, *, wanted: Document, overlay: Overlay
    ) -> T:
        """Bring the object in line, as `ensure` does, but never create it: raises NotFoundError if there is none."""
        applied = self._applied.get((resource.plural, object_key(egress.metadata)))
        if (
            cached is not None
            and applied is not None
            and (applied.wanted, applied.fingerprint) == (wanted, _fingerprint(cached.metadata))
        ):
            return cached
        stored = await self._replace(resource, egress, wanted, overlay)
        self._note(resource, egress, wanted, stored)
        return stored

    def _note(self, resource: Resource[T], egress: Egress, wanted: Document, stored: T) -> None:
        key = resource.plural, object_key(egress.metadata)
        self._applied[key] = _Applied(wanted, _fingerprint(stored.metadata))

    def _log_change(self, resource: Resource[Any], egress: Egress, event: str) -> None:
        metadata = egress.metadata
        self._log.info(event, kind=resource.kind, namespace=metadata.namespace, name=metadata.name)

    async def remove(self, resource: Resource[T], cached: T | None, egress: Egress) -> None:
        """Delete the object if there is one and it is ours. Raises ApiError."""
        if cached is None or find_ownership(cached.metadata, egress) is not Ownership.OURS:
            return
        name, namespace = egress.metadata.name, egress.metadata.namespace
        self._applied.pop((resource.plural, object_key(egress.metadata)), None)
        try:
            await self._client.delete(resource, name, namespace=namespace, uid=cached.metadata.uid)
        except NotFoundError:
            return
        self._log_change(resource, egress, "deleted")

    async def _replace(self, resource: Resource[T], egress: Egress, wanted: Document, overlay: Overlay) -> T:
        name, namespace = egress.metadata.name, egress.metadata.namespace
        live = await self._client.get_document(resource, name, namespace=namespace)
        before = msgspec.convert(live["metadata"], ObjectMeta)
        ownership = find_ownership(before, egress)
        if ownership is not Ownership.OURS:
            raise NameTakenError(resource, ownership)
        changed = overlay(live, wanted)
        if changed == live:
            return msgspec.convert(live, resource.type)
        stored = await self._client.replace(resource, changed, name=name, namespace=namespace)
        if stored.metadata.resource_version != before.resource_version:
            self._log_change(resource, egress, "changed")
        return stored


def _fingerprint(metadata: ObjectMeta) -> tuple[Any, ...]:
    """Differs when something that is ours may have changed.

    A generation counts the changes of a spec; kinds without one have no status that changes often.
    """
    ours = {key: value for key, value in metadata.annotations.items() if key.startswith(_OUR_ANNOTATIONS)}
    return (
        metadata.uid,
        metadata.generation or metadata.resource_version,
        metadata.labels,
        ours,
        metadata.owner_references,
        metadata.deletion_timestamp,
    )
