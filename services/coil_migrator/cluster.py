"""What a migration asks of the API server. `coil.kube.client` is one; tests have another, in memory."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from coil.crd.resource import HasMetadata, Resource

T = TypeVar("T", bound=HasMetadata)


class Cluster(Protocol):
    """The exceptions are those of `coil.kube.errors`. `namespace` is given for kinds that have one."""

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """The object as it is now. Raises NotFoundError."""
        ...

    async def list(self, resource: Resource[T], *, namespace: str = "", labels: str = "") -> list[T]:
        """The objects that match, in all namespaces unless one is named."""
        ...

    async def patch(self, resource: Resource[T], name: str, patch: Mapping[str, Any], *, namespace: str = "") -> T:
        """A merge patch (RFC 7396). Raises NotFoundError."""
        ...

    async def delete(self, resource: Resource[T], name: str, *, namespace: str = "", uid: str = "") -> None:
        """`uid` is a precondition: ConflictError if the object is another one by now. Raises NotFoundError."""
        ...
