"""The caches that every replica follows, their indexes, and which pods are to have a port."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coil.crd.builtin import NAMESPACES, NODES, PODS, Namespace, Node, Pod
from coil.kube.client import KubeClient
from coil.manager.manager import Manager
from coil.reconcile.cache import Cache
from coil.reconcile.store import Indexer

BY_NAMESPACE: Final = "namespace"
BY_NODE: Final = "node"
BY_UID: Final = "uid"
NAMESPACE_INDEXERS: Final[Mapping[str, Indexer[Namespace]]] = {
    BY_UID: lambda namespace: (namespace.metadata.uid,),
}
POD_INDEXERS: Final[Mapping[str, Indexer[Pod]]] = {
    BY_NAMESPACE: lambda pod: (pod.metadata.namespace,),
    BY_NODE: lambda pod: (pod.spec.node_name,) if pod.spec.node_name else (),
    BY_UID: lambda pod: (pod.metadata.uid,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Those that are there with and without load balancers; `coil_raven.load_balancing` has the others."""

    namespaces: Cache[Namespace]
    pods: Cache[Pod]
    nodes: Cache[Node]

    @classmethod
    def follow(cls, manager: Manager, kube: KubeClient) -> "Caches":
        """Declare them; they are followed from now on."""
        return cls(
            namespaces=manager.cache(kube.collection(NAMESPACES), indexers=NAMESPACE_INDEXERS),
            pods=manager.cache(kube.collection(PODS), indexers=POD_INDEXERS),
            nodes=manager.cache(kube.collection(NODES)),
        )


_FINISHED: Final = frozenset({"Succeeded", "Failed"})


def wants_port(pod: Pod) -> bool:
    """Whether the pod is to have a port now: it has a node, a network of its own, and has not finished."""
    return bool(pod.spec.node_name) and not pod.spec.host_network and pod.status.phase not in _FINISHED
