"""What services ask of the API server about single objects. `coil.kube.client` is one; tests have another, in memory.

The exceptions are those of `coil.kube.errors`. After an UnavailableError of a write nobody knows whether the write
took place.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource

T = TypeVar("T", bound=HasMetadata)


class ApiClient(Protocol):
    async def get(self, resource: Resource[T], name: str) -> T:
        """The object as it is now. Raises NotFoundError."""
        ...

    async def list(self, resource: Resource[T], *, labels: str = "") -> list[T]:
        """The objects that match the label selector, as they are now."""
        ...

    async def create(self, resource: Resource[T], body: Mapping[str, Any] | Struct) -> T:
        """Raises AlreadyExistsError."""
        ...

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> T:
        """A merge patch (RFC 7396) of the object, or of its status.

        `metadata.resourceVersion` in it is a precondition: ConflictError, also when the object was replaced by
        another of its name. Raises NotFoundError.
        """
        ...

    async def delete(self, resource: Resource[T], name: str, *, uid: str = "") -> None:
        """`uid` is a precondition: ConflictError. Raises NotFoundError."""
        ...
