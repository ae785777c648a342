"""EgressClientSlices in memory, and the API server that tells of them: the source of a real informer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address

from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES, EgressClientSlice
from coil.crd.meta import ObjectMeta
from coil.crd.resource import Resource
from coil.egress.client_pod import EgressRef
from coil.kernel.family import IPAddress
from coil.kube.collection import Page
from coil.kube.errors import GoneError, UnavailableError
from coil.kube.watch import Added, Deleted, Modified, WatchEvent

EGRESS = EgressRef("internet", "nat")


@dataclass(frozen=True, slots=True)
class SliceState:
    """What a slice says: the tests' own word for it."""

    addresses: tuple[str, ...] = ()
    pods: int = 1


class SliceWorld:
    """Implements `coil.reconcile.informer.ListerWatcher`."""

    resource: Resource[EgressClientSlice] = EGRESS_CLIENT_SLICES

    def __init__(self) -> None:
        self.version = 0
        self.told = 0
        """The version up to which the informer has been told."""
        self.outage = 0
        """So many lists fail from now on."""
        self.compacted = 0
        self.held_since: dict[IPAddress, int] = {}
        """The version since which some slice has the address."""
        self._slices: dict[str, tuple[SliceState, EgressClientSlice]] = {}
        self._events: list[tuple[int, WatchEvent[EgressClientSlice]]] = []
        self._news = asyncio.Condition()
        self._cuts = 0

    def names(self) -> list[str]:
        return list(self._slices)

    def state(self, name: str) -> SliceState:
        return self._slices[name][0]

    def put(self, name: str, state: SliceState) -> None:
        """Create the slice, or change it."""
        known = self._slices.get(name)
        self.version += 1
        uid = known[1].metadata.uid if known is not None else f"{name}-{self.version}"
        slice_ = self._slice(name, state, uid)
        self._slices[name] = (state, slice_)
        self._tell(Added(slice_) if known is None else Modified(slice_))

    def change(self, name: str, **changes: object) -> None:
        self.put(name, replace(self.state(name), **changes))  # type: ignore[arg-type]

    def delete(self, name: str) -> None:
        if name in self._slices:
            state, slice_ = self._slices.pop(name)
            self.version += 1
            self._tell(Deleted(self._slice(name, state, slice_.metadata.uid)))

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

    async def list_page(self, *, limit: int, continue_token: str) -> Page[EgressClientSlice]:
        del limit, continue_token
        await asyncio.sleep(0.05)  # longer than the kernel takes for a call or two
        if self.outage:
            self.outage -= 1
            raise UnavailableError("no answer")
        self.told = self.version
        items = [slice_ for _, slice_ in self._slices.values()]
        return Page(items, str(self.version), "")

    @asynccontextmanager
    async def watch(
        self, *, resource_version: str, initial_events: bool = False
    ) -> AsyncIterator[AsyncIterator[list[WatchEvent[EgressClientSlice]]]]:
        if int(resource_version) < self.compacted:
            raise GoneError("too old")
        yield self._follow(int(resource_version))

    async def _follow(self, version: int) -> AsyncIterator[list[WatchEvent[EgressClientSlice]]]:
        cuts = self._cuts
        while True:
            if cuts != self._cuts:
                raise GoneError("cut")
            news = [(number, event) for number, event in self._events if number > version]
            if news:
                version = self.told = news[-1][0]
                yield [event for _, event in news]
            else:
                async with self._news:
                    await self._news.wait()

    def _tell(self, event: WatchEvent[EgressClientSlice]) -> None:
        self._events.append((self.version, event))
        states = [state for state, _ in self._slices.values()]
        held = {ip_address(text) for state in states for text in state.addresses}
        self.held_since = {address: self.held_since.get(address, self.version) for address in held}

    def _slice(self, name: str, state: SliceState, uid: str) -> EgressClientSlice:
        metadata = ObjectMeta(name=name, namespace=EGRESS.namespace, uid=uid, resource_version=str(self.version))
        return EgressClientSlice(metadata=metadata, node_name=name, addresses=state.addresses, pods=state.pods)
