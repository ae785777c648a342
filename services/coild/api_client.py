"""What coild asks of the API server about single objects. `coil.kube`'s client is one; tests have another, in memory.

The exceptions are those of `coil.kube.errors`. After an UnavailableError of a write nobody knows whether the write took
place.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from coil.crd.resource import HasMetadata, Resource

T = TypeVar("T", bound=HasMetadata)


class ApiClient(Protocol):
    """Cluster-wide kinds only."""

    async def get(self, resource: Resource[T], name: str) -> T:
        """The object as it is now. Raises NotFoundError."""
        ...

    async def create(self, resource: Resource[T], body: Mapping[str, Any]) -> T:
        """Raises AlreadyExistsError."""
        ...

    async def patch(self, resource: Resource[T], name: str, patch: Mapping[str, Any]) -> T:
        """A merge patch (RFC 7396). `metadata.uid` in it is a precondition: ConflictError. Raises NotFoundError."""
        ...

    async def delete(self, resource: Resource[T], name: str, *, uid: str = "") -> None:
        """`uid` is a precondition: ConflictError. Raises NotFoundError."""
        ...
