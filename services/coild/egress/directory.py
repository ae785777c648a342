"""What egress looks up: the pods of this node, the Egresses and their Services, as far as this node has seen them.

Informers follow them. What an ADD needs and they lack is read from the API server (`APIReader`): "there is no such
object" and "nobody knows" are different answers, as an ADD may act on the first and has to be repeated after the
second.

An Egress or Service that was read counts until the informer has an event for it: an object read before its event must
not look as if it had gone again.

A pod's name alone says little: a pod that is deleted and made again has the name of the one whose sandbox is on its way
out. So a pod is known by its UID where the runtime tells it, and by an address that it has where only a name is left,
after a restart. In doubt it is none: an ADD is refused then, and a pod that runs is left as it is.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Generic, TypeVar

from coil.crd.builtin import NAMESPACES, PODS, SERVICES, Namespace, Pod, Service, pod_uids
from coil.crd.egress import CLIENT_EGRESSES, ClientEgress
from coil.crd.endpoint_slice import EndpointSlice
from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_NAME, NodeName
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.egress.client_pod import FINAL_PHASES, EgressRef, client_addresses
from coil.egress.resolution import EgressView
from coil.kernel.family import IPAddress, IPNetwork
from coil.kube.errors import NotFoundError
from coil.reconcile.cache import Cache
from coil.reconcile.store import Indexer
from coild.model.api_reader import APIReader, NoAnswerError
from coild.model.attachment import PodName, PodUnknownError

T = TypeVar("T", bound=HasMetadata)

SERVICE_LABELS = {LABEL_APP_NAME: APP_NAME, LABEL_APP_COMPONENT: COMPONENT_EGRESS}
"""What `coil.egress.router_pod.EGRESS_SELECTOR` selects by."""

ANSWER_SECONDS = 60.0
"""An informer that has not heard of an object by then was right: it went before it was seen."""


class _Known(Generic[T]):
    """The objects of one kind: an informer's, and answers that it has not caught up with."""

    def __init__(self, resource: Resource[T], cache: Cache[T], clock: Callable[[], float]) -> None:
        self.resource = resource
        self._cache = cache
        self._clock = clock
        self._answers: dict[str, tuple[T, float]] = {}
        cache.subscribe(self._heard)

    def get(self, key: str) -> T | None:
        if (cached := self._cache.get(key)) is not None:
            return cached
        answer, until = self._answers.get(key, (None, 0.0))
        return answer if self._clock() < until else None

    def answer(self, found: T) -> None:
        now = self._clock()
        self._answers = {key: entry for key, entry in self._answers.items() if now < entry[1]}
        self._answers[object_key(found.metadata)] = found, now + ANSWER_SECONDS

    def _heard(self, old: T | None, new: T | None) -> None:
        if self._answers and (seen := new or old) is not None:
            self._answers.pop(object_key(seen.metadata), None)


BY_SERVICE = "service"
"""An index of the cache of EndpointSlices: "namespace/name" of the Service."""

ENDPOINT_INDEXERS: Mapping[str, Indexer[EndpointSlice]] = {
    BY_SERVICE: lambda found: [f"{found.metadata.namespace}/{found.service}"] if found.service else []
}


class EgressDirectory:
    """The Egresses and their Services, and the namespaces of pods.

    `services` and `endpoints` are those with the labels `SERVICE_LABELS`, and no other counts. `cluster` gives the
    cluster's networks that are not private. `clock` never jumps.
    """

    def __init__(
        self,
        egresses: Cache[ClientEgress],
        services: Cache[Service],
        endpoints: Cache[EndpointSlice],
        reader: APIReader,
        *,
        namespaces: Cache[Namespace],
        cluster: Callable[[], tuple[IPNetwork, ...]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._egresses = _Known(CLIENT_EGRESSES, egresses, clock)
        self._services = _Known(SERVICES, services, clock)
        self._namespaces = _Known(NAMESPACES, namespaces, clock)
        self._endpoints = endpoints
        self._reader = reader
        self.view = EgressView(
            egress=lambda reference: self._egresses.get(str(reference)),
            service=lambda reference: self._services.get(str(reference)),
            namespace=self._namespaces.get,
            cluster=cluster,
        )

    def routers(self, egress: str) -> frozenset[IPAddress]:
        """The addresses of the router pods of the Egress "namespace/name", ready or not; none until they are listed."""
        found: set[IPAddress] = set()
        for endpoint_slice in self._endpoints.by_index(BY_SERVICE, egress):
            found |= router_addresses(endpoint_slice)
        return frozenset(found)

    async def complete(self, references: Iterable[EgressRef], *, namespace: str, deadline: float) -> None:
        """Read what the caches lack of these, all at once, until `deadline` (the event loop's clock) at most; then the
        pod's namespace, if it matters.

        What does not exist goes on lacking. Raises NoAnswerError if that is not known of all of them; what was answered
        by then counts.
        """
        references = tuple(references)
        known: tuple[_Known[Any], ...] = self._egresses, self._services
        lacking = [(kind, ref) for ref in references for kind in known if kind.get(str(ref)) is None]
        reads = (self._read(kind, ref.namespace, ref.name, deadline) for kind, ref in lacking)
        for outcome in await asyncio.gather(*reads, return_exceptions=True):
            if outcome is not None:
                raise outcome
        found = (self.view.egress(reference) for reference in references)
        chosen = any(egress is not None and egress.spec.allowed_namespaces is not None for egress in found)
        if chosen and self._namespaces.get(namespace) is None:
            await self._read(self._namespaces, "", namespace, deadline)

    async def _read(self, kind: _Known[Any], namespace: str, name: str, deadline: float) -> None:
        try:
            found = await self._reader.get(kind.resource, name, namespace=namespace, deadline=deadline)
        except NotFoundError:
            return
        if kind is not self._services or found.metadata.labels.items() >= SERVICE_LABELS.items():
            kind.answer(found)


def router_addresses(endpoint_slice: EndpointSlice) -> frozenset[IPAddress]:
    """Those of all its endpoints, whatever their conditions: one that ends still answers. A name is no address."""
    found: set[IPAddress] = set()
    for endpoint in endpoint_slice.endpoints or ():
        for text in endpoint.addresses:
            with suppress(ValueError):
                found.add(ip_address(text))
    return frozenset(found)


BY_ADDRESS = "address"
BY_UID = "uid"
"""Indexes of the cache."""

INDEXERS: Mapping[str, Indexer[Pod]] = {
    BY_ADDRESS: lambda pod: map(str, client_addresses(pod)),
    BY_UID: pod_uids,
}
"""Those that the cache must have."""


class NodePods:
    """The pods of this node. `cache` holds those that are bound to it."""

    def __init__(self, cache: Cache[Pod], reader: APIReader, *, node: NodeName) -> None:
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
            claimants = self._cache.by_index(BY_UID, name.uid)
            # Whoever may create pods may create one that looks like a mirror. So the pod whose own UID it is comes
            # first; a mirror has the name of its static pod, which after a restart is not known of each attachment.
            own = [pod for pod in claimants if pod.metadata.uid == name.uid]
            mirrors = [pod for pod in claimants if not name.name or _name(pod) == (name.namespace, name.name)]
            return _only(own or mirrors)
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
