"""Watches the leases by which gateway nodes hold their addresses, and revokes those that were silent for too long.

In the flow: the informer of leases tells of each renewal, `run` looks when the next lease would lapse, `reconcile`
reads a lapsed one and revokes it. Listeners hear of each node that got, lost or gave back its lease, or has applied
something. Only after a revocation was acknowledged is a node told as not holding: see `coil.eip.gateway_lease` for
why no address is ever at two nodes. Renewals, five a second and node, wake nobody.

A term begins with no memory: each lease counts from when this leader has first seen it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.gateway_lease import LEASE_LABELS, GatewayLease, lease_name, read_tenure
from coil.eip.lease_expiry import Lapse, LeaseExpiry
from coil.kube.api_client import ApiClient
from coil.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from coil.kube.lease_lock import LEASES, Lease, LeaseSpec
from coil.reconcile.backoff import Backoff
from coil.reconcile.controller import DONE, Result
from coil.reconcile.queue import WorkQueue
from coil_egress_controller.eip.metric import EipMetrics

REVOCATION_BACKOFF: Final = Backoff(base=0.05, cap=1.0)
"""For the queue: an address is nowhere until its node's lease is revoked."""
CALL_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.02
"""Until the next look while some that have lapsed are being revoked."""

ChangeListener = Callable[[str], None]


class LeaseMonitor:
    """Of one term. `clock` is monotonic seconds; `queue` is the one that `reconcile` gets its keys, node names, from.

    `listed_term` says for which term a gateway's status lists addresses at a node, None if none does.
    """

    def __init__(
        self,
        *,
        client: ApiClient,
        namespace: str,
        queue: WorkQueue,
        listed_term: Callable[[str], int | None],
        metrics: EipMetrics,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._queue = queue
        self._listed_term = listed_term
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._sight = LeaseExpiry()
        self._heard: dict[NodeName, float] = {}
        """The nodes, and when something was last heard of the lease of each: for the metrics, as the sight decides."""
        self._at_work: set[NodeName] = set()
        self._unanswered: set[NodeName] = set()
        self._earlier = asyncio.Event()
        self._listeners: list[ChangeListener] = []

    def subscribe(self, listener: ChangeListener) -> None:
        """Call it with a node's name when what `tenure` says of it, but for its version, has changed."""
        self._listeners.append(listener)

    def tenure(self, node: str) -> GatewayLease | None:
        """The node's lease as far as it is known; None: there is none."""
        return self._sight.tenure(NodeName(node))

    def change_lease(self, old: Lease | None, new: Lease | None) -> None:
        """For the informer's changes."""
        if new is not None:
            if (tenure := _read(new)) is not None:
                self._observe(tenure)
        elif old is not None and (gone := _read(old)) is not None:
            self.miss(gone.node, gone.term)

    def miss(self, node: str, term: int) -> None:
        """There is no lease of `node`, which had `term`: its addresses count as held until they cannot be any more."""
        name = NodeName(node)
        known = self._sight.tenure(name)
        now = self._clock()
        if known is not None or name not in self._heard:
            self._heard[name] = now
        self._sight.miss(name, term=term, now=now)
        self._earlier.set()
        if known is not None:
            self._tell(name)

    async def run(self) -> None:
        """Queue lapsed leases until cancelled."""
        while True:
            self._earlier.clear()
            now = self._clock()
            for lapse in self._sight.lapsed(now):
                if lapse.node not in self._at_work:
                    self._at_work.add(lapse.node)
                    self._queue.add(lapse.node)
            deadline = self._sight.next_deadline()
            left = None if deadline is None else deadline - now
            with suppress(TimeoutError):
                # What is being revoked stays lapsed until that is done.
                async with asyncio.timeout(_LOOK_SECONDS if left is not None and left <= 0 else left):
                    await self._earlier.wait()

    async def reconcile(self, name: str) -> Result:
        """Revoke the lease of the node of that name if it has lapsed. Raises ApiError, TimeoutError: try again."""
        node = NodeName(name)
        lapse = next((lapse for lapse in self._sight.lapsed(self._clock()) if lapse.node == node), None)
        if lapse is not None:
            try:
                await self._judge(lapse)
            except (ConflictError, AlreadyExistsError):
                self._log.info("a lease was renewed at the last moment", node=node)
            except (ApiError, TimeoutError):
                self._unanswered.add(node)
                raise
        self._at_work.discard(node)
        self._earlier.set()
        return DONE

    async def _judge(self, lapse: Lapse) -> None:
        node = lapse.node
        asked = self._clock()
        live = await self._read_live(node)
        answered = self._clock()
        if node in self._unanswered:
            # While the API server was away nobody could renew: the node gets its time once more.
            self._unanswered.discard(node)
            self._forget(node)
            if live is not None and (tenure := _read(live)) is not None:
                self._observe(tenure)
            else:
                self.miss(node, lapse.term)
            return
        before = self._sight.tenure(node)
        due = self._sight.confirm(lapse, None if live is None else _read(live), asked=asked, answered=answered)
        if not due:
            self._told_if_changed(node, before)
            return
        if live is None and self._listed_term(node) is None:
            self._forget(node)
            return
        await self._revoke(lapse, live)

    async def _revoke(self, lapse: Lapse, live: Lease | None) -> None:
        """Raises ConflictError or AlreadyExistsError when the node has been heard of meanwhile."""
        name = lease_name(lapse.node)
        # The watch may tell of the revocation before its answer comes.
        heard = self._heard[lapse.node]
        async with asyncio.timeout(CALL_SECONDS):
            if live is None:
                metadata = ObjectMeta(name=name, namespace=self._namespace, labels=dict(LEASE_LABELS))
                body = Lease(metadata=metadata, spec=LeaseSpec(lease_transitions=lapse.term))
                revoked = await self._client.create(LEASES, body, namespace=self._namespace)
            else:
                spec = msgspec.structs.replace(live.spec, holder_identity="")
                body = msgspec.structs.replace(live, spec=spec)
                revoked = await self._client.replace(LEASES, body, name=name, namespace=self._namespace)
        silence = self._clock() - heard
        self._log.warning(
            "a gateway node is silent, its lease is revoked",
            node=lapse.node,
            term=lapse.term,
            silent_for=round(silence, 3),
        )
        if (tenure := _read(revoked)) is not None:
            self._observe(tenure)
        self._metrics.count_revocation(silence)

    async def _read_live(self, node: NodeName) -> Lease | None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await self._client.get(LEASES, lease_name(node), namespace=self._namespace)
        except NotFoundError:
            return None

    def _observe(self, tenure: GatewayLease) -> None:
        before = self._sight.tenure(tenure.node)
        self._heard.setdefault(tenure.node, self._clock())
        self._sight.observe(tenure, self._clock())
        self._told_if_changed(tenure.node, before)

    def _forget(self, node: NodeName) -> None:
        self._heard.pop(node, None)
        self._sight.retain(self._heard)

    def _told_if_changed(self, node: NodeName, before: GatewayLease | None) -> None:
        after = self._sight.tenure(node)
        if after is not before:
            self._heard[node] = self._clock()
        if before is None or after is None or not (before.held and after.held):
            self._earlier.set()
        if _facts(before) != _facts(after):
            self._tell(node)

    def _tell(self, node: NodeName) -> None:
        for listener in self._listeners:
            listener(node)


def _read(lease: Lease) -> GatewayLease | None:
    metadata, spec = lease.metadata, lease.spec
    return read_tenure(
        name=metadata.name,
        version=metadata.resource_version,
        holder=spec.holder_identity,
        transitions=spec.lease_transitions,
        annotations=metadata.annotations,
    )


def _facts(tenure: GatewayLease | None) -> tuple[object, ...] | None:
    return None if tenure is None else (tenure.held, tenure.term, tenure.applied)
