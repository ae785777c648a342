"""Brings one object of an Egress in line with what is wanted of it: read, overlay, replace.

Why whole objects are read and replaced, and not applied server-side (measured on Kubernetes 1.20):
* The API server itself says whether a replacement changes anything, after it has filled in its defaults and brought
  quantities into their form; if not, nothing is stored and the resource version stays. An apply with `0.5Gi` is stored
  again each time, and one with the number 1 for a quantity, or with a field that is newer than the server, is refused.
* What is no longer wanted goes, defaults that the server has made of it included; an apply cannot take away the
  `rollingUpdate` that stands in the way of `Recreate`.
* A creation cannot fall upon an object of somebody else that has just appeared, nor a replacement upon one that has
  been exchanged: both are refused.
What is ours in an object, and what others may keep there, is said by the overlay of its kind.

After it has been in line once, an object costs no request until it changes or something else is wanted: that is known
by a fingerprint, without the status and without what others keep in the metadata.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.crd.egress import Egress
from coil.crd.meta import ObjectMeta
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.egress.ownership import Ownership, judge_ownership
from coil.kube.api_client import ApiClient, Document
from coil.kube.errors import NotFoundError

T = TypeVar("T", bound=HasMetadata)

Overlay: TypeAlias = Callable[[Document, Document], Document]
"""(live, wanted) → what is to be stored. Pure."""

_OUR_ANNOTATIONS = "coil.cybozu.com/"


class NameTakenError(Exception):
    """There is an object of that name which is not ours, and so is not touched."""

    def __init__(self, resource: Resource[Any], ownership: Ownership) -> None:
        super().__init__(f"the {resource.kind} of that name was not made for this Egress")
        self.resource = resource
        self.ownership = ownership


@dataclass(frozen=True, slots=True)
class _Settled:
    """That `wanted` was brought about, and the object was then as `fingerprint` says."""

    wanted: Document
    fingerprint: tuple[Any, ...]


class OwnedObjects:
    """All objects of all Egresses, in one term of leadership."""

    def __init__(self, client: ApiClient, *, log: FilteringBoundLogger) -> None:
        self._client = client
        self._log = log
        self._settled: dict[tuple[str, str], _Settled] = {}

    def forget(self, egress_key: str | None = None) -> None:
        """Compare the objects of that Egress, or all, with the API server the next time, whatever is known."""
        gone = [place for place in self._settled if egress_key in {None, place[1]}]
        for place in gone:
            del self._settled[place]

    async def ensure(
        self, resource: Resource[T], cached: T | None, egress: Egress, *, wanted: Document, overlay: Overlay
    ) -> T:
        """Make the object, or bring it in line; returns it. It has the name of the Egress. Idempotent.

        Raises NameTakenError, or ApiError with the API server's refusal; then nothing has changed.
        """
        place = resource.plural, object_key(egress.metadata)
        settled = self._settled.get(place)
        if (
            cached is not None
            and settled is not None
            and (settled.wanted, settled.fingerprint) == (wanted, _fingerprint(cached.metadata))
        ):
            return cached
        stored = await self._bring_about(resource, egress, wanted, overlay)
        self._settled[place] = _Settled(wanted, _fingerprint(stored.metadata))
        return stored

    async def remove(self, resource: Resource[T], cached: T | None, egress: Egress) -> None:
        """Delete the object if there is one and it is ours. Raises ApiError."""
        if cached is None or judge_ownership(cached.metadata, egress) is not Ownership.OURS:
            return
        name, namespace = egress.metadata.name, egress.metadata.namespace
        self._settled.pop((resource.plural, object_key(egress.metadata)), None)
        try:
            await self._client.delete(resource, name, namespace=namespace, uid=cached.metadata.uid)
        except NotFoundError:
            return
        self._log.info("deleted", kind=resource.kind, namespace=namespace, name=name)

    async def _bring_about(self, resource: Resource[T], egress: Egress, wanted: Document, overlay: Overlay) -> T:
        name, namespace = egress.metadata.name, egress.metadata.namespace
        log = self._log.bind(kind=resource.kind, namespace=namespace, name=name)
        try:
            live = await self._client.get_document(resource, name, namespace=namespace)
        except NotFoundError:
            # AlreadyExistsError: somebody was faster. The next look is at the present state.
            created = await self._client.create(resource, wanted, namespace=namespace)
            log.info("created")
            return created
        before = msgspec.convert(live["metadata"], ObjectMeta)
        ownership = judge_ownership(before, egress)
        if ownership is not Ownership.OURS:
            raise NameTakenError(resource, ownership)
        changed = overlay(live, wanted)
        if changed == live:
            return msgspec.convert(live, resource.type)
        stored = await self._client.replace(resource, changed, name=name, namespace=namespace)
        if stored.metadata.resource_version != before.resource_version:
            log.info("changed")
        return stored


def _fingerprint(metadata: ObjectMeta) -> tuple[Any, ...]:
    """Differs when something that is ours may have been changed.

    A generation counts the changes of a spec; a kind without one has no status that changes often either.
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
