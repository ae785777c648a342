"""The node's own pods, and which policies select them, as soon as the API server tells: before the controller's slices.

    pods of the node, policies (caches) ─► NodePods ─► ChangeTracker ─► the round that enters them

A pod is *awaited* while a policy selects it and its address is not known, as its sandbox is being made, for the first
time or again. What such a pod sends in the meantime has a source that no policy is known for; so as long as there is
one, unknown sources reach no destination of policies that fail closed (`coil.eip.eip_table`).

A pod that is being deleted is *known* no more: its address may be given to the next pod before its object is gone.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from coil.crd.builtin import Pod, pod_uids
from coil.crd.egress_gateway import PolicyRef
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.meta import Condition, LabelSelector
from coil.crd.resource import Resource, object_key
from coil.crd.validation import render_names
from coil.eip.eip_set import MOST_POLICIES
from coil.eip.slice_packing import endpoint_of, is_finished
from coil.kernel.family import IPAddress
from coil_egress_agent.eip.node_assignment import parse_address


class NodePod(Pod, frozen=True, kw_only=True):
    """Of a pod what decides about its ways."""

    @property
    def has_sandbox(self) -> bool:
        """Whether its addresses are those of a sandbox that exists. Kubelet tells that since Kubernetes 1.29."""
        return bool(self.status.pod_ips) and not any(
            condition.type == "PodReadyToStartContainers" and condition.status == "False"
            for condition in self.status.conditions
        )


PODS_OVER_POLICY_LIMIT: Final = "PodsOverPolicyLimit"
"""The type of the EgressTunnel's condition."""
NODE_PODS: Final[Resource[NodePod]] = Resource("", "v1", "pods", "Pod", namespaced=True, type=NodePod)


@dataclass(frozen=True, slots=True)
class PodsView:
    """`sources` are the addresses of the node's pods by the policies that select them; `known` those of all its pods of
    which that is told, with the pods' keys ("namespace/name"). It is the state of that `version`.
    """

    version: int = 0
    sources: Mapping[PolicyRef, frozenset[IPAddress]] = field(default_factory=dict)
    known: Mapping[IPAddress, str] = field(default_factory=dict)


class NodePods:
    """Tell it of every change of policies and pods, the policies first where there are many of both."""

    def __init__(self) -> None:
        self.version = 0
        """It grows with every difference."""
        self.settled = 0
        """The version since which no pod is awaited; if one is, a version to come."""
        self._pods: dict[str, NodePod] = {}
        self._awaited: set[str] = set()
        self._selectors: dict[str, dict[PolicyRef, LabelSelector]] = {}
        """By namespace."""
        self._selecting: dict[str, frozenset[PolicyRef]] = {}
        """By pod: the policies that select it."""
        self._told: dict[str, frozenset[IPAddress]] = {}
        """By pod: the addresses that coild has given it."""
        self._listeners: list[Callable[[], object]] = []

    @property
    def awaited(self) -> int:
        """How many pods are awaited."""
        return len(self._awaited)

    def on_change(self, listener: Callable[[], object]) -> None:
        """Have it called after every difference."""
        self._listeners.append(listener)

    def knows(self, key: str, uid: str) -> bool:
        """Whether the API server has told of the pod of that key ("namespace/name") and UID; "" for any."""
        pod = self._pods.get(key)
        return pod is not None and (not uid or uid in pod_uids(pod))

    def tell(self, key: str, addresses: frozenset[IPAddress]) -> int | None:
        """A pod that is known is about to start with these addresses: they are no other pod's any more.

        The version which has that, or None where no policy selects the pod.
        """
        if self._told.get(key) != addresses:
            for other, told in self._told.items():
                if told & addresses:
                    self._told[other] = told - addresses
            self._told[key] = addresses
            self._enter(self._pods[key])
            self._differ()
        return self.version if self._selecting[key] else None

    def note_policy(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> None:
        """A policy was created, changed or deleted."""
        before, after = (None if policy is None else policy.spec.applied_to.pod_selector for policy in (old, new))
        present = new or old
        if present is None or before == after:
            return
        namespace = present.metadata.namespace
        ref = PolicyRef(namespace=namespace, name=present.metadata.name)
        selectors = self._selectors.setdefault(namespace, {})
        if after is None:
            selectors.pop(ref, None)
        else:
            selectors[ref] = after
        pods = [pod for pod in self._pods.values() if pod.metadata.namespace == namespace]
        if pods:
            for pod in pods:
                self._enter(pod)
            self._differ()

    def note_pod(self, old: NodePod | None, new: NodePod | None) -> None:
        """A pod of this node was created, changed or deleted."""
        if old is not None and new is not None and _meaning(old) == _meaning(new):
            return
        if new is not None:
            self._enter(new)
        elif old is not None:
            key = object_key(old.metadata)
            self._pods.pop(key, None)
            self._selecting.pop(key, None)
            self._awaited.discard(key)
            self._told.pop(key, None)
        self._differ()

    def view(self) -> PodsView:
        """All of it, as it is now. O(pods of the node)."""
        sources: dict[PolicyRef, set[IPAddress]] = {}
        known: dict[IPAddress, str] = {}
        for key, pod in self._pods.items():
            addresses = {*_addresses(pod), *(() if is_finished(pod) else self._told.get(key, ()))}
            if not pod.metadata.deleting:
                known |= dict.fromkeys(addresses, key)
            if addresses:
                for ref in self._selecting[key]:
                    sources.setdefault(ref, set()).update(addresses)
        return PodsView(self.version, {ref: frozenset(addresses) for ref, addresses in sources.items()}, known)

    def _enter(self, pod: NodePod) -> None:
        key = object_key(pod.metadata)
        selectors = self._selectors.get(pod.metadata.namespace, {})
        selecting = frozenset(ref for ref, selector in selectors.items() if selector.selects(pod.metadata.labels))
        former = self._pods.get(key)
        if former is not None and former.metadata.uid != pod.metadata.uid:
            self._told.pop(key, None)
        self._pods[key], self._selecting[key] = pod, selecting
        has_address = pod.has_sandbox or bool(self._told.get(key))
        if selecting and not (has_address or pod.spec.host_network or is_finished(pod)):
            self._awaited.add(key)
        else:
            self._awaited.discard(key)

    def _differ(self) -> None:
        self.version += 1
        if self._awaited:
            self.settled = self.version + 1
        for listener in self._listeners:
            listener()


def crowded_condition(pods: Collection[str]) -> Condition:
    """What the node's EgressTunnel says of pods with more policies than apply to one; `pods` are their keys."""
    if pods:
        status, reason = "True", "TooManyPolicies"
        message = (
            f"more than {MOST_POLICIES} policies select {render_names(sorted(pods))}: the first {MOST_POLICIES - 1} "
        )
        message += "of each pod apply, and what else it sends out of the cluster is dropped"
    else:
        status, reason = "False", "WithinLimit"
        message = f"no more than {MOST_POLICIES} policies select a pod"
    return Condition(type=PODS_OVER_POLICY_LIMIT, status=status, reason=reason, message=message)


def _meaning(pod: NodePod) -> object:
    metadata = pod.metadata
    status = pod.status.pod_ips, pod.has_sandbox, is_finished(pod)
    return pod_uids(pod), metadata.labels, metadata.deleting, pod.spec, status


def _addresses(pod: NodePod) -> Iterable[IPAddress]:
    endpoint = endpoint_of(pod)
    if endpoint is None:
        return
    for text in (*endpoint.ipv4_list, *endpoint.ipv6_list):
        if (address := parse_address(text)) is not None:
            yield address
