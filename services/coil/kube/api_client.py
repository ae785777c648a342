"""What the suite asks of the API server about single objects: the one interface between reconcilers and the network.

`coil.kube.client.KubeClient` implements it; the tests have an implementation in memory, and one contract suite runs on
both. Lists and watches that feed caches are `coil.kube.collection`.
"""

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource

T = TypeVar("T", bound=HasMetadata)

Document = dict[str, Any]
"""An object as JSON has it, unknown fields included."""


class ApiClient(Protocol):
    """Raises the errors of `coil.kube.errors`; nothing is retried.

    `namespace` is required for namespaced kinds, except by `list`, and forbidden for the others (ValueError). A write
    that is cancelled or ends in UnavailableError may or may not have taken effect.
    """

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """The object as it is now. Raises NotFoundError."""
        ...

    async def get_document(self, resource: Resource[Any], name: str, *, namespace: str = "") -> Document:
        """The whole object as it is now, for `replace`. Raises NotFoundError."""
        ...

    async def list(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> builtins.list[T]:
        """The objects that match both selectors as they are now, in all namespaces unless one is given."""
        ...

    async def create(self, resource: Resource[T], body: Mapping[str, Any] | Struct, *, namespace: str = "") -> T:
        """Raises AlreadyExistsError."""
        ...

    async def replace(
        self,
        resource: Resource[T],
        body: Mapping[str, Any] | Struct,
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Replace the whole object, or only its `subresource`.

        `metadata.resourceVersion` in `body` is a precondition: ConflictError if the object has changed since. A body
        that changes nothing is not stored, and the resource version stays. An object that is gone is a ConflictError
        if `body` has a UID, and a NotFoundError if not.
        """
        ...

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """A merge patch (RFC 7396), or a JSON patch (RFC 6902) if it is a sequence; of the object or its `subresource`.

        `metadata.resourceVersion` in a merge patch is a precondition: ConflictError, also when the object was replaced
        by another of the same name. So is `metadata.uid`, but as a field that cannot be changed: InvalidError. A failed
        `test` of a JSON patch is an InvalidError, too. Raises NotFoundError.
        """
        ...

    async def delete(self, resource: Resource[T], name: str, *, namespace: str = "", uid: str = "") -> None:
        """Ask for deletion; the object stays while it has finalizers.

        `uid` is a precondition: ConflictError. Raises NotFoundError.
        """
        ...

    async def evict(self, name: str, *, namespace: str, uid: str = "") -> None:
        """As `delete` of a pod, unless a PodDisruptionBudget forbids it now: UnavailableError with the status 429."""
        ...
