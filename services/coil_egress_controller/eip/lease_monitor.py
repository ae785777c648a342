"""Watches the leases by which gateway nodes hold their addresses, and revokes those that were not renewed in time.

In the flow: the cache of leases shows each renewal, `run` waits until the next lease would lapse, `reconcile` reads a
lapsed one and revokes it. `changes` sends each node that got, lost or gave back its lease, or has applied something.
Only after a revocation was acknowledged is a node reported as not holding: see `coil.eip.gateway_lease` for why no
address is ever at two nodes. Renewals, five a second and node, wake nobody.

A term begins with no memory: the age of each lease counts from when this leader first saw it. A monitor that outlived a
term would take the time in which it did not watch for silence, and revoke leases that are being renewed.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.crd.egress_gateway import EgressGateway
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.gateway_lease import (
    LEASE_LABELS,
    MARGIN,
    GatewayLease,
    Lapse,
    LeaseExpiry,
    lease_name,
    parse_gateway_lease,
)
from coil.kube.api_client import ApiClient
from coil.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from coil.kube.lease_lock import LEASES, Lease, LeaseSpec
from coil.manager.term import Channel, Term
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, Result
from coil_egress_controller.eip.metric import EipMetrics

REVOCATION_BACKOFF: Final = Backoff(base=0.05, cap=1.0)
"""Short: an address is nowhere until its node's lease is revoked."""
WORKERS: Final = 16
CALL_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.02
"""Until the next check while lapsed leases are being revoked."""


class LeaseMonitor:
    """Of one term. The keys are node names. `clock` gives monotonic seconds.

    `listed_term` returns the term for which a gateway's status lists addresses at a node, None if none does. `patience`
    is how many seconds later than it could a lease is revoked.
    """

    def __init__(
        self,
        *,
        client: ApiClient,
        namespace: str,
        listed_term: Callable[[str], int | None],
        metrics: EipMetrics,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
        patience: float = 0.0,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._listed_term = listed_term
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._expiry = LeaseExpiry(margin=MARGIN + patience)
        self._heard: dict[NodeName, float] = {}
        """By node, when its lease was last seen to change: only for the metrics, `_expiry` decides."""
        self._at_work: set[NodeName] = set()
        self._unanswered: set[NodeName] = set()
        self._earlier = asyncio.Event()
        self._lapsed: Channel[NodeName] = Channel()
        self.changes: Channel[NodeName] = Channel()
        """The nodes for which what `lease` returns has changed, apart from its version."""

    def setup(self, term: Term, *, leases: Cache[Lease], gateways: Cache[EgressGateway]) -> None:
        """After the setup of everything that watches `changes`: the present leases are sent at once."""
        controller = term.controller("gatewaylease", self.reconcile, workers=WORKERS, backoff=REVOCATION_BACKOFF)
        controller.watch_channel(self._lapsed, lambda node: [node])
        controller.needs(leases, gateways)
        term.subscribe(leases, self._change_lease)
        term.add_runnable("leases", self.run, after=[leases, gateways])

    def lease(self, node: str) -> GatewayLease | None:
        """The node's lease as far as it is known; None: there is none."""
        return self._expiry.lease(NodeName(node))

    def _change_lease(self, old: Lease | None, new: Lease | None) -> None:
        if new is not None:
            if (lease := _read(new)) is not None:
                self._observe(lease)
        elif old is not None and (gone := _read(old)) is not None:
            self.miss(gone.node, gone.term)

    def miss(self, node: str, term: int) -> None:
        """There is no lease of `node`, which had `term`: its addresses count as held until they cannot be any more."""
        name = NodeName(node)
        known = self._expiry.lease(name)
        now = self._clock()
        if known is not None or name not in self._heard:
            self._heard[name] = now
        self._expiry.miss(name, term=term, now=now)
        self._earlier.set()
        if known is not None:
            self._send(name)

    async def run(self) -> None:
        """Send lapsed leases to `reconcile` until cancelled."""
        while True:
            self._earlier.clear()
            now = self._clock()
            for lapse in self._expiry.lapsed(now):
                if lapse.node not in self._at_work:
                    self._at_work.add(lapse.node)
                    self._lapsed.send(lapse.node)
            deadline = self._expiry.next_deadline()
            left = None if deadline is None else deadline - now
            with suppress(TimeoutError):
                # A lease stays lapsed while it is being revoked.
                async with asyncio.timeout(_LOOK_SECONDS if left is not None and left <= 0 else left):
                    await self._earlier.wait()

    async def reconcile(self, name: str) -> Result:
        """Revoke the lease of the node of that name if it has lapsed. Raises ApiError, TimeoutError: try again."""
        node = NodeName(name)
        lapse = next((lapse for lapse in self._expiry.lapsed(self._clock()) if lapse.node == node), None)
        if lapse is not None:
            try:
                await self._check(lapse)
            except (ConflictError, AlreadyExistsError):
                self._log.info("lease was renewed at the last moment", node=node)
            except (ApiError, TimeoutError):
                self._unanswered.add(node)
                raise
        self._at_work.discard(node)
        self._earlier.set()
        return DONE

    async def _check(self, lapse: Lapse) -> None:
        node = lapse.node
        asked = self._clock()
        live = await self._read_live(node)
        answered = self._clock()
        if node in self._unanswered:
            # While the API server was unavailable nobody could renew: the node gets its full time again.
            self._unanswered.discard(node)
            self._forget(node)
            if live is not None and (lease := _read(live)) is not None:
                self._observe(lease)
            else:
                self.miss(node, lapse.term)
            return
        before = self._expiry.lease(node)
        due = self._expiry.confirm(lapse, None if live is None else _read(live), asked=asked, answered=answered)
        if not due:
            self._send_if_changed(node, before)
            return
        if live is None and self._listed_term(node) is None:
            self._forget(node)
            return
        await self._revoke(lapse, live)

    async def _revoke(self, lapse: Lapse, live: Lease | None) -> None:
        """Raises ConflictError or AlreadyExistsError when the lease was renewed in the meantime."""
        name = lease_name(lapse.node)
        # The watch may show the revocation before its answer arrives.
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
        if (lease := _read(revoked)) is not None:
            self._observe(lease)
        self._metrics.count_revocation(silence)

    async def _read_live(self, node: NodeName) -> Lease | None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await self._client.get(LEASES, lease_name(node), namespace=self._namespace)
        except NotFoundError:
            return None

    def _observe(self, lease: GatewayLease) -> None:
        before = self._expiry.lease(lease.node)
        self._heard.setdefault(lease.node, self._clock())
        self._expiry.observe(lease, self._clock())
        self._send_if_changed(lease.node, before)

    def _forget(self, node: NodeName) -> None:
        self._heard.pop(node, None)
        self._expiry.retain(self._heard)

    def _send_if_changed(self, node: NodeName, before: GatewayLease | None) -> None:
        after = self._expiry.lease(node)
        if after is not before:
            self._heard[node] = self._clock()
        if before is None or after is None or not (before.held and after.held):
            self._earlier.set()
        if _facts(before) != _facts(after):
            self._send(node)

    def _send(self, node: NodeName) -> None:
        self.changes.send(node)


def _read(lease: Lease) -> GatewayLease | None:
    metadata, spec = lease.metadata, lease.spec
    return parse_gateway_lease(
        name=metadata.name,
        version=metadata.resource_version,
        holder=spec.holder_identity,
        transitions=spec.lease_transitions,
        annotations=metadata.annotations,
    )


def _facts(lease: GatewayLease | None) -> tuple[object, ...] | None:
    return None if lease is None else (lease.held, lease.term, lease.applied)
