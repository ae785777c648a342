"""The pods of this node as the API server has them, found by what a runtime tells of a pod, or by its addresses.

A name alone says little: a pod that is deleted and made again has the name of the one whose sandbox is on its way out.
So a pod is known by its UID where the runtime tells it, and by an address that it has where only a name is left, after
a restart. In doubt it is none: an ADD is refused then, and a pod that runs is left as it is.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from coil.crd.builtin import PODS, Pod
from coil.crd.names import NodeName
from coil.egress.client_pod import FINAL_PHASES, client_addresses
from coil.kernel.family import IPAddress
from coil.kube.errors import NotFoundError
from coil.reconcile.store import Indexer
from coild.egress.api_reader import APIReader, NoAnswerError
from coild.model.attachment import PodName
from coild.model.pod_egress import PodUnknownError

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

    def __init__(self, cache: PodCache, reader: APIReader, *, node: NodeName) -> None:
        self._cache = cache
        self._reader = reader
        self._node = node

    async def find(self, name: PodName, *, deadline: float) -> Pod:
        """The pod of an ADD: from the cache, or read from the API server until `deadline` (the event loop's clock).

        Without a UID it is always read: a cached pod of that name may be its predecessor. Raises PodUnknownError if
        there is no such pod on this node, and if the API server does not answer.
        """
        what = f"pod {name.namespace}/{name.name}"
        cached = self._cache.get(f"{name.namespace}/{name.name}") if name.uid else None
        if cached is not None and name.uid in pod_uids(cached):
            return cached
        try:
            pod = await self._reader.get(PODS, name.name, namespace=name.namespace, deadline=deadline)
        except NotFoundError:
            raise PodUnknownError(f"the API server has no {what}") from None
        except NoAnswerError as error:
            raise PodUnknownError(str(error)) from error
        if name.uid and name.uid not in pod_uids(pod):
            raise PodUnknownError(f"{what} has UID {pod.metadata.uid} now, and this is the sandbox of {name.uid}")
        if pod.spec.node_name != self._node:
            raise PodUnknownError(f"{what} is bound to node {pod.spec.node_name!r}, not to {self._node!r}")
        return pod

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
