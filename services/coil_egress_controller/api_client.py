"""What the reconcilers ask of the API server: the part of `coil.kube.client.KubeClient` that is used here."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource

T = TypeVar("T", bound=HasMetadata)

Document = dict[str, Any]


class ApiClient(Protocol):
    """The exceptions are those of `coil.kube.errors`; after an UnavailableError of a write nobody knows its effect."""

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """The object as it is now. Raises NotFoundError."""
        ...

    async def get_document(self, resource: Resource[Any], name: str, *, namespace: str = "") -> Document:
        """The whole object as it is now. Raises NotFoundError."""
        ...

    async def list(self, resource: Resource[T], *, namespace: str = "") -> list[T]: ...

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
        """ConflictError if the object is not the one of `body` any more. Stores nothing if that says nothing new.

        With `subresource`, only that part of it.
        """
        ...

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """A merge patch (RFC 7396); `metadata.resourceVersion` in it is a precondition: ConflictError."""
        ...

    async def delete(self, resource: Resource[Any], name: str, *, namespace: str = "", uid: str = "") -> None:
        """`uid` is a precondition: ConflictError. Raises NotFoundError."""
        ...
