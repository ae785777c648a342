"""An API server in memory, as far as a migration uses one: objects by kind, namespace and name, and people to annoy it.

`reactions` play the controllers and kubelets: each is called after every deletion.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from coil.crd.names import LABEL_NODE, LABEL_POOL, LABEL_RESERVED, RESERVED
from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import ApiError, ConflictError, NotFoundError

T = TypeVar("T", bound=HasMetadata)
Document = dict[str, Any]


class MemoryCluster:
    """A `Cluster`. `writes` are the changes that were asked for; `faults` are raised by the next calls of a verb."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Document] = {}
        self.writes: list[str] = []
        self.faults: dict[str, list[ApiError]] = {}
        self.reactions: list[Callable[[str, Document], None]] = []
        self.stubborn: set[str] = set()
        """Names of objects that are deleted in vain, as finalizers do it."""
        self._numbers = itertools.count(1)

    # --- for tests

    def add(self, plural: str, name: str, *, namespace: str = "", **fields: Any) -> Document:
        metadata = {"name": name, "namespace": namespace, "uid": f"uid-{next(self._numbers)}"}
        metadata |= fields.pop("metadata", {})
        document = self.objects[plural, namespace, name] = {"metadata": metadata, **fields}
        return document

    def add_pod(self, name: str, address: str, *, node: str = "node-1", **fields: Any) -> Document:
        """A pod of a controller, in the namespace `apps`, unless `fields` say otherwise."""
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
        metadata = {"ownerReferences": [owner]} | fields.pop("metadata", {})
        spec = {"nodeName": node} | fields.pop("spec", {})
        status = {"phase": "Running", "podIPs": [{"ip": address}]} | fields.pop("status", {})
        return self.add("pods", name, namespace="apps", metadata=metadata, spec=spec, status=status)

    def add_block(self, name: str, ipv4: str, *, reserved: bool = True) -> None:
        labels = {LABEL_POOL: "default", LABEL_NODE: "node-1"} | ({LABEL_RESERVED: RESERVED} if reserved else {})
        self.add("addressblocks", name, metadata={"labels": labels}, index=0, ipv4=ipv4)

    def names(self, plural: str) -> list[str]:
        return sorted(name for kind, _, name in self.objects if kind == plural)

    def document(self, plural: str, name: str, namespace: str = "") -> Document:
        return self.objects[plural, namespace, name]

    # --- as a Cluster

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        self._fault("get")
        return msgspec.convert(self._find(resource, name, namespace), resource.type)

    async def list(self, resource: Resource[T], *, namespace: str = "", labels: str = "") -> list[T]:
        self._fault("list")
        wanted = dict(pair.split("=") for pair in labels.split(",") if pair)
        found = [
            msgspec.convert(document, resource.type)
            for (plural, place, _), document in sorted(self.objects.items())
            if plural == resource.plural and namespace in {"", place}
        ]
        return [item for item in found if wanted.items() <= item.metadata.labels.items()]

    async def patch(self, resource: Resource[T], name: str, patch: Mapping[str, Any], *, namespace: str = "") -> T:
        self._fault("patch")
        document = self._find(resource, name, namespace)
        self.writes.append(f"patch {resource.plural} {name}")
        _merge(document, patch)
        return msgspec.convert(document, resource.type)

    async def delete(self, resource: Resource[T], name: str, *, namespace: str = "", uid: str = "") -> None:
        self._fault("delete")
        document = self._find(resource, name, namespace)
        if uid not in {"", document["metadata"]["uid"]}:
            raise ConflictError("the uid is another", status=409)
        self.writes.append(f"delete {resource.plural} {name}")
        if name not in self.stubborn:
            del self.objects[resource.plural, namespace, name]
        for react in self.reactions:
            react(resource.plural, document)

    def _find(self, resource: Resource[Any], name: str, namespace: str) -> Document:
        assert resource.namespaced == bool(namespace), f"{resource.kind} and the namespace {namespace!r}"
        try:
            return self.objects[resource.plural, namespace, name]
        except KeyError:
            raise NotFoundError(f"{resource.plural} {name} not found", status=404) from None

    def _fault(self, verb: str) -> None:
        if waiting := self.faults.get(verb):
            raise waiting.pop(0)


def _merge(document: Document, patch: Mapping[str, Any]) -> None:
    """RFC 7396, as far as nothing is taken away."""
    for key, value in patch.items():
        if isinstance(value, Mapping):
            _merge(document.setdefault(key, {}), value)
        else:
            document[key] = value
