"""An API server in memory, as far as the reconcilers use one. `api_client_contract` holds it to the real one's ways.

Every call passes two gates, so that a test can fail it, or stop its caller for good, before or after it took effect.
"""

import itertools
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

import msgspec

from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import AlreadyExistsError, ConflictError, NotFoundError

T = TypeVar("T", bound=HasMetadata)
Document = dict[str, Any]

BIRTH = datetime(2030, 1, 1, tzinfo=UTC)
WITH_STATUS = {"blockrequests", "addresspools"}
"""Kinds whose status is a subresource."""


class Moment(Enum):
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class Call:
    verb: str
    plural: str
    name: str


Gate = Callable[[Call, Moment], Awaitable[None]]


async def _open(call: Call, moment: Moment) -> None:
    pass


class MemoryApi:
    """Shared by any number of `MemoryClient`s. `notify` is called after each change."""

    def __init__(self) -> None:
        self.notify: Callable[[], None] = lambda: None
        self._objects: dict[tuple[str, str], Document] = {}
        self._numbers = itertools.count(1)

    def all(self, resource: Resource[T]) -> list[T]:
        return [
            msgspec.convert(document, resource.type)
            for (plural, _), document in sorted(self._objects.items())
            if plural == resource.plural
        ]

    def find(self, resource: Resource[T], name: str) -> T | None:
        document = self._objects.get((resource.plural, name))
        return None if document is None else msgspec.convert(document, resource.type)

    def get(self, resource: Resource[T], name: str) -> T:
        return msgspec.convert(self._document(resource, name), resource.type)

    def create(self, resource: Resource[T], body: Mapping[str, Any] | Struct) -> T:
        document = deepcopy(msgspec.to_builtins(body))
        metadata = document["metadata"]
        key = resource.plural, metadata["name"]
        if key in self._objects:
            raise AlreadyExistsError(f"{key} exists", status=409)
        number = next(self._numbers)
        # The real API server's clock has seconds: objects often have the same age.
        metadata |= {"uid": f"uid-{number}", "creationTimestamp": BIRTH.isoformat()}
        if resource.plural in WITH_STATUS:
            document.pop("status", None)
        self._store(key, document)
        return self.get(resource, metadata["name"])

    def patch(self, resource: Resource[T], name: str, patch: Mapping[str, Any], *, subresource: str) -> T:
        document = self._document(resource, name)
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in {None, document["metadata"]["resourceVersion"]}:
            raise ConflictError(f"{name} has changed", status=409)
        change: Document = dict(deepcopy(msgspec.to_builtins(patch)))
        if subresource == "status":
            change = {"status": change.get("status", {})}
        elif resource.plural in WITH_STATUS:
            change.pop("status", None)
        changed = _merge(deepcopy(document), change)
        changed["metadata"]["resourceVersion"] = document["metadata"]["resourceVersion"]
        if changed["metadata"].get("deletionTimestamp") and not changed["metadata"].get("finalizers"):
            self._remove(resource.plural, name)
        elif changed != document:
            self._store((resource.plural, name), changed)
        return msgspec.convert(changed, resource.type)

    def delete(self, resource: Resource[Any], name: str, *, uid: str = "") -> None:
        document = self._document(resource, name)
        metadata = document["metadata"]
        if uid not in {"", metadata["uid"]}:
            raise ConflictError(f"the uid of {name} is another", status=409)
        if not metadata.get("finalizers"):
            self._remove(resource.plural, name)
        elif "deletionTimestamp" not in metadata:
            changed = deepcopy(document)
            changed["metadata"]["deletionTimestamp"] = BIRTH.isoformat()
            self._store((resource.plural, name), changed)

    def _document(self, resource: Resource[Any], name: str) -> Document:
        try:
            return self._objects[resource.plural, name]
        except KeyError:
            raise NotFoundError(f"{resource.plural} {name} not found", status=404) from None

    def _remove(self, plural: str, name: str) -> None:
        del self._objects[plural, name]
        self.notify()

    def _store(self, key: tuple[str, str], document: Document) -> None:
        document["metadata"]["resourceVersion"] = str(next(self._numbers))
        self._objects[key] = document
        self.notify()


class MemoryClient:
    """One caller's connection; an `ApiClient`. `gate` is awaited before and after every call takes effect."""

    def __init__(self, api: MemoryApi, gate: Gate = _open) -> None:
        self.api = api
        self.gate = gate
        self.calls: list[Call] = []

    async def get(self, resource: Resource[T], name: str) -> T:
        return await self._call("get", resource, name, lambda: self.api.get(resource, name))

    async def list(self, resource: Resource[T], *, labels: str = "") -> list[T]:
        wanted = dict(pair.split("=") for pair in labels.split(",") if pair)
        return await self._call(
            "list",
            resource,
            "",
            lambda: [item for item in self.api.all(resource) if wanted.items() <= item.metadata.labels.items()],
        )

    async def create(self, resource: Resource[T], body: Mapping[str, Any] | Struct) -> T:
        name = msgspec.to_builtins(body)["metadata"]["name"]
        return await self._call("create", resource, name, lambda: self.api.create(resource, body))

    async def patch(self, resource: Resource[T], name: str, patch: Mapping[str, Any], *, subresource: str = "") -> T:
        return await self._call(
            "patch", resource, name, lambda: self.api.patch(resource, name, patch, subresource=subresource)
        )

    async def delete(self, resource: Resource[T], name: str, *, uid: str = "") -> None:
        await self._call("delete", resource, name, lambda: self.api.delete(resource, name, uid=uid))

    async def _call(self, verb: str, resource: Resource[Any], name: str, effect: Callable[[], "Answer"]) -> "Answer":
        call = Call(verb, resource.plural, name)
        self.calls.append(call)
        await self.gate(call, Moment.BEFORE)
        answer = effect()
        await self.gate(call, Moment.AFTER)
        return answer


Answer = TypeVar("Answer")


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
