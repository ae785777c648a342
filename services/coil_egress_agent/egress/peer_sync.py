"""Makes the kernel's peers those that the clients' addresses ask for, and keeps them so.

    cache of clients ─► client_index ─► queue of addresses ─► batches ─► the kernel
    cache of the Egress ─► EgressSettings ─┘           ▲
                               every few minutes: all that are wanted, and all that the kernel has

An address in the queue is only a hint. Whether it is wanted is decided at the moment of the call, so an address that
has changed hands in the meantime is not touched, and a thousand events cost a few calls. That is why it is no
reconciler of one key at a time: 256 addresses share a call of the kernel. In each round additions come before removals.

Invariants:
* An address that some client holds is never removed, from whatever order of events.
* Nothing is removed before the list of clients is complete: an agent that starts anew first adopts what its predecessor
  left. And nothing but the API server's word removes a peer: an outage, a stop and a start leave the kernel alone.
* What the kernel refuses for one address is tried again for that address, with a backoff, and holds up no other.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, StrEnum
from ipaddress import ip_address
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.typing import FilteringBoundLogger

from coil.crd.cidr import parse_cidr
from coil.crd.egress import Egress
from coil.egress.gateway import RouterSpec, SourcePort
from coil.kernel.family import IPAddress, IPNetwork
from coil.nat import NAT_ERRORS
from coil.nat.router import RouterNetwork
from coil.reconcile.backoff import Backoff
from coil.reconcile.queue import QueueEmptyError, WorkQueue
from coil.runtime.log import describe_error
from coil_egress_agent.egress.client_index import ClientIndex

CALL_SECONDS: Final = 60.0
"""A call that takes longer is given up; the kernel has stalled, and what was asked for may still come about."""

ROUTER_ERRORS: Final = (*NAT_ERRORS, OSError)
"""What the kernel refuses, or does not answer (a TimeoutError is an OSError). All of it may pass."""

RETRY_BACKOFF = Backoff(base=0.2, cap=30.0)
BATCH: Final = 256
PATIENCE: Final = 5
"""So many refusals of one address, while others are accepted, and readiness does not wait for it any longer."""

_EVERYTHING: Final = "everything"
"""A key in the queue beside the addresses: set up, compare, and look at each address."""

_SECONDS = (0.002, 0.01, 0.05, 0.2, 1.0, 5.0, 30.0)


class Change(Enum):
    """What of an Egress has changed for the kernel of its router pods."""

    NONE = "none"
    SOURCE_PORT = "source port"
    """Of all tunnels."""
    DESTINATIONS = "destinations"
    """Perhaps among others."""


class EgressSettings:
    """What this router pod's own Egress says of the kernel; `observe` is called by its cache.

    It is read there and is no flag, so that a change needs no new router pods, which would cost every client its
    connections. A deleted Egress leaves the last values: its router pods are about to go.
    """

    def __init__(self, *, log: FilteringBoundLogger) -> None:
        self.source_port = SourcePort.FIXED
        self.destinations: tuple[IPNetwork, ...] = ()
        """None before the Egress is known."""
        self.cluster: tuple[IPNetwork, ...] = ()
        """The cluster's networks that are not private, which are no part of a destination that contains them."""
        self._log = log

    def observe(self, new: Egress | None) -> Change:
        if new is None:
            return Change.NONE
        source_port = SourcePort.AUTO if new.spec.fou_source_port_auto else SourcePort.FIXED
        destinations, cluster = _parse(new.spec.destinations), _parse(new.status.cluster_networks)
        change = Change.NONE
        if source_port is not self.source_port:
            self.source_port = source_port
            self._log.info("the tunnels' source port changes", source_port=source_port.value)
            change = Change.SOURCE_PORT
        if (destinations, cluster) != (self.destinations, self.cluster):
            self.destinations, self.cluster = destinations, cluster
            self._log.info(
                "the destinations change", destinations=list(map(str, destinations)), cluster_networks=len(cluster)
            )
            change = Change.DESTINATIONS
        return change


def _parse(texts: Iterable[str]) -> tuple[IPNetwork, ...]:
    """Without what is no network: the controller tells of it, and so does coild where a client names the Egress."""
    found: list[IPNetwork] = []
    for text in texts:
        with suppress(ValueError):
            found.append(parse_cidr(text))
    return tuple(found)


class Operation(StrEnum):
    """What the kernel is asked for."""

    SET_UP = "set_up"
    SET_DESTINATIONS = "set_destinations"
    READ = "read"
    ADD = "add"
    REMOVE = "remove"


class PeerMetrics:
    """One per registry. Every operation has its series from the start, so that an alert may rely on its zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        operations = ", ".join(Operation)
        seconds = Histogram(
            "coil_egress_kernel_seconds",
            f"Duration of a kernel operation, regardless of its number of peers, by operation: {operations}.",
            ["operation"],
            registry=registry,
            buckets=_SECONDS,
        )
        failures = Counter(
            "coil_egress_kernel_failures",
            "Operations that the kernel rejected, completely or for one of their peers.",
            ["operation"],
            registry=registry,
        )
        self._seconds = {operation: seconds.labels(operation.value) for operation in Operation}
        self._failures = {operation: failures.labels(operation.value) for operation in Operation}
        self._peers = Gauge("coil_egress_peers", "Addresses of clients that have a tunnel.", registry=registry)
        self._refused = Gauge(
            "coil_egress_refused_peers",
            "Addresses for which the kernel rejected adding or removing a tunnel; the agent retries.",
            registry=registry,
        )

    @contextmanager
    def measured(self, operation: Operation) -> Iterator[None]:
        """Time the block; count it as failed if it raises."""
        with self._failures[operation].count_exceptions(), self._seconds[operation].time():
            yield

    def set_peers(self, peers: int, *, refused: int) -> None:
        self._peers.set(peers)
        self._refused.set(refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredPeers:
    """What the kernel is to hold, at any moment. `known` returns when `clients` and `settings` are synced."""

    spec: RouterSpec
    clients: ClientIndex
    settings: EgressSettings
    known: Callable[[], Awaitable[None]]


class PeerSync:
    """Run `run` in one task; the rest is synchronous. `clock` is monotonic seconds."""

    def __init__(
        self,
        router: RouterNetwork,
        desired: DesiredPeers,
        *,
        queue: WorkQueue,
        resync_interval: float,
        metrics: PeerMetrics,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._desired = desired
        self._clients = desired.clients
        self._queue = queue
        self._resync_interval = resync_interval
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self.is_set_up = asyncio.Event()
        """The kernel holds everything but the peers."""
        self._trouble = "not tried yet"
        self._awaited: set[IPAddress] | None = None  # clients from before the start that have no tunnel yet
        self._peers: set[IPAddress] = set()  # those that are complete in the kernel, as far as we know
        self._refusals: dict[IPAddress, tuple[int, str]] = {}  # in a row, and the last reason

    def look(self, addresses: Collection[IPAddress]) -> None:
        """Something about these has changed."""
        for address in addresses:
            self._queue.add(str(address))

    def look_at_all(self) -> None:
        """Something about all tunnels has changed."""
        self.look(list(self._clients))

    def look_around(self) -> None:
        """Something beside the tunnels has changed."""
        self._queue.add(_EVERYTHING)

    def missing(self) -> str | None:
        """What readiness lacks. Once nothing does, it stays so: an unready router has its clients' flows cut."""
        if not self.is_set_up.is_set():
            return f"the kernel is not set up for tunnels: {self._trouble}"
        if self._awaited is None:
            return self._trouble or "waiting for the complete list of clients"
        if not self._awaited:
            return None
        text = f"{len(self._awaited)} addresses of clients have no tunnel yet"
        refused = next((address for address in self._awaited if address in self._refusals), None)
        return text if refused is None else f"{text}; {refused}: {self._refusals[refused][1]}"

    async def run(self) -> None:
        """Work until cancelled; what the kernel is doing by then, it finishes."""
        self._queue.add(_EVERYTHING)
        while True:
            keys = await self._take()
            try:
                if _EVERYTHING in keys:
                    await self._look_around()
                # Until that has succeeded once, the others are forgotten: it will ask for every address.
                if self._awaited is not None:
                    await self._bring_about([ip_address(key) for key in keys if key != _EVERYTHING])
            finally:
                for key in keys:
                    self._queue.done(key)

    async def _take(self) -> list[str]:
        """What waits, at least one key and at most a batch."""
        await asyncio.sleep(0)  # taking from a full queue waits for nothing, and others must have their turn
        keys = [await self._queue.get()]
        try:
            while len(keys) < BATCH:
                keys.append(self._queue.get_nowait())
        except QueueEmptyError:
            pass
        return keys

    async def _look_around(self) -> None:
        """Mend what is not peers, and have each address looked at that is wanted or in the kernel."""
        began = self._clock()
        try:
            with self._metrics.measured(Operation.SET_UP):
                async with asyncio.timeout(CALL_SECONDS):
                    await self._router.set_up(self._desired.spec)
            if not self.is_set_up.is_set():
                self._log.info("the kernel is set up", seconds=round(self._clock() - began, 3))
                self.is_set_up.set()
            self._trouble = ""
            await self._desired.known()
            with self._metrics.measured(Operation.SET_DESTINATIONS):
                async with asyncio.timeout(CALL_SECONDS):
                    settings = self._desired.settings
                    await self._router.set_destinations(settings.destinations, cluster=settings.cluster)
            with self._metrics.measured(Operation.READ):
                async with asyncio.timeout(CALL_SECONDS):
                    kernel = await self._router.peers()
        except ROUTER_ERRORS as error:
            self._trouble = _sentence(error)
            delay = self._queue.retry(_EVERYTHING)
            self._log.error("the kernel cannot be set up", error=self._trouble, retry_in=round(delay, 2))
            return
        wanted = set(self._clients)
        if self._awaited is None:
            self._awaited = set(wanted)
            self._log.info("clients known", addresses=len(wanted), kept=len(kernel & wanted), left=len(kernel - wanted))
        self._peers = set(kernel)
        self.look(kernel | wanted)
        self._queue.forget(_EVERYTHING)
        self._queue.add_after(_EVERYTHING, self._resync_interval)

    async def _bring_about(self, addresses: Sequence[IPAddress]) -> None:
        # What is wanted is asked anew before the second call: the first one took its time.
        await self._add([address for address in addresses if address in self._clients])
        await self._remove([address for address in addresses if address not in self._clients])
        self._metrics.set_peers(len(self._peers), refused=len(self._refusals))

    async def _add(self, addresses: Sequence[IPAddress]) -> None:
        async def add(some: Sequence[IPAddress]) -> None:
            await self._router.add_peers(some, self._desired.settings.source_port)

        began = self._clock()
        done = await self._change(add, addresses, operation=Operation.ADD)
        new = done - self._peers
        self._peers |= new
        if new:
            seconds = round(self._clock() - began, 3)
            self._log.info("peers added", added=len(new), peers=len(self._peers), seconds=seconds)

    async def _remove(self, addresses: Sequence[IPAddress]) -> None:
        done = await self._change(self._router.remove_peers, addresses, operation=Operation.REMOVE)
        self._peers -= done
        if done:
            self._log.info("peers removed", removed=len(done), peers=len(self._peers))

    async def _change(
        self,
        change: Callable[[Sequence[IPAddress]], Awaitable[None]],
        addresses: Sequence[IPAddress],
        *,
        operation: Operation,
    ) -> set[IPAddress]:
        """Do it for all at once or, if that is refused, for each; returns those for which it was done."""
        if not addresses:
            return set()
        try:
            with self._metrics.measured(operation):
                async with asyncio.timeout(CALL_SECONDS):
                    await change(addresses)
        except ROUTER_ERRORS as error:
            if len(addresses) == 1 or isinstance(error, TimeoutError):
                for address in addresses:
                    self._refused(address, error, operation=operation)
                return set()
            done: set[IPAddress] = set()
            for address in addresses:
                done |= await self._change(change, (address,), operation=operation)
            return done
        for address in addresses:
            self._succeeded(address)
        return set(addresses)

    def _succeeded(self, address: IPAddress) -> None:
        self._queue.forget(str(address))
        self._refusals.pop(address, None)
        if self._awaited:
            self._awaited.discard(address)

    def _refused(self, address: IPAddress, error: Exception, *, operation: Operation) -> None:
        count, before = self._refusals.get(address, (0, ""))
        reason = _sentence(error)
        self._refusals[address] = (count + 1, reason)
        delay = self._queue.retry(str(address))
        report = self._log.debug if reason == before else self._log.warning
        report("peer refused", peer=str(address), doing=operation.value, error=reason, retry_in=round(delay, 2))
        if self._awaited and self._peers and count + 1 >= PATIENCE:
            # One that the kernel will never take must not keep the router from serving the others.
            self._awaited.discard(address)


def _sentence(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"the kernel has not answered for {CALL_SECONDS:.0f} s"
    return describe_error(error)
