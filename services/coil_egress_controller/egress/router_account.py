"""The ServiceAccount of router pods, in each namespace that has Egresses and in no other, and what it is allowed to do.

A RoleBinding lets it watch the Egresses and EgressClientSlices of its own namespace. Both are created with the first
Egress and deleted after the last one. What somebody else has created under their names is used as it is and never
deleted: ours have labels. They are not written to after their creation, so that image pull secrets and annotations may
be added.

Router pods of former images find their clients among the pods of all namespaces. For these the chart creates the
ClusterRoleBinding `coil-egress` on request, without subjects; here its subjects follow the namespaces that have
Egresses. Other subjects are left alone. Each change is guarded by the resource version that it was decided on.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import (
    CLUSTER_ROLE_BINDINGS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    ClusterRoleBinding,
    RoleBinding,
    ServiceAccount,
    Subject,
)
from coil.crd.egress import EGRESSES, Egress
from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_NAME
from coil.crd.resource import HasMetadata, Resource
from coil.egress.router_pod import ROUTER_ACCOUNT
from coil.kube.api_client import ApiClient, Document
from coil.kube.errors import AlreadyExistsError, NamespaceTerminatingError, NotFoundError
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, Result

WORKERS = 2
BY_NAMESPACE = "namespace"
EGRESS_INDEXERS: Mapping[str, Callable[[Egress], Iterable[str]]] = {
    BY_NAMESPACE: lambda egress: [egress.metadata.namespace]
}
"""What the cache of Egresses needs."""
ROUTER_ROLE = "coil-egress"
"""A ClusterRole of the chart's."""
ROUTER_BINDING = "coil-egress"
_ACCOUNT = "ServiceAccount"
_LABELS = {LABEL_APP_NAME: APP_NAME, LABEL_APP_COMPONENT: COMPONENT_EGRESS}


class RouterAccountReconciler:
    """The keys are names of namespaces."""

    def __init__(
        self,
        *,
        client: ApiClient,
        egresses: Cache[Egress],
        accounts: Cache[ServiceAccount],
        bindings: Cache[RoleBinding],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._egresses = egresses
        self._caches: Mapping[Resource[Any], Cache[Any]] = {SERVICE_ACCOUNTS: accounts, ROLE_BINDINGS: bindings}
        self._log = log

    def setup(self, term: Term) -> None:
        controller = term.controller("routeraccount", self.reconcile, workers=WORKERS)
        controller.watch(self._egresses, _namespaces_of_change)
        for cache in self._caches.values():
            controller.watch(cache, _namespaces_of_change)

    async def reconcile(self, namespace: str) -> Result:
        """Create or delete the account of that namespace and its binding."""
        if self._egresses.by_index(BY_NAMESPACE, namespace):
            await self.ensure(namespace)
        else:
            await self._remove(namespace)
        return DONE

    async def ensure(self, namespace: str) -> None:
        """Create what is not there. Idempotent; raises ApiError."""
        for resource, document in _plan(namespace):
            if self._caches[resource].get(f"{namespace}/{ROUTER_ACCOUNT}") is not None:
                continue
            try:
                await self._client.create(resource, document, namespace=namespace)
            except AlreadyExistsError:
                continue
            except (NamespaceTerminatingError, NotFoundError):
                self._log.debug("no account is created in a namespace that is being deleted", namespace=namespace)
                return
            self._log.info("created", kind=resource.kind, namespace=namespace, name=ROUTER_ACCOUNT)

    async def _remove(self, namespace: str) -> None:
        present = [
            (resource, found)
            for resource, cache in self._caches.items()
            if (found := cache.get(f"{namespace}/{ROUTER_ACCOUNT}")) is not None
        ]
        # The cache may not show an Egress yet that has just been created.
        if not present or await self._client.list(EGRESSES, namespace=namespace):
            return
        for resource, found in present:
            try:
                await self._client.delete(resource, ROUTER_ACCOUNT, namespace=namespace, uid=found.metadata.uid)
            except NotFoundError:
                continue
            self._log.info("deleted", kind=resource.kind, namespace=namespace, name=ROUTER_ACCOUNT)


def _plan(namespace: str) -> Iterable[tuple[Resource[Any], Document]]:
    """What a namespace with Egresses has."""
    metadata = {"name": ROUTER_ACCOUNT, "namespace": namespace, "labels": _LABELS}
    yield SERVICE_ACCOUNTS, {"metadata": metadata}
    role = {"apiGroup": ROLE_BINDINGS.group, "kind": "ClusterRole", "name": ROUTER_ROLE}
    subject = {"kind": _ACCOUNT, "name": ROUTER_ACCOUNT, "namespace": namespace}
    yield ROLE_BINDINGS, {"metadata": metadata, "roleRef": role, "subjects": [subject]}


def _namespaces_of_change(old: HasMetadata | None, new: HasMetadata | None) -> Iterable[str]:
    """Of an object that was created or deleted."""
    present = new or old
    return [] if present is None or (old is not None and new is not None) else [present.metadata.namespace]


class ClusterRoleBindingReconciler:
    """The key is the binding's name. Where there is none, no router pod needs it."""

    def __init__(
        self,
        *,
        client: ApiClient,
        egresses: Cache[Egress],
        bindings: Cache[ClusterRoleBinding],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._egresses = egresses
        self._bindings = bindings
        self._log = log

    def setup(self, term: Term) -> None:
        controller = term.controller("clusterrolebinding", self.reconcile)
        controller.watch(self._egresses, _binding_of_change)
        controller.watch(self._bindings, lambda _old, _new: [ROUTER_BINDING])
        # The cluster may have lost its last Egress while no replica was the leader.
        controller.enqueue(ROUTER_BINDING)

    async def reconcile(self, name: str) -> Result:
        """Bring the subjects of the binding of that name in line."""
        binding = self._bindings.get(name)
        if binding is None:
            return DONE
        namespaces = {egress.metadata.namespace for egress in self._egresses.items()}
        before = binding.subjects or ()
        subjects = plan_subjects(before, namespaces)
        if subjects != before:
            await self._client.patch(
                CLUSTER_ROLE_BINDINGS,
                name,
                {
                    "metadata": {"resourceVersion": binding.metadata.resource_version},
                    "subjects": list(subjects),
                },
            )
            self._log.info("subjects changed", name=name, before=len(before), after=len(subjects))
        return DONE


def plan_subjects(present: tuple[Subject, ...], namespaces: Collection[str]) -> tuple[Subject, ...]:
    """The wanted subjects: the present ones that stay, in their order, then new ones, by namespace."""
    kept = tuple(subject for subject in present if not _is_ours(subject) or subject.namespace in namespaces)
    known = {subject.namespace for subject in kept if _is_ours(subject)}
    new = sorted(set(namespaces) - known)
    return kept + tuple(Subject(kind=_ACCOUNT, name=ROUTER_ACCOUNT, namespace=namespace) for namespace in new)


def _is_ours(subject: Subject) -> bool:
    return (subject.kind, subject.name) == (_ACCOUNT, ROUTER_ACCOUNT)


def _binding_of_change(old: Egress | None, new: Egress | None) -> Iterable[str]:
    """An Egress was created or deleted."""
    return [ROUTER_BINDING] if (old is None) != (new is None) else []
