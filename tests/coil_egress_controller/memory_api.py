"""An API server in memory, as far as the egress-controller uses one; it keeps whole documents.

`refusals` are raised by writes, by verb and plural, for as long as they stand there. `calls` has every call.
"""

import itertools
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, TypeVar

import msgspec

from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError

T = TypeVar("T", bound=HasMetadata)
Document = dict[str, Any]
Place = tuple[str, str, str]


class MemoryApi:
    """Kinds with a spec have a generation, but for Services, as with the real one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.refusals: dict[tuple[str, str], ApiError] = {}
        self._objects: dict[Place, Document] = {}
        self._numbers = itertools.count(1)

    def put(self, resource: Resource[Any], document: Mapping[str, Any]) -> Document:
        """Store a document past every check."""
        stored = deepcopy(dict(document))
        metadata = stored["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._numbers)}")
        before = self._objects.get(_place(resource, metadata))
        if "spec" in stored and resource.plural != "services":
            grown = before is None or before.get("spec") != stored["spec"]
            metadata["generation"] = (before or {"metadata": {}})["metadata"].get("generation", 0) + int(grown)
        metadata["resourceVersion"] = str(next(self._numbers))
        self._objects[_place(resource, metadata)] = stored
        return stored

    def remove(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        del self._objects[resource.plural, namespace, name]

    def find(self, resource: Resource[Any], name: str, namespace: str = "") -> Document | None:
        return self._objects.get((resource.plural, namespace, name))

    def all(self, resource: Resource[T]) -> list[T]:
        found = (document for place, document in sorted(self._objects.items()) if place[0] == resource.plural)
        return [msgspec.convert(document, resource.type) for document in found]

    def writes(self) -> list[tuple[str, str]]:
        """Verb and plural of each write so far that was asked for."""
        return [(verb, plural) for verb, plural, _ in self.calls if verb not in {"get", "list"}]

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        self._enter("get", resource, name)
        return msgspec.convert(self._existing(resource, name, namespace), resource.type)

    async def get_document(self, resource: Resource[Any], name: str, *, namespace: str = "") -> Document:
        self._enter("get", resource, name)
        return deepcopy(self._existing(resource, name, namespace))

    async def list(self, resource: Resource[T], *, namespace: str = "") -> list[T]:
        self._enter("list", resource, namespace)
        return [item for item in self.all(resource) if namespace in {"", item.metadata.namespace}]

    async def create(self, resource: Resource[T], body: Mapping[str, Any] | Struct, *, namespace: str = "") -> T:
        document = msgspec.to_builtins(body)
        name = document["metadata"]["name"]
        self._enter("create", resource, name)
        if self.find(resource, name, namespace) is not None:
            raise AlreadyExistsError(f"{name} exists", status=409)
        return msgspec.convert(self.put(resource, document), resource.type)

    async def replace(
        self,
        resource: Resource[T],
        body: Mapping[str, Any] | Struct,
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        self._enter(f"replace {subresource}".strip(), resource, name)
        live, document = self._existing(resource, name, namespace), msgspec.to_builtins(body)
        self._check(live, document)
        if subresource:
            document = live | {subresource: document.get(subresource, {})}
        stored = live if live == document else self.put(resource, document)
        return msgspec.convert(stored, resource.type)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        self._enter(f"patch {subresource}".strip(), resource, name)
        live = self._existing(resource, name, namespace)
        self._check(live, patch)
        changes = {field: value for field, value in msgspec.to_builtins(patch).items() if field != "metadata"}
        return msgspec.convert(self.put(resource, _merge(live, changes)), resource.type)

    async def delete(self, resource: Resource[Any], name: str, *, namespace: str = "", uid: str = "") -> None:
        self._enter("delete", resource, name)
        live = self._existing(resource, name, namespace)
        if uid not in {"", live["metadata"]["uid"]}:
            raise ConflictError("another uid", status=409)
        self.remove(resource, name, namespace)

    def _enter(self, verb: str, resource: Resource[Any], name: str) -> None:
        self.calls.append((verb, resource.plural, name))
        if (refusal := self.refusals.get((verb, resource.plural))) is not None:
            raise refusal

    def _existing(self, resource: Resource[Any], name: str, namespace: str) -> Document:
        found = self.find(resource, name, namespace)
        if found is None:
            raise NotFoundError(f"{resource.plural} {name} not found", status=404)
        return found

    @staticmethod
    def _check(live: Document, body: Mapping[str, Any]) -> None:
        if body["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            raise ConflictError("has changed", status=409)


def _place(resource: Resource[Any], metadata: Mapping[str, Any]) -> Place:
    return resource.plural, metadata.get("namespace", ""), metadata["name"]


def _merge(document: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged
