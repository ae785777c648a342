"""Which pods each policy selects, kept up to date change by change.

A change of a pod costs as much as there are policies that might mean it: they are found by one of the labels that they
want, not by asking all of a namespace's. A new policy costs one look at the pods of its namespace.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from coil.crd.egress_endpoint_slice import EgressEndpoint
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.resource import object_key
from coil.crd.selector import LabelSelector
from coil.eip.slice_packing import endpoint_of
from coil_egress_controller.eip.pod import EipPod


class _Mark(NamedTuple):
    """A label that pods must have to be meant; without key, in that namespace, all may be."""

    namespace: str
    key: str = ""
    value: str = ""


class EndpointIndex:
    """In memory, of one term. `pods_of` gives the pods of a namespace that were told of, and no others."""

    def __init__(self, pods_of: Callable[[str], Iterable[EipPod]]) -> None:
        self._pods_of = pods_of
        self._selectors: dict[str, LabelSelector] = {}
        self._marked: dict[_Mark, set[str]] = {}
        self._endpoints: dict[str, dict[str, EgressEndpoint]] = {}

    def endpoints(self, policy: str) -> list[EgressEndpoint]:
        """What the policy of that key selects."""
        return list(self._endpoints.get(policy, {}).values())

    def enter(self, policy: EgressGatewayPolicy) -> None:
        """Know a policy before pods are told of."""
        self._enter(policy, ())

    def change_policy(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> None:
        """A policy has come, changed or gone."""
        present = new or old
        if present is None:
            return
        key = object_key(present.metadata)
        wanted = new.spec.applied_to.pod_selector if new is not None else None
        if wanted == self._selectors.get(key):
            return
        self._leave(key, present.metadata.namespace)
        if new is not None:
            self._enter(new, self._pods_of(new.metadata.namespace))

    def change_pod(self, old: EipPod | None, new: EipPod | None) -> Iterable[str]:
        """A pod has come, changed or gone: the keys of the policies with other endpoints now."""
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
