"""Which pods each policy selects, updated with every change.

A change of a pod costs as much as there are policies that might select it: they are found by one of the labels that
they require, not by trying all of a namespace. A new policy costs one pass over the pods of its namespace.

The cache has all pods of a cluster, so it keeps only what decides about an endpoint: most of a pod is in its
annotations, and field names that no document has keep these out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from coil.crd.builtin import Pod
from coil.crd.egress_gateway_policy import EgressEndpoint, EgressGatewayPolicy
from coil.crd.meta import LabelSelector, ObjectMeta, OwnerReference
from coil.crd.resource import Resource, object_key
from coil.eip.slice_packing import endpoint_of
from coil.reconcile.cache import Cache

_BY_NAMESPACE: Final = "namespace"


class LabelMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata whose annotations, owners and finalizers are not read."""

    annotations: dict[str, str] = msgspec.field(name="-annotations", default_factory=dict)
    finalizers: tuple[str, ...] = msgspec.field(name="-finalizers", default=())
    owner_references: tuple[OwnerReference, ...] = msgspec.field(name="-ownerReferences", default=())


class EipPod(Pod, frozen=True, kw_only=True):
    metadata: LabelMeta


EIP_PODS: Resource[EipPod] = Resource("", "v1", "pods", "Pod", namespaced=True, type=EipPod)


def is_endpoint(pod: EipPod) -> bool:
    """Whether it has addresses of its own, and something runs there."""
    return endpoint_of(pod) is not None


POD_INDEXERS: Final[Mapping[str, Callable[[EipPod], Iterable[str]]]] = {
    _BY_NAMESPACE: lambda pod: [pod.metadata.namespace]
}
"""What the cache of pods needs."""


class _Mark(NamedTuple):
    """A label that pods must have to be selected; without a key, all of that namespace may be."""

    namespace: str
    key: str = ""
    value: str = ""


class EndpointIndex:
    """In memory, of one term. Subscribe `change_policy`, then `change_pod`, in one go.

    Policies that are there before the first pod take their endpoints from the pods that follow.
    """

    def __init__(self, pods: Cache[EipPod]) -> None:
        self._pods = pods
        self._has_pods = False
        self._selectors: dict[str, LabelSelector] = {}
        self._marked: dict[_Mark, set[str]] = {}
        self._endpoints: dict[str, dict[str, EgressEndpoint]] = {}

    def endpoints(self, policy: str) -> list[EgressEndpoint]:
        """What the policy of that key selects."""
        return list(self._endpoints.get(policy, {}).values())

    def change_policy(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> None:
        """A policy was created, changed or deleted."""
        present = new or old
        if present is None:
            return
        key = object_key(present.metadata)
        wanted = new.spec.applied_to.pod_selector if new is not None else None
        if wanted == self._selectors.get(key):
            return
        self._leave(key, present.metadata.namespace)
        if new is not None:
            pods = self._pods.by_index(_BY_NAMESPACE, new.metadata.namespace) if self._has_pods else ()
            self._enter(new, pods)

    def change_pod(self, old: EipPod | None, new: EipPod | None) -> Iterable[str]:
        """A pod was created, changed or deleted: returns the keys of the policies with other endpoints now."""
        self._has_pods = True
        present = new or old
        if present is None:
            return
        pod = object_key(present.metadata)
        before = set(self._selecting(old)) if old is not None else set()
        after = set(self._selecting(new)) if new is not None else set()
        endpoint = endpoint_of(new) if new is not None and after else None
        for key in before if endpoint is None else before - after:
            if self._endpoints[key].pop(pod, None) is not None:
                yield key
        for key in after if endpoint is not None else ():
            endpoints = self._endpoints[key]
            if endpoint is not None and endpoints.get(pod) != endpoint:
                endpoints[pod] = endpoint
                yield key

    def _enter(self, policy: EgressGatewayPolicy, pods: Iterable[EipPod]) -> None:
        selector = policy.spec.applied_to.pod_selector
        if selector is None:
            return
        key = object_key(policy.metadata)
        self._selectors[key] = selector
        self._marked.setdefault(_mark(policy.metadata.namespace, selector), set()).add(key)
        self._endpoints[key] = {
            object_key(pod.metadata): endpoint
            for pod in pods
            if selector.selects(pod.metadata.labels) and (endpoint := endpoint_of(pod)) is not None
        }

    def _leave(self, key: str, namespace: str) -> None:
        selector = self._selectors.pop(key, None)
        if selector is None:
            return
        del self._endpoints[key]
        mark = _mark(namespace, selector)
        self._marked[mark].discard(key)
        if not self._marked[mark]:
            del self._marked[mark]

    def _selecting(self, pod: EipPod) -> Iterator[str]:
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        marks = [_Mark(namespace), *(_Mark(namespace, key, value) for key, value in labels.items())]
        for mark in marks:
            for key in self._marked.get(mark, ()):
                if self._selectors[key].selects(labels):
                    yield key


def _mark(namespace: str, selector: LabelSelector) -> _Mark:
    for key, value in sorted(selector.match_labels.items()):
        return _Mark(namespace, key, value)
    return _Mark(namespace)
