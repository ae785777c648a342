"""The pods of this node as the API server has them, found by what a runtime tells of a pod, or by its addresses.

A name alone says little: a pod that is deleted and made again has the name of the one whose sandbox is on its way out.
So a pod is known by its UID where the runtime tells it, and by an address that it has where only a name is left, after
a restart. In doubt it is none: to leave a pod alone can be made up for when the API server tells more.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from coil.crd.builtin import PODS, Pod
from coil.crd.names import NodeName
from coil.egress.client_pod import FINAL_PHASES, client_addresses
from coil.kernel.family import IPAddress
from coil.reconcile.store import Indexer
from coild.egress.api_reader import APIReader
from coild.model.address_source import PodName

BY_ADDRESS = "address"
BY_UID = "uid"
"""Indexes of the cache."""

STATIC_POD_HASH = "kubernetes.io/config.hash"
"""Annotation of a static pod's mirror: the UID by which kubelet and runtime know the pod, other than the mirror's."""


class PodCache(Protocol):
    """The part of `coil.reconcile.informer.Informer` that is used here; with `INDEXERS`."""

    def get(self, key: str) -> Pod | None: ...

    def by_index(self, index: str, value: str) -> list[Pod]: ...


def pod_uids(pod: Pod) -> list[str]:
    """The UIDs by which a pod may be known: a static pod has two."""
    return [uid for uid in (pod.metadata.uid, pod.metadata.annotations.get(STATIC_POD_HASH, "")) if uid]


INDEXERS: Mapping[str, Indexer[Pod]] = {
    BY_ADDRESS: lambda pod: map(str, client_addresses(pod)),
    BY_UID: pod_uids,
}
"""Those that the cache must have."""


class NodePods:
    """`cache` holds the pods that are bound to the node."""

    def __init__(self, cache: PodCache, ask: APIReader, *, node: NodeName) -> None:
        self._cache = cache
        self._ask = ask
        self._node = node

    async def find(self, name: PodName, *, deadline: float) -> Pod | None:
        """The pod of an ADD; the API server is asked where the cache has not heard of it, until `deadline` at most.

        None where there is no such pod, and where the API server does not answer. Then the pod is not held up: who
        starts pods without an API server are kubelets that know them from their own disk. The cache will tell.
        """
        pod = self._cache.get(f"{name.namespace}/{name.name}")
        if pod is not None and _is(pod, name.uid):
            return pod
        pod = await self._ask.get(PODS, name.name, namespace=name.namespace, deadline=deadline)
        if pod is None:
            return None
        return pod if _is(pod, name.uid) and pod.spec.node_name == self._node else None

    def known(self, name: PodName | None, addresses: Iterable[IPAddress]) -> Pod | None:
        """The pod of an attachment, out of the cache. Without a UID it is known by its addresses; never a guess."""
        if name is not None and name.uid:
            return _only(self._cache.by_index(BY_UID, name.uid))
        found = [
            pod
            for address in addresses
            for pod in self._cache.by_index(BY_ADDRESS, str(address))
            if not pod.spec.host_network and pod.status.phase not in FINAL_PHASES
        ]
        return _only(pod for pod in found if name is None or _name(pod) == (name.namespace, name.name))


def _only(pods: Iterable[Pod]) -> Pod | None:
    """The one that it is, if it is not several."""
    found = {pod.metadata.uid: pod for pod in pods}
    return next(iter(found.values())) if len(found) == 1 else None


def _name(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.name


def _is(pod: Pod, uid: str) -> bool:
    return not uid or uid in pod_uids(pod)
