"""Renews the Lease that lets this node carry EIPs: the node's side of the fence.

In the flow: `node_assignment` decides whether the node needs a Lease, this module renews it, `applier` and
`kernel_lease` act for the term that it reports, and what the applier has done goes out with the next renewal. The
controller watches from the other side: a Lease that stays silent for longer than the fence is revoked (its holder
emptied), and only then are its addresses placed elsewhere.

What is written and until when a term may be acted for is decided by `coil.eip.lease_renewal`, which has the invariants
of terms and times. Here are those of the calls:

* every write is guarded by the version it was decided on, so a renewal and a revocation have an order;
* when a call fails it is unknown whether the write took place: the Lease is read before the next one;
* a Lease that names this node is this node's, whichever process wrote it: an agent that restarts continues with it;
* a Lease is never deleted: its `leaseTransitions` is the term, and no term may be used twice. It goes with its Node.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.names import NodeName
from coil.eip.gateway_lease import (
    FENCE,
    LEASE_LABELS,
    GatewayLease,
    lease_name,
    parse_gateway_lease,
    render_annotations,
)
from coil.eip.lease_renewal import RELEASED, LeaseRenewal
from coil.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from coil.kube.lease_lock import Lease, LeaseSpec, ResourceLock
from coil.manager.claim import boot_clock
from coil.reconcile.backoff import Backoff
from coil.runtime.log import describe_error
from coil_egress_agent.eip.metric import LeaseMetrics, Renewal


def parse_lease(lease: Lease) -> GatewayLease | None:
    """What a Lease says; None where its name is not that of a node's Lease."""
    return parse_gateway_lease(
        name=lease.metadata.name,
        version=lease.metadata.resource_version,
        holder=lease.spec.holder_identity,
        transitions=lease.spec.lease_transitions,
        annotations=lease.metadata.annotations,
    )


def render_lease(
    lease: GatewayLease,
    *,
    over: Lease | None,
    acquired: str | None,
    written: str,
    owners: tuple[OwnerReference, ...] = (),
) -> Lease:
    """The object that says `lease`, over the one that was read; labels and annotations of others stay. `owners` count
    where there was none.
    """
    before = over.metadata if over is not None else ObjectMeta(name=lease_name(lease.node), owner_references=owners)
    metadata = msgspec.structs.replace(
        before,
        labels={**before.labels, **LEASE_LABELS},
        annotations={**before.annotations, **render_annotations(fence=lease.fence, applied=lease.applied)},
    )
    spec = LeaseSpec(
        holder_identity=lease.holder,
        # The API has whole seconds. They are not computed with: the annotation is what counts.
        lease_duration_seconds=max(1, round(lease.fence)),
        acquire_time=acquired,
        renew_time=written,
        lease_transitions=lease.term,
    )
    return Lease(metadata=metadata, spec=spec)


_LOOK_SECONDS: Final = 0.5
"""The clock may run on while timers stand still (suspend), so the fence is looked at this often."""


class ForeignHolderError(Exception):
    """The Lease names another holder than this node, which nothing of ours writes."""


@dataclass(frozen=True, slots=True)
class FenceTiming:
    """Seconds. A renewal is good for `fence`; a call has half of it, so that one that hangs can still be made good."""

    fence: float = FENCE

    @property
    def renewal(self) -> float:
        return self.fence / 3

    @property
    def call(self) -> float:
        return self.fence / 2

    @property
    def retry(self) -> Backoff:
        """Quick while the fence may still be kept; with a server that is away, a few times a fence."""
        return Backoff(base=self.fence / 12, cap=max(1.0, self.fence))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDemand:
    """What is asked of the renewer. `known_term` is the highest that any gateway's status names for the node.

    `applied` has the revisions that this process has applied, `gateways` all gateways that there are, both by UID.
    """

    wanted: bool = False
    known_term: int = 0
    owners: tuple[OwnerReference, ...] = ()
    applied: Mapping[str, int] = field(default_factory=dict)
    gateways: frozenset[str] = frozenset()


class LeaseRenewer:
    """Run `run` in one task; the rest is synchronous. `clock` is monotonic seconds that count suspension, `wall` is
    what humans read in the Lease, `random` gives [0, 1).
    """

    def __init__(
        self,
        lock: ResourceLock,
        *,
        node: NodeName,
        timing: FenceTiming,
        metrics: LeaseMetrics,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = boot_clock,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        random: Callable[[], float] = random.random,
    ) -> None:
        self._lock = lock
        self._node = node
        self._timing = timing
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._wall = wall
        self._random = random
        self._demand = LeaseDemand()
        self._renewal = LeaseRenewal(node, fence=timing.fence)
        self._hurry = asyncio.Event()
        self._lease: Lease | None = None  # as last read or acknowledged; None after any doubt
        self._may_stand = False  # a write that names us may stand in the Lease
        self._held = asyncio.Event()
        self._written_at = datetime.min.replace(tzinfo=UTC)
        self._term_listeners: list[Callable[[], None]] = []
        self._renewal_listeners: list[Callable[[], None]] = []
        self.trouble = ""
        """Why the last call failed; "" if none did since."""

    @property
    def term(self) -> int | None:
        """The term that may be acted for at this moment."""
        return self._renewal.term(self._clock())

    @property
    def remaining(self) -> float:
        """Seconds for which `term` may be acted for without a further renewal; 0 if there is none."""
        return self._renewal.remaining(self._clock())

    def kernel_timeout(self, held_for: int | None) -> float:
        """Seconds from now for which the kernel may answer for the addresses that it holds for the term `held_for`.

        May be called from another thread.
        """
        return self._renewal.kernel_timeout(self._clock(), held_for=held_for)

    @property
    def applied(self) -> Mapping[str, int]:
        """The revisions that this process or one before it has applied, by the gateways' UIDs, as of the last write."""
        return self._renewal.applied

    @property
    def idle(self) -> bool:
        """Nothing is asked for, and nothing of ours stands in the Lease."""
        return not (self._demand.wanted or self._may_stand)

    def on_term(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever `term` has begun or ended. It must be quick and must neither raise nor call back."""
        self._term_listeners.append(listener)

    def on_renewal(self, listener: Callable[[], None]) -> None:
        """Call it after each acknowledged renewal."""
        self._renewal_listeners.append(listener)

    def ask(self, demand: LeaseDemand, *, hurry: bool = False) -> None:
        """Replace what is asked for. It goes out with the next renewal, with `hurry` at once.

        With `wanted` false the Lease is given back: only for when no EIP is in the kernel any more.
        """
        at_once = (hurry and demand.applied != self._demand.applied) or demand.wanted != self._demand.wanted
        self._demand = demand
        if at_once:
            self._hurry.set()

    async def run(self) -> None:
        """Keep the Lease as asked until cancelled; it then stands, and lapses unless a successor renews it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_fence(), name="fence")
            group.create_task(self._keep(), name="renewals")

    async def _watch_fence(self) -> None:
        """End the term when its time has run out."""
        while True:
            await self._held.wait()
            while (left := self.remaining) > 0:  # noqa: ASYNC110 - it is a clock that is waited for
                await asyncio.sleep(min(left, _LOOK_SECONDS))
            self._held.clear()
            term = self._renewal.begun_term
            self._note_end(term, self._renewal.expire(self._clock()))

    async def _keep(self) -> None:
        attempt = 0
        retry = self._timing.retry
        while True:
            self._hurry.clear()
            if self.idle:
                attempt = 0
                await self._hurry.wait()
                continue
            began = self._clock()
            try:
                await (self._renew() if self._demand.wanted else self._give_back())
            except (ApiError, TimeoutError, ForeignHolderError) as error:
                self._lease = None
                pause = retry.delay(attempt, self._random)
                attempt += 1
                self._report(error, pause)
            else:
                if self.trouble:
                    self._log.info("the lease is kept again", after=self.trouble)
                self.trouble, attempt = "", 0
                # The fence counts from the sending, so a slow answer must not delay the next renewal as well.
                pause = self._timing.renewal - (self._clock() - began)
            if pause > 0:
                await self._wait(pause)
            else:
                await asyncio.sleep(0)

    async def _wait(self, seconds: float) -> None:
        """Until then, or until somebody is in a hurry."""
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _renew(self) -> None:
        """One acknowledged write; after any doubt, and at once after a conflict, the Lease is read before it.

        Raises ApiError, TimeoutError, ForeignHolderError.
        """
        if self._lease is not None:
            try:
                await self._write(self._lease)
            except (ConflictError, NotFoundError):
                self._metrics.count(Renewal.CONFLICT)
            else:
                return
        await self._write(await self._read())

    async def _write(self, lease: Lease | None) -> None:
        demand = self._demand
        term = self._renewal.begun_term
        known = parse_lease(lease) if lease is not None else None
        decision = self._renewal.renew(
            known, known_term=demand.known_term, applied=demand.applied, gateways=demand.gateways
        )
        self._note_end(term, decision.ended)
        if decision.lease is None:
            holder = lease.spec.holder_identity if lease is not None else ""
            raise ForeignHolderError(f"the Lease of this node names {holder}: delete it")
        body = self._render(lease, decision.lease)
        self._lease = None
        self._may_stand = True
        sent = self._clock()
        with self._metrics.measured():
            async with asyncio.timeout(self._timing.call):
                self._lease = await (self._lock.create(body) if lease is None else self._lock.replace(body))
        self._acknowledged(self._lease.spec.lease_transitions, sent)

    def _acknowledged(self, term: int, sent: float) -> None:
        self._metrics.count(Renewal.ACKNOWLEDGED)
        begins = self._renewal.acknowledge(term, sent=sent, now=self._clock())
        if self.term is None:
            return
        self._held.set()
        if begins:
            self._metrics.set_term(term, held=True)
            self._log.info("lease held", term=term)
            for listener in self._term_listeners:
                listener()
        for listener in self._renewal_listeners:
            listener()

    async def _give_back(self) -> None:
        """Leave a Lease without a holder, if it is ours. Raises ApiError, TimeoutError."""
        # The term is over before anything is awaited.
        self._note_end(self._renewal.begun_term, self._renewal.end(RELEASED))
        lease = self._lease or await self._read()
        self._lease = None
        demand = self._demand
        known = parse_lease(lease) if lease is not None else None
        decision = self._renewal.release(known, applied=demand.applied, gateways=demand.gateways)
        if decision.lease is not None:
            async with asyncio.timeout(self._timing.call):
                await self._lock.replace(self._render(lease, decision.lease))
            self._log.info("lease given back", term=decision.lease.term)
        self._may_stand = False

    async def _read(self) -> Lease | None:
        async with asyncio.timeout(self._timing.call):
            return await self._lock.read()

    def _render(self, before: Lease | None, lease: GatewayLease) -> Lease:
        """The object to write over `before`; a term that goes on keeps the time at which it was acquired."""
        stamp = self._stamp()
        goes_on = before is not None and (before.spec.holder_identity, before.spec.lease_transitions) == (
            self._node,
            lease.term,
        )
        return render_lease(
            lease,
            over=before,
            owners=self._demand.owners,
            acquired=before.spec.acquire_time if before is not None and goes_on else stamp,
            written=stamp,
        )

    def _note_end(self, term: int | None, reason: str) -> None:
        """`term` is over; nothing has happened if there is no reason."""
        if not reason:
            return
        report = self._log.info if reason == RELEASED else self._log.warning
        report("lease not held any more", term=term, reason=reason, trouble=self.trouble)
        self._metrics.set_term(term or 0, held=False)
        self._held.clear()
        for listener in self._term_listeners:
            listener()

    def _report(self, error: Exception, pause: float) -> None:
        self._metrics.count(Renewal.FAILED)
        if isinstance(error, TimeoutError):
            text = f"the API server has not answered for {self._timing.call:.3g} s"
        else:
            text = describe_error(error)
        quiet = text == self.trouble or isinstance(error, (ConflictError, AlreadyExistsError))
        (self._log.debug if quiet else self._log.warning)("lease not renewed", error=text, retry_in=round(pause, 3))
        self.trouble = text

    def _stamp(self) -> str:
        """The time as Kubernetes' MicroTime, later than any before: the API server neither stores nor announces a write
        that changes nothing.
        """
        self._written_at = max(self._wall().astimezone(UTC), self._written_at + timedelta(microseconds=1))
        return self._written_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
