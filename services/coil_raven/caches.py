"""The indexes of the caches, and which pods are to have a port."""

from collections.abc import Mapping
from typing import Final

from coil.crd.builtin import Namespace, Pod
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
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


def wants_port(pod: Pod) -> bool:
    """Whether the pod is to have a port now: it has a node, a network of its own, and has not finished."""
    return bool(pod.spec.node_name) and not pod.spec.host_network and pod.status.phase not in _FINISHED
