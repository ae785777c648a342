"""Tells router pods of clients that no coild tells of, by EgressClientSlices of the controller's own.

    pods that name an Egress ─► what is lacking in the slices of coild ─► a slice for each Egress and node

coild tells router pods of its node's clients when it connects them. A node that Coil in Go serves, in a cluster that is
being moved, has clients that nobody tells of but their pods. Router pods do not read pods: their account is in a
tenant's namespace, and the pods of a cluster are not that tenant's business.

An address has to be lacking for a moment before it is told here. coild is usually faster, and then nothing is written.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Namespace, Pod
from coil.crd.egress import EGRESSES, Egress
from coil.crd.egress_client_slice import (
    MAX_ADDRESSES,
    TOO_MANY_CLIENTS,
    EgressClientSlice,
    FittedAddresses,
    extra_slice_name,
    fit_addresses,
)
from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.names import LABEL_EGRESS, NodeName
from coil.crd.resource import Resource, object_key
from coil.egress.client_pod import FINAL_PHASES, client_addresses, is_client, parse_egress_annotations
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import EventSubject, Recorder
from coil.reconcile.own_write import OwnWriter

NAME: Final = "egressclientslice"
WORKERS: Final = 4
PATIENCE: Final = 1.0
"""Seconds for which an address has to be lacking."""
BATCH_WINDOW: Final = 0.2
CLIENT_PHASES: Final = ",".join(f"status.phase!={phase}" for phase in FINAL_PHASES)
"""A field selector: pods that the API server itself leaves out."""
_BY_KEY: Final = "key"
_BY_EGRESS: Final = "egress"
_BY_NAMESPACE: Final = "namespace"


class ClientMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata whose labels, owners and finalizers are not read."""

    labels: dict[str, str] = msgspec.field(name="-labels", default_factory=dict)
    finalizers: tuple[str, ...] = msgspec.field(name="-finalizers", default=())
    owner_references: tuple[OwnerReference, ...] = msgspec.field(name="-ownerReferences", default=())


class ClientPod(Pod, frozen=True, kw_only=True):
    metadata: ClientMeta


CLIENT_PODS: Final[Resource[ClientPod]] = Resource("", "v1", "pods", "Pod", namespaced=True, type=ClientPod)


def names_egress(pod: Pod) -> bool:
    """Whether it asks for any Egress, and may be served."""
    return bool(client_keys(pod))


def client_keys(pod: Pod) -> list[str]:
    """The keys of what the pod is a client of: Egress and node."""
    if not pod.spec.node_name:
        return []
    references = parse_egress_annotations(pod.metadata.annotations).references
    return [f"{reference}/{pod.spec.node_name}" for reference in references if is_client(pod, reference)]


def _slice_key(slice_: EgressClientSlice) -> str:
    return f"{slice_.metadata.namespace}/{slice_.egress}/{slice_.node_name}"


POD_INDEXERS: Final[Mapping[str, Callable[[ClientPod], Iterable[str]]]] = {
    _BY_KEY: client_keys,
    _BY_NAMESPACE: lambda pod: [pod.metadata.namespace],
    _BY_EGRESS: lambda pod: {key.rpartition("/")[0] for key in client_keys(pod)},
}
"""What the cache of pods needs."""
SLICE_INDEXERS: Final[Mapping[str, Callable[[EgressClientSlice], Iterable[str]]]] = {
    _BY_KEY: lambda slice_: [_slice_key(slice_)]
}
"""What the cache of slices needs."""


class ClientSliceReconciler:
    """Of one term. The keys are those of an Egress and a node: `namespace/name/node`. `writer` writes the slices,
    `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        *,
        egresses: Cache[Egress],
        pods: Cache[ClientPod],
        namespaces: Cache[Namespace],
        slices: Cache[EgressClientSlice],
        writer: OwnWriter[EgressClientSlice],
        recorder: Recorder,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._egresses = egresses
        self._pods = pods
        self._namespaces = namespaces
        self._slices = slices
        self._clock = clock
        self._writer = writer
        self._recorder = recorder
        self._log = log
        self._full: set[str] = set()
        """Keys whose slice had no room for all addresses when it was last looked at."""
        self._lacking: dict[str, dict[str, float]] = {}
        """By key: since when an address has been lacking."""

    def setup(self, term: Term) -> None:
        controller = term.controller(NAME, self.reconcile, workers=WORKERS)
        controller.watch(self._egresses, self._of_egress, batch_window=BATCH_WINDOW)
        controller.watch(self._pods, _of_pod, batch_window=BATCH_WINDOW)
        controller.watch(self._namespaces, self._of_namespace, batch_window=BATCH_WINDOW)
        controller.watch(self._slices, self._of_slice, batch_window=BATCH_WINDOW)

    async def reconcile(self, key: str) -> Result:
        """Have the controller's slice of that Egress and node name the clients that no other slice names."""
        namespace, egress_name, node = key.split("/")
        present = self._writer.latest(f"{namespace}/{extra_slice_name(egress_name, NodeName(node))}")
        egress = self._egresses.get(f"{namespace}/{egress_name}")
        if egress is None or egress.metadata.deleting or (present is not None and present.metadata.deleting):
            self._lacking.pop(key, None)
            self._full.discard(key)
            return DONE  # the slice goes with the Egress, by the garbage collector; or comes anew after its event
        fitted, pods, wait = self._plan(key, egress, present)
        self._tell_left_out(key, egress, fitted)
        addresses = fitted.addresses
        if present is None:
            if addresses:
                await self._create(egress, NodeName(node), addresses, pods=pods)
        elif not addresses:
            await self._writer.delete(present)
        elif (present.addresses, present.pods) != (addresses, pods):
            await self._writer.patch(present, {"addresses": list(addresses), "pods": pods})
        return RequeueAfter(wait) if wait is not None else DONE

    def _plan(
        self, key: str, egress: Egress, present: EgressClientSlice | None
    ) -> tuple[FittedAddresses, int, float | None]:
        """The addresses to tell of, how many pods have them, and when to look again for others."""
        told = {address for each in self._slices.by_index(_BY_KEY, key) if each.of_node for address in each.addresses}
        known = set(present.addresses) if present is not None else set()
        now = self._clock()
        before, lacking = self._lacking.pop(key, {}), dict[str, float]()
        addresses: set[str] = set()
        pods = 0
        for pod in self._pods.by_index(_BY_KEY, key):
            if not self._is_allowed(egress, pod.metadata.namespace):
                continue
            own = {str(address) for address in client_addresses(pod)} - told
            lacking |= {address: before.get(address, now) for address in own}
            ripe = {address for address in own if address in known or now - lacking[address] >= PATIENCE}
            addresses |= ripe
            pods += bool(ripe)
        if lacking:
            self._lacking[key] = lacking
        waiting = [since for address, since in lacking.items() if address not in addresses]
        wait = max(0.0, min(waiting) + PATIENCE - now) if waiting else None
        return fit_addresses(addresses, known), pods, wait

    def _tell_left_out(self, key: str, egress: Egress, fitted: FittedAddresses) -> None:
        """In the log when it begins and ends; by an Event as often as it is seen, as they expire."""
        if not fitted.left_out:
            if key in self._full:
                self._full.discard(key)
                self._log.info("all clients of the egress fit into the slices of the node again", client=key)
            return
        if key not in self._full:
            self._full.add(key)
            self._log.warning(
                "not all clients of the egress fit into the slices of the node", client=key, left_out=fitted.left_out
            )
        node = key.rpartition("/")[2]
        self._recorder.warn(
            EventSubject.of(EGRESSES, egress.metadata),
            reason=TOO_MANY_CLIENTS,
            message=f"router pods serve no further clients on node {node}: its coild does not tell them of these, and "
            f"coil-egress-controller tells them of at most {MAX_ADDRESSES} addresses; move pods to other nodes",
        )

    def _is_allowed(self, egress: Egress, namespace: str) -> bool:
        allowed = egress.spec.allowed_namespaces
        if allowed is None:
            return True
        found = self._namespaces.get(namespace)
        return found is not None and allowed.selects(found.metadata.labels)

    async def _create(self, egress: Egress, node: NodeName, addresses: tuple[str, ...], *, pods: int) -> None:
        metadata = egress.metadata
        owner = {"apiVersion": EGRESSES.api_version, "kind": EGRESSES.kind, "name": metadata.name, "uid": metadata.uid}
        body = {
            "metadata": {
                "name": extra_slice_name(metadata.name, node),
                "namespace": metadata.namespace,
                "labels": {LABEL_EGRESS: metadata.name},
                "ownerReferences": [owner],
            },
            "nodeName": node,
            "addresses": list(addresses),
            "pods": pods,
        }
        await self._writer.create(body, namespace=metadata.namespace)

    def _of_egress(self, old: Egress | None, new: Egress | None) -> Iterable[str]:
        """Of an Egress that was created, or serves other namespaces: of all nodes with pods that name it."""
        if new is None or (old is not None and old.spec.allowed_namespaces == new.spec.allowed_namespaces):
            return ()
        name = object_key(new.metadata)
        return {
            key
            for pod in self._pods.by_index(_BY_EGRESS, name)
            for key in client_keys(pod)
            if key.rpartition("/")[0] == name
        }

    def _of_namespace(self, old: Namespace | None, new: Namespace | None) -> Iterable[str]:
        """Of one whose labels have changed: of all of its pods."""
        if new is None or (old is not None and old.metadata.labels == new.metadata.labels):
            return ()
        pods = self._pods.by_index(_BY_NAMESPACE, new.metadata.name)
        return {key for pod in pods for key in client_keys(pod)}

    def _of_slice(self, old: EgressClientSlice | None, new: EgressClientSlice | None) -> Iterable[str]:
        seen = new or old
        if seen is None or not seen.egress or self._writer.wrote(new):
            return ()
        return [_slice_key(seen)]


def _of_pod(old: ClientPod | None, new: ClientPod | None) -> Iterable[str]:
    if old is not None and new is not None and _relevant(old) == _relevant(new):
        return ()
    return {key for pod in (old, new) if pod is not None for key in client_keys(pod)}


def _relevant(pod: ClientPod) -> tuple[object, ...]:
    return client_keys(pod), pod.status.pod_ips
