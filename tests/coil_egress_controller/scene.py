"""The egress-controller's reconcilers over an API server in memory, with caches that follow when they are told to."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import structlog

from coil.crd.builtin import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    POD_DISRUPTION_BUDGETS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from coil.crd.egress import EGRESSES
from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.egress.router_pod import RouterProgram
from coil.kube.errors import ApiError
from coil.reconcile.cache import Listener
from coil.reconcile.event_series import EventSubject
from coil.reconcile.store import Indexer, Store
from coil_egress_controller.egress.client_slice_reconciler import CLIENT_PODS, POD_INDEXERS, SLICE_INDEXERS
from coil_egress_controller.egress.controllers import EgressCaches
from coil_egress_controller.egress.egress_reconciler import EgressReconciler, RouterCaches
from coil_egress_controller.egress.router_account import (
    EGRESS_INDEXERS,
    ClusterRoleBindingReconciler,
    RouterAccountReconciler,
)
from tests.coil.kube.memory_api import Document, MemoryApi, MemoryClient

T = TypeVar("T", bound=HasMetadata)

PROGRAM = RouterProgram(image="coil:1", port=5555)
KEY = "internet/nat"
LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])


class MemoryCache(Generic[T]):
    """A `Cache` that is as late as the test wants it, and tells its listeners what has changed when it looks."""

    def __init__(self, api: MemoryApi, resource: Resource[T], indexers: Mapping[str, Indexer[T]] | None = None) -> None:
        self._api = api
        self._resource = resource
        self._store: Store[T] = Store(indexers or {})
        self._listeners: list[Listener[T]] = []
        self._listed = asyncio.Event()
        self._listed.set()
        self.last_error: ApiError | None = None

    @property
    def synced(self) -> bool:
        return self._listed.is_set()

    def unserve(self) -> None:
        """The kind is not served until `serve`. To be called before the first `look`."""
        self._listed.clear()

    def serve(self) -> None:
        self._listed.set()
        self.look()

    async def wait_synced(self, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await self._listed.wait()

    def subscribe(self, listener: Listener[T], /) -> None:
        for item in self.items():
            listener(None, item)
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener[T], /) -> None:
        self._listeners.remove(listener)

    def look(self) -> None:
        if not self.synced:
            return
        present = {object_key(item.metadata): item for item in self._present()}
        for key in [key for key in self._store if key not in present]:
            self._tell(self._store.remove(key), None)
        for key, new in present.items():
            old = self._store.get(key)
            if old is not None and old.metadata.uid != new.metadata.uid:
                self._tell(self._store.remove(key), None)
            if old != new:
                self._tell(self._store.put(key, new), new)

    def _present(self) -> list[T]:
        return self._api.all(self._resource)

    def _tell(self, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            listener(old, new)

    def get(self, key: str) -> T | None:
        return self._store.get(key)

    def items(self) -> list[T]:
        return self._store.items()

    def by_index(self, index: str, value: str) -> list[T]:
        return self._store.by_index(index, value)


@dataclass
class Told:
    """A `Recorder`: messages by reason."""

    messages: dict[str, str] = field(default_factory=dict)

    def warn(self, subject: EventSubject, *, reason: str, message: str) -> None:
        assert subject.kind == "Egress"
        self.messages[reason] = message

    note = warn


class Scene:
    """`look` lets all caches follow."""

    def __init__(self, *, privileged_templates: bool = False) -> None:
        self.api = MemoryApi()
        self.client = MemoryClient(self.api)
        self.told = Told()
        self.egress_cache = MemoryCache(self.api, EGRESSES, EGRESS_INDEXERS)
        self.deployment_cache = MemoryCache(self.api, DEPLOYMENTS)
        self.service_cache = MemoryCache(self.api, SERVICES)
        self.budget_cache = MemoryCache(self.api, POD_DISRUPTION_BUDGETS)
        self.account_cache = MemoryCache(self.api, SERVICE_ACCOUNTS)
        self.binding_cache = MemoryCache(self.api, ROLE_BINDINGS)
        self.cluster_binding_cache = MemoryCache(self.api, CLUSTER_ROLE_BINDINGS)
        self.client_cache = MemoryCache(self.api, CLIENT_PODS, POD_INDEXERS)
        self.networks_cache = MemoryCache(self.api, CONFIG_MAPS)
        self.namespace_cache = MemoryCache(self.api, NAMESPACES)
        self.client_slice_cache = MemoryCache(self.api, EGRESS_CLIENT_SLICES, SLICE_INDEXERS)
        self.caches = EgressCaches(
            egresses=self.egress_cache,
            deployments=self.deployment_cache,
            services=self.service_cache,
            budgets=self.budget_cache,
            accounts=self.account_cache,
            bindings=self.binding_cache,
            cluster_bindings=self.cluster_binding_cache,
            clients=self.client_cache,
            namespaces=self.namespace_cache,
            client_slices=self.client_slice_cache,
        )
        self.accounts = RouterAccountReconciler(
            client=self.client,
            egresses=self.egress_cache,
            accounts=self.account_cache,
            bindings=self.binding_cache,
            log=LOG,
        )
        self.bindings = ClusterRoleBindingReconciler(
            client=self.client, egresses=self.egress_cache, bindings=self.cluster_binding_cache, log=LOG
        )
        self.egresses = EgressReconciler(
            client=self.client,
            egresses=self.egress_cache,
            routers=RouterCaches(
                deployments=self.deployment_cache,
                services=self.service_cache,
                budgets=self.budget_cache,
                cluster_networks=self.networks_cache,
            ),
            accounts=self.accounts,
            recorder=self.told,
            program=PROGRAM,
            privileged_templates=privileged_templates,
            log=LOG,
        )

    def look(self) -> None:
        caches: tuple[MemoryCache[Any], ...] = (
            *(self.egress_cache, self.deployment_cache, self.service_cache),
            *(self.budget_cache, self.account_cache, self.binding_cache, self.cluster_binding_cache),
            *(self.client_cache, self.namespace_cache, self.client_slice_cache, self.networks_cache),
        )
        for cache in caches:
            cache.look()

    def add_egress(self, name: str = "nat", namespace: str = "internet", **spec: Any) -> Document:
        """Make or change one; the caches follow."""
        before = self.api.find_document(EGRESSES, name, namespace)
        metadata = before["metadata"] if before else {"name": name, "namespace": namespace}
        document = {"metadata": metadata, "spec": {"destinations": ["0.0.0.0/0"], **spec}}
        stored = self.api.put(EGRESSES, (before or {}) | document)
        self.look()
        return stored

    def find(self, resource: Resource[Any], name: str = "nat") -> Document:
        """What there must be."""
        found = self.api.find_document(resource, name, "internet")
        assert found is not None, resource.plural
        return found
