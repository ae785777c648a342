"""What the API server serves, as data: where a kind lives and which struct its documents decode into.

A `Resource` is the only thing that `coil.kube` and `coil.reconcile` need to know about a kind.
Bottom of the house: no input, no output.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from coil.crd.meta import ObjectMeta


class HasMetadata(Protocol):
    """Every decoded document: a frozen struct with `metadata`."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One served kind. `group` is "" for the core group; `type` holds only the fields in use."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[T]

    @property
    def api_version(self) -> str:
        """`apiVersion` as documents of this kind carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, or of one object when `name` is given.

        An empty `namespace` on a namespaced kind is the collection over all namespaces.
        Names come from API objects, which the API server has already restricted to DNS labels.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
            if subresource:
                parts.append(subresource)
        return "/".join(parts)


@dataclass(frozen=True, slots=True, order=True)
class NamespacedName:
    """Where an object of a namespace is. As text it is the object's key."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def object_key(metadata: ObjectMeta) -> str:
    """The cache and queue key of an object: `namespace/name`, or `name` for a cluster kind."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
