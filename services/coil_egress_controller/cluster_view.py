"""The controller's picture of the cluster: informer caches, and the index that it looks things up by.

A picture may be late. Every write carries the version that it was decided on, and what a picture lacks is asked for
before something is made in its place, or taken away for good.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from coil.crd.builtin import ClusterRoleBinding, Deployment, PodDisruptionBudget, Service, ServiceAccount
from coil.crd.egress import Egress

T = TypeVar("T")

BY_NAMESPACE = "namespace"

EGRESS_INDEXERS: Mapping[str, Callable[[Egress], Iterable[str]]] = {
    BY_NAMESPACE: lambda egress: [egress.metadata.namespace]
}


class Cache(Protocol[T]):
    """The reading side of `coil.reconcile`'s informer."""

    def get(self, key: str) -> T | None: ...

    def items(self) -> list[T]: ...

    def by_index(self, index: str, value: str) -> list[T]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Egresses are indexed by namespace. Of the other kinds only those with the labels of an Egress's things are there;
    of bindings only the router pods' one."""

    egresses: Cache[Egress]
    deployments: Cache[Deployment]
    services: Cache[Service]
    budgets: Cache[PodDisruptionBudget]
    accounts: Cache[ServiceAccount]
    bindings: Cache[ClusterRoleBinding]

    def namespaces(self) -> list[str]:
        """Those that have Egresses, in order."""
        return sorted({egress.metadata.namespace for egress in self.egresses.items()})
