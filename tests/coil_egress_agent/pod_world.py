"""Pods of a cluster in memory, and the API server that tells of them: the source of a real informer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address

from coil.crd.builtin import PODS, Pod, PodIP, PodSpec, PodStatus
from coil.crd.meta import ObjectMeta
from coil.crd.resource import Resource
from coil.egress.client_pod import EgressRef
from coil.kernel.family import IPAddress
from coil.kube.collection import Page
from coil.kube.errors import GoneError, UnavailableError
from coil.kube.watch import Added, Deleted, Modified, WatchEvent

EGRESS = EgressRef("internet", "nat")
KEY = f"egress.coil.cybozu.com/{EGRESS.namespace}"


@dataclass(frozen=True, slots=True)
class PodState:
    """What the tests decide about a pod. It says itself whether it is a client, not the code under test."""

    addresses: tuple[str, ...] = ()
    annotated: bool = True
    host_network: bool = False
    phase: str = "Running"

    @property
    def is_client(self) -> bool:
        return self.annotated and not self.host_network and self.phase in ("", "Pending", "Running")


class PodWorld:
    """Implements `coil.reconcile.informer.ListerWatcher`, with the filter that a collection has."""

    resource: Resource[Pod] = PODS

    def __init__(self, keep: Callable[[Pod], bool]) -> None:
        self.version = 0
        self.told = 0
        """The version up to which the informer has been told."""
        self.outage = 0
        """So many lists fail from now on."""
        self.compacted = 0
        self.held_since: dict[IPAddress, int] = {}
        """The version since which some client holds the address."""
        self._keep = keep
        self._pods: dict[str, tuple[PodState, Pod]] = {}
        self._events: list[tuple[int, WatchEvent[Pod]]] = []
        self._news = asyncio.Condition()
        self._cuts = 0

    def names(self) -> list[str]:
        return list(self._pods)

    def state(self, name: str) -> PodState:
        return self._pods[name][0]

    def put(self, name: str, state: PodState) -> None:
        """Create the pod, or change it."""
        known = self._pods.get(name)
        self.version += 1
        uid = known[1].metadata.uid if known is not None else f"{name}-{self.version}"
        pod = self._pod(name, state, uid)
        self._pods[name] = (state, pod)
        self._tell(Added(pod) if known is None else Modified(pod))

    def change(self, name: str, **changes: object) -> None:
        self.put(name, replace(self.state(name), **changes))  # type: ignore[arg-type]

    def delete(self, name: str) -> None:
        if name in self._pods:
            state, pod = self._pods.pop(name)
            self.version += 1
            self._tell(Deleted(self._pod(name, state, pod.metadata.uid)))

    def cut(self) -> None:
        """End the watch; what happens until the next one is told by a list."""
        self.compacted = self.version
        self._cuts += 1

    async def announce(self) -> None:
        """Have the watch look. Not done by each change, so that several can come in one batch."""
        async with self._news:
            self._news.notify_all()

    def clients(self) -> set[IPAddress]:
        return set(self.held_since)

    streams_lists = False

    async def list_page(self, *, limit: int, continue_token: str) -> Page[Pod]:
        del limit, continue_token
        await asyncio.sleep(0.05)  # longer than the kernel takes for a call or two
        if self.outage:
            self.outage -= 1
            raise UnavailableError("no answer")
        self.told = self.version
        items = [pod for _, pod in self._pods.values() if self._keep(pod)]
        return Page(items, str(self.version), "")

    @asynccontextmanager
    async def watch(
        self, *, resource_version: str, initial_events: bool = False
    ) -> AsyncIterator[AsyncIterator[list[WatchEvent[Pod]]]]:
        if int(resource_version) < self.compacted:
            raise GoneError("too old")
        yield self._follow(int(resource_version))

    async def _follow(self, version: int) -> AsyncIterator[list[WatchEvent[Pod]]]:
        cuts = self._cuts
        while True:
            if cuts != self._cuts:
                raise GoneError("cut")
            news = [(number, event) for number, event in self._events if number > version]
            if news:
                version = self.told = news[-1][0]
                yield [self._filtered(event) for _, event in news]
            else:
                async with self._news:
                    await self._news.wait()

    def _filtered(self, event: WatchEvent[Pod]) -> WatchEvent[Pod]:
        if isinstance(event, Added | Modified) and not self._keep(event.object):
            return Deleted(event.object)
        return event

    def _tell(self, event: WatchEvent[Pod]) -> None:
        self._events.append((self.version, event))
        states = [state for state, _ in self._pods.values() if state.is_client]
        held = {ip_address(text) for state in states for text in state.addresses}
        self.held_since = {address: self.held_since.get(address, self.version) for address in held}

    def _pod(self, name: str, state: PodState, uid: str) -> Pod:
        return Pod(
            metadata=ObjectMeta(
                name=name,
                namespace="default",
                uid=uid,
                resource_version=str(self.version),
                annotations={KEY: f"other, {EGRESS.name}"} if state.annotated else {},
            ),
            spec=PodSpec(host_network=state.host_network),
            status=PodStatus(phase=state.phase, pod_ips=tuple(PodIP(ip=text) for text in state.addresses)),
        )
