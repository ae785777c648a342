"""An API server in memory, the only one of the tests. `api_client_contract` holds it to the ways of the real one.

`MemoryApi` is the server. Its synchronous methods are those of an administrator: `put` and `remove` pass every check,
the others do what the API server does. `MemoryClient` is one program's connection to it, an `ApiClient`: its calls are
recorded, and a test can refuse them, delay them, or stop their caller for good before or after they took effect.
"""

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec

from coil.crd.builtin import PODS
from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import AlreadyExistsError, ApiError, ConflictError, InvalidError, NotFoundError

T = TypeVar("T", bound=HasMetadata)
Answer = TypeVar("Answer")
Body = Mapping[str, Any] | Struct
Document = dict[str, Any]
ObjectId = tuple[str, str, str]
"""Plural, namespace and name."""

BIRTH = datetime(2030, 1, 1, tzinfo=UTC)
WITH_STATUS = frozenset(
    {
        *("addresspools", "blockrequests", "egresses"),
        *("egressgateways", "egressgatewaypolicies", "egresstunnels"),
    }
)
"""Kinds of which a status is dropped on creation, and is only written through its subresource."""
WITHOUT_GENERATION = frozenset({"nodes", "pods", "services"})


class Moment(Enum):
    BEFORE = "before"
    AFTER = "after"


class Call(NamedTuple):
    """`verb` has the subresource, if any, after a space: "patch status"."""

    verb: str
    plural: str
    name: str


Gate = Callable[[Call, Moment], Awaitable[None]]


async def _open(call: Call, moment: Moment) -> None:
    pass


class MemoryApi:
    """Shared by any number of `MemoryClient`s. `now` dates what is created."""

    def __init__(self, now: Callable[[], datetime] = lambda: BIRTH) -> None:
        """The served versions by API group."""
        self._now = now
        self.objects: dict[ObjectId, Document] = {}
        """As they are stored. Changed by hand, nobody is notified."""
        self._numbers = itertools.count(1)
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call it after each change."""
        self._listeners.append(listener)

    # --- past every check

    def put(self, resource: Resource[Any], body: Mapping[str, Any] | HasMetadata) -> Document:
        """Create or overwrite an object, its status included; returns a copy of what is stored."""
        document = _document(body)
        metadata = document["metadata"]
        before = self.objects.get(_id(resource, metadata))
        if before is None:
            metadata.setdefault("uid", f"uid-{next(self._numbers)}")
            metadata.setdefault("creationTimestamp", self._now().isoformat())
        else:
            for field in ("uid", "creationTimestamp"):
                metadata.setdefault(field, before["metadata"][field])
        return deepcopy(self._store(resource, before, document))

    def remove(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        """At once, whatever finalizers there are. KeyError if there is no such object."""
        del self.objects[resource.plural, namespace, name]
        self._notify()

    # --- reading

    def find(self, resource: Resource[T], name: str, namespace: str = "") -> T | None:
        document = self.objects.get((resource.plural, namespace, name))
        return None if document is None else msgspec.convert(document, resource.type)

    def find_document(self, resource: Resource[Any], name: str, namespace: str = "") -> Document | None:
        """A copy."""
        return deepcopy(self.objects.get((resource.plural, namespace, name)))

    def all(self, resource: Resource[T], namespace: str = "") -> list[T]:
        return [
            msgspec.convert(document, resource.type)
            for (plural, found, _), document in sorted(self.objects.items())
            if plural == resource.plural and namespace in {"", found}
        ]

    # --- as the API server does it

    def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        return msgspec.convert(self._existing(resource, name, namespace), resource.type)

    def create(self, resource: Resource[T], body: Body) -> T:
        document = _document(body)
        metadata = document["metadata"]
        if (key := _id(resource, metadata)) in self.objects:
            raise AlreadyExistsError(f"{key} exists", status=409)
        # The real API server's clock has seconds: objects often have the same age.
        metadata |= {"uid": f"uid-{next(self._numbers)}", "creationTimestamp": self._now().isoformat()}
        if resource.plural in WITH_STATUS:
            document.pop("status", None)
        return msgspec.convert(self._store(resource, None, document), resource.type)

    def replace(self, resource: Resource[T], body: Body, *, name: str, namespace: str = "", subresource: str = "") -> T:
        document = _document(body)
        live = self._existing(resource, name, namespace)
        if not document["metadata"].get("resourceVersion"):
            raise InvalidError("metadata.resourceVersion: must be specified for an update", status=422)
        _check_preconditions(live, document)
        if subresource:
            document = live | {subresource: document.get(subresource, {})}
        else:
            for field in ("uid", "creationTimestamp", "generation"):
                document["metadata"] |= {field: live["metadata"][field]} if field in live["metadata"] else {}
            if resource.plural in WITH_STATUS:
                document.pop("status", None)
                document |= {"status": live["status"]} if "status" in live else {}
        return self._update(resource, live, document)

    def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        live = self._existing(resource, name, namespace)
        if not isinstance(patch, Mapping):
            return self._update(resource, live, _apply_operations(live, patch))
        _check_preconditions(live, patch)
        changes: Document = msgspec.to_builtins(patch)
        if subresource:
            changes = {subresource: changes.get(subresource, {})}
        elif resource.plural in WITH_STATUS:
            changes = {field: value for field, value in changes.items() if field != "status"}
        return self._update(resource, live, _merge(deepcopy(live), deepcopy(changes)))

    def delete(self, resource: Resource[Any], name: str, *, namespace: str = "", uid: str = "") -> None:
        live = self._existing(resource, name, namespace)
        metadata = live["metadata"]
        if uid not in {"", metadata["uid"]}:
            raise ConflictError(f"the uid of {name} is another", status=409)
        if not metadata.get("finalizers"):
            self.remove(resource, name, namespace)
        elif "deletionTimestamp" not in metadata:
            changed = deepcopy(live)
            changed["metadata"]["deletionTimestamp"] = self._now().isoformat()
            self._store(resource, live, changed)

    def _existing(self, resource: Resource[Any], name: str, namespace: str) -> Document:
        try:
            return self.objects[resource.plural, namespace, name]
        except KeyError:
            raise NotFoundError(f"{resource.plural} {name} not found", status=404) from None

    def _update(self, resource: Resource[T], live: Document, changed: Document) -> T:
        changed["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        if changed["metadata"].get("deletionTimestamp") and not changed["metadata"].get("finalizers"):
            self.remove(resource, changed["metadata"]["name"], changed["metadata"].get("namespace", ""))
        elif changed != live:
            self._store(resource, live, changed)
        return msgspec.convert(changed, resource.type)

    def _store(self, resource: Resource[Any], before: Document | None, document: Document) -> Document:
        metadata = document["metadata"]
        if "spec" in document and resource.plural not in WITHOUT_GENERATION:
            grown = before is None or before.get("spec") != document["spec"]
            known = 0 if before is None else before["metadata"].get("generation", 0)
            metadata["generation"] = known + int(grown)
        metadata["resourceVersion"] = str(next(self._numbers))
        self.objects[_id(resource, metadata)] = document
        self._notify()
        return document

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


class MemoryClient:
    """One caller's connection; an `ApiClient`. `gate` is awaited before and after every call takes effect.

    `refusals` are raised by calls, by verb and plural, for as long as they stand there.
    """

    def __init__(self, api: MemoryApi, gate: Gate = _open) -> None:
        self.api = api
        self.gate = gate
        self.calls: list[Call] = []
        self.refusals: dict[tuple[str, str], ApiError] = {}

    def writes(self) -> list[tuple[str, str]]:
        """Verb and plural of each write that was asked for."""
        return [(call.verb, call.plural) for call in self.calls if call.verb not in {"get", "list"}]

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        _check_scope(resource, namespace)
        return await self._call("get", resource, name, lambda: self.api.get(resource, name, namespace))

    async def get_document(self, resource: Resource[Any], name: str, *, namespace: str = "") -> Document:
        _check_scope(resource, namespace)

        def read() -> Document:
            self.api.get(resource, name, namespace)
            found = self.api.find_document(resource, name, namespace)
            assert found is not None
            return found | {"apiVersion": resource.api_version, "kind": resource.kind}

        return await self._call("get", resource, name, read)

    async def list(self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = "") -> list[T]:
        """`fields` are paths in the document, such as `spec.nodeName=n1`."""
        wanted = dict(pair.split("=") for pair in labels.split(",") if pair)
        values = [pair.split("=") for pair in fields.split(",") if pair]

        def select() -> list[T]:
            return [
                item
                for item in self.api.all(resource, namespace)
                if wanted.items() <= item.metadata.labels.items()
                and all(
                    _field(self.api.find_document(resource, *_place(item)), path) == value for path, value in values
                )
            ]

        return await self._call("list", resource, namespace, select)

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        _check_scope(resource, namespace)
        document = _document(body)
        if namespace:
            assert document["metadata"].setdefault("namespace", namespace) == namespace
        return await self._call(
            "create", resource, document["metadata"].get("name", ""), lambda: self.api.create(resource, document)
        )

    async def replace(
        self, resource: Resource[T], body: Body, *, name: str, namespace: str = "", subresource: str = ""
    ) -> T:
        _check_scope(resource, namespace)
        return await self._call(
            f"replace {subresource}".strip(),
            resource,
            name,
            lambda: self.api.replace(resource, body, name=name, namespace=namespace, subresource=subresource),
        )

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        _check_scope(resource, namespace)
        return await self._call(
            f"patch {subresource}".strip(),
            resource,
            name,
            lambda: self.api.patch(resource, name, patch, namespace=namespace, subresource=subresource),
        )

    async def delete(self, resource: Resource[T], name: str, *, namespace: str = "", uid: str = "") -> None:
        _check_scope(resource, namespace)
        await self._call(
            "delete", resource, name, lambda: self.api.delete(resource, name, namespace=namespace, uid=uid)
        )

    async def evict(self, name: str, *, namespace: str, uid: str = "") -> None:
        await self._call("evict", PODS, name, lambda: self.api.delete(PODS, name, namespace=namespace, uid=uid))

    async def _call(self, verb: str, resource: Resource[Any], name: str, effect: Callable[[], Answer]) -> Answer:
        call = Call(verb, resource.plural, name)
        self.calls.append(call)
        await self.gate(call, Moment.BEFORE)
        if (refusal := self.refusals.get((verb, resource.plural))) is not None:
            raise refusal
        answer = effect()
        await self.gate(call, Moment.AFTER)
        return answer


def _document(body: Mapping[str, Any] | HasMetadata | Struct) -> Document:
    """A copy of its own, as JSON has it, and without what the kind's name says already."""
    document: Document = msgspec.json.decode(msgspec.json.encode(body))
    return {field: value for field, value in document.items() if field not in {"apiVersion", "kind"}}


def _id(resource: Resource[Any], metadata: Mapping[str, Any]) -> ObjectId:
    return resource.plural, metadata.get("namespace", ""), metadata["name"]


def _check_scope(resource: Resource[Any], namespace: str) -> None:
    if resource.namespaced != bool(namespace):
        raise ValueError(f"{resource.kind} and the namespace {namespace!r}")


def _check_preconditions(live: Document, body: Mapping[str, Any]) -> None:
    asked, metadata = body.get("metadata", {}), live["metadata"]
    if asked.get("resourceVersion", "") not in {"", metadata["resourceVersion"]}:
        raise ConflictError(f"{metadata['name']} has changed", status=409)
    if asked.get("uid", "") not in {"", metadata["uid"]}:
        raise InvalidError("metadata.uid: field is immutable", status=422)


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


def _apply_operations(document: Document, operations: Sequence[Mapping[str, Any]]) -> Document:
    """RFC 6902, as far as the suite uses it: `test`, `add` and `replace` of members of objects, `add` at the end of a
    list and `replace` within one.
    """
    changed = deepcopy(document)
    for operation in msgspec.to_builtins(operations):
        *path, last = operation["path"].removeprefix("/").split("/")
        parent: Any = changed
        try:
            for step in path:
                parent = parent[int(step) if isinstance(parent, list) else step]
        except (KeyError, IndexError) as error:
            raise InvalidError("a path leads nowhere", status=422) from error
        if operation["op"] == "test":
            if parent.get(last) != operation["value"]:
                raise InvalidError("a test failed", status=422)
        elif isinstance(parent, list) and last == "-":
            assert operation["op"] == "add"
            parent.append(operation["value"])
        elif isinstance(parent, list):
            assert operation["op"] == "replace"
            parent[int(last)] = operation["value"]
        else:
            assert operation["op"] in {"add", "replace"}
            parent[last] = operation["value"]
    return changed


def _place(item: HasMetadata) -> tuple[str, str]:
    return item.metadata.name, item.metadata.namespace


def _field(document: Any, path: str) -> Any:
    """The text at the path; "" where there is nothing, as the API server has it."""
    for part in path.split("."):
        document = (document or {}).get(part)
    return document or ""
