"""The API server as an event recorder sees it: it keeps Events, and fails when a test wants it to."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from coil.crd.event import EVENTS, Event
from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import AlreadyExistsError, ApiError, NotFoundError

T = TypeVar("T", bound=HasMetadata)


@dataclass
class EventApi:
    """`fate` is asked before each call: an error to raise, or None. `lost` is asked after it took effect."""

    clock: Callable[[], float] = lambda: 0.0
    fate: Callable[[str], ApiError | None] = lambda verb: None
    lost: Callable[[str], ApiError | None] = lambda verb: None
    calls: list[tuple[float, str]] = field(default_factory=list)
    documents: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def events(self) -> list[Event]:
        return [msgspec.convert(document, Event) for document in self.documents.values()]

    def verbs(self) -> list[str]:
        return [verb for _, verb in self.calls]

    async def create(self, resource: Resource[T], body: Mapping[str, Any] | Struct, *, namespace: str = "") -> T:
        self._begin("create", resource)
        document = deepcopy(msgspec.to_builtins(body))
        assert document["metadata"]["namespace"] == namespace
        key = namespace, document["metadata"]["name"]
        if key in self.documents:
            raise AlreadyExistsError(f"{key} exists", status=409)
        self.documents[key] = document
        return self._end("create", resource, document)

    async def patch(self, resource: Resource[T], name: str, patch: Mapping[str, Any], *, namespace: str = "") -> T:
        self._begin("patch", resource)
        if (namespace, name) not in self.documents:
            raise NotFoundError(f"{name} not found", status=404)
        self.documents[namespace, name] |= patch
        return self._end("patch", resource, self.documents[namespace, name])

    def _begin(self, verb: str, resource: Resource[Any]) -> None:
        assert resource is EVENTS
        self.calls.append((self.clock(), verb))
        if (error := self.fate(verb)) is not None:
            raise error

    def _end(self, verb: str, resource: Resource[T], document: dict[str, Any]) -> T:
        if (error := self.lost(verb)) is not None:
            raise error
        return msgspec.convert(document, resource.type)
