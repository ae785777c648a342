"""An API server in memory, as far as a migration uses one: objects by kind, namespace and name, and people to annoy it.

`reactions` play the controllers and kubelets: each is called after every deletion.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from coil.crd.builtin import PODS
from coil.crd.names import LABEL_NODE, LABEL_POOL, LABEL_RESERVED, RESERVED
from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import ApiError
from tests.coil.kube.memory_api import Call, Document, MemoryApi, MemoryClient, Moment

T = TypeVar("T", bound=HasMetadata)


class MemoryCluster(MemoryClient):
    """`changes` are the writes that took effect; `faults` are raised by the next calls of a verb."""

    def __init__(self) -> None:
        super().__init__(MemoryApi(), self._pass)
        self.objects = self.api.objects
        self.changes: list[str] = []
        self.faults: dict[str, list[ApiError]] = {}
        self.reactions: list[Callable[[str, Document], None]] = []
        self.stubborn: set[str] = set()
        """Names of objects that are deleted in vain, as finalizers do it."""

    # --- for tests

    def add(self, plural: str, name: str, *, namespace: str = "", **fields: Any) -> Document:
        metadata = {"name": name, "namespace": namespace} | fields.pop("metadata", {})
        resource: Resource[Any] = Resource("", "v1", plural, plural, namespaced=bool(namespace), type=dict)
        self.api.put(resource, {"metadata": metadata, **fields})
        return self.objects[plural, namespace, name]

    def add_pod(self, name: str, address: str, *, node: str = "node-1", **fields: Any) -> Document:
        """A pod of a controller, in the namespace `apps`, unless `fields` say otherwise."""
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
        metadata = {"ownerReferences": [owner]} | fields.pop("metadata", {})
        spec = {"nodeName": node} | fields.pop("spec", {})
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "podIPs": [{"ip": address}], "conditions": [ready]} | fields.pop("status", {})
        return self.add("pods", name, namespace="apps", metadata=metadata, spec=spec, status=status)

    def add_block(self, name: str, ipv4: str, *, reserved: bool = True) -> None:
        labels = {LABEL_POOL: "default", LABEL_NODE: "node-1"} | ({LABEL_RESERVED: RESERVED} if reserved else {})
        self.add("addressblocks", name, metadata={"labels": labels}, index=0, ipv4=ipv4)

    def names(self, plural: str) -> list[str]:
        return sorted(name for kind, _, name in self.objects if kind == plural)

    def document(self, plural: str, name: str, namespace: str = "") -> Document:
        return self.objects[plural, namespace, name]

    # --- as the API server

    async def delete(self, resource: Resource[T], name: str, *, namespace: str = "", uid: str = "") -> None:
        document = self.api.find_document(resource, name, namespace)
        await super().delete(resource, name, namespace=namespace, uid=uid)
        self._react(resource, document)

    async def evict(self, name: str, *, namespace: str, uid: str = "") -> None:
        document = self.api.find_document(PODS, name, namespace)
        await super().evict(name, namespace=namespace, uid=uid)
        self._react(PODS, document)

    def _react(self, resource: Resource[Any], document: Document | None) -> None:
        assert document is not None
        if document["metadata"]["name"] in self.stubborn:
            ending = {**document["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
            self.api.put(resource, {**document, "metadata": ending})
        for react in self.reactions:
            react(resource.plural, document)

    async def _pass(self, call: Call, moment: Moment) -> None:
        if moment is Moment.BEFORE:
            if waiting := self.faults.get(call.verb):
                raise waiting.pop(0)
        elif call.verb in {"patch", "delete", "evict"}:
            self.changes.append(f"{call.verb} {call.plural} {call.name}")
