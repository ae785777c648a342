"""Keeps the Lease that lets this node carry EIPs: the node's side of the fence.

In the flow: `gateway_share` says whether the node is to have a Lease, the keeper renews it, `applier` and `fuse` act
for the term that it tells, and what the applier has done goes out with the next renewal. From the other side the
controller watches: a Lease that stays silent for longer than the fence is revoked (its holder emptied), and only then
are its addresses placed elsewhere.

Invariants:
* every write is guarded by the version it was decided on, so a renewal and a revocation have an order;
* only an acknowledged renewal extends the fence, and it counts from when it was *sent*, by our own boot clock. The
  controller counts from when it *received* it, so the node knows first that its time is up;
* after an answer that did not come nobody knows whether the write took place: the Lease is read before the next one;
* a term is told only while it may be acted for. A revoked one is over before the next is asked for, and a term is
  higher than any that the Lease, this process, or a gateway's status has ever named;
* a Lease that names this node is this node's, whichever process wrote it: an agent that starts again goes on with it.
"""

import asyncio
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.meta import OwnerReference
from coil.crd.names import NodeName
from coil.eip.gateway_lease import FENCE, GatewayLease, claim_term, merge_applied
from coil.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from coil.kube.lease_lock import Lease
from coil.reconcile.backoff import Backoff
from coil.reconcile.claim import boot_clock
from coil_egress_agent.eip.metric import LeaseMetrics, Renewal
from coil_egress_agent.eip.node_lease import Entry, NodeLeaseStore, parse_tenure, render_lease

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
    """What the keeper is asked for. `known_term` is the highest that any gateway's status names for the node.

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
        store: NodeLeaseStore,
        *,
        node: NodeName,
        timing: FenceTiming,
        metrics: LeaseMetrics,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = boot_clock,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        random: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._node = node
        self._timing = timing
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._wall = wall
        self._random = random
        self._wish = LeaseDemand()
        self._hurry = asyncio.Event()
        self._lease: Lease | None = None  # as last read or acknowledged; None after any doubt
        self._may_stand = False  # a write that names us may stand in the Lease
        self._term: int | None = None
        self._highest = 0  # the highest term ever seen
        self._applied: Mapping[str, int] = {}
        self._until = -math.inf
        self._held = asyncio.Event()
        self._written_at = datetime.min.replace(tzinfo=UTC)
        self._term_listeners: list[Callable[[], None]] = []
        self._renewal_listeners: list[Callable[[], None]] = []
        self.trouble = ""
        """Why the last call failed; "" if none did since."""

    @property
    def term(self) -> int | None:
        """The term that may be acted for at this moment."""
        return self._term if self._clock() < self._until else None

    @property
    def remaining(self) -> float:
        """Seconds for which `term` may be acted for without a further renewal; not above zero: none."""
        return self._until - self._clock() if self._term is not None else 0.0

    @property
    def applied(self) -> Mapping[str, int]:
        """The revisions that this process or one before it has applied, by the gateways' UIDs, as of the last write."""
        return self._applied

    @property
    def idle(self) -> bool:
        """Nothing is asked for, and nothing of ours stands in the Lease."""
        return not (self._wish.wanted or self._may_stand)

    def on_term(self, listener: Callable[[], None]) -> None:
        """Call it whenever `term` has changed: begun, ended, or its time run out. It must be quick and not raise."""
        self._term_listeners.append(listener)

    def on_renewal(self, listener: Callable[[], None]) -> None:
        """Call it after each acknowledged renewal."""
        self._renewal_listeners.append(listener)

    def ask(self, wish: LeaseDemand, *, hurry: bool = False) -> None:
        """Replace what is asked for. It goes out with the next renewal, with `hurry` at once.

        With `wanted` false the Lease is given back: only for when no EIP is in the kernel any more.
        """
        at_once = (hurry and wish.applied != self._wish.applied) or wish.wanted != self._wish.wanted
        self._wish = wish
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
            while (left := self._until - self._clock()) > 0:  # noqa: ASYNC110 - it is a clock that is waited for
                await asyncio.sleep(min(left, _LOOK_SECONDS))
            if self._term is not None:
                self._lose("not renewed in time")

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
                await (self._renew() if self._wish.wanted else self._give_back())
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
        lease = await self._read()
        if lease is None and self._term is not None:
            self._lose("the Lease was deleted")
        await self._write(lease)

    async def _write(self, lease: Lease | None) -> None:
        tenure = parse_tenure(lease) if lease is not None else None
        holder = tenure.holder if tenure is not None else ""
        if holder not in ("", self._node):
            self._lose(f"the Lease names {holder}")
            raise ForeignHolderError(f"the Lease of this node names {holder}: delete it")
        if not holder and self._term is not None:
            self._lose("revoked")
        self._highest = max(self._highest, self._wish.known_term)
        term = claim_term(tenure, self._node, known=self._highest)
        # Counted from the asking: were the answer lost and the Lease deleted by hand, the term would be used twice.
        self._highest = max(self._highest, term)
        if self._term is not None and term != self._term:
            self._lose("somebody else has changed the term")
        self._applied = self._merged(tenure)
        stamp = self._stamp()
        goes_on = lease is not None and holder == self._node and lease.spec.lease_transitions == term
        entry = Entry(
            holder=self._node,
            term=term,
            applied=self._applied,
            fence=self._timing.fence,
            acquired=lease.spec.acquire_time if lease is not None and goes_on else stamp,
            written=stamp,
        )
        body = render_lease(entry, over=lease, node=self._node, owners=self._wish.owners)
        self._lease = None
        self._may_stand = True
        sent = self._clock()
        with self._metrics.measured():
            async with asyncio.timeout(self._timing.call):
                self._lease = await (self._store.create(body) if lease is None else self._store.replace(body))
        self._acknowledged(self._lease.spec.lease_transitions, sent)

    def _acknowledged(self, term: int, sent: float) -> None:
        self._metrics.count(Renewal.ACKNOWLEDGED)
        self._highest = max(self._highest, term)
        begins = self.term != term
        self._until = sent + self._timing.fence
        self._term = term
        if self.term is None:
            return  # it took so long that its time was up before it came; the next one may be in time
        self._held.set()
        if begins:
            self._metrics.set_term(term, held=True)
            self._log.info("lease held", term=term)
            for listener in self._term_listeners:
                listener()
        for listener in self._renewal_listeners:
            listener()

    async def _give_back(self) -> None:
        """Leave a Lease that nobody holds, if it is ours. Raises ApiError, TimeoutError."""
        if self._term is not None:
            self._lose("not needed any more")
        lease = self._lease or await self._read()
        self._lease = None
        if lease is not None and lease.spec.holder_identity == self._node:
            entry = Entry(
                holder="",
                term=lease.spec.lease_transitions,
                applied=self._merged(parse_tenure(lease)),
                fence=self._timing.fence,
                acquired=lease.spec.acquire_time,
                written=self._stamp(),
            )
            async with asyncio.timeout(self._timing.call):
                await self._store.replace(render_lease(entry, over=lease, node=self._node))
            self._log.info("lease given back", term=entry.term)
        if lease is not None:
            self._highest = max(self._highest, lease.spec.lease_transitions)
        self._may_stand = False

    def _merged(self, lease: GatewayLease | None) -> dict[str, int]:
        """What is said to be applied: of the gateways that there are."""
        merged = merge_applied(lease, self._wish.applied)
        return {uid: revision for uid, revision in merged.items() if uid in self._wish.gateways}

    async def _read(self) -> Lease | None:
        async with asyncio.timeout(self._timing.call):
            return await self._store.read()

    def _lose(self, why: str) -> None:
        """The term is over, for this moment at least."""
        report = self._log.info if why == "not needed any more" else self._log.warning
        report("lease not held any more", term=self._term, why=why, trouble=self.trouble)
        self._metrics.set_term(self._term or 0, held=False)
        self._term = None
        self._until = -math.inf
        self._held.clear()
        for listener in self._term_listeners:
            listener()

    def _report(self, error: Exception, pause: float) -> None:
        self._metrics.count(Renewal.FAILED)
        if isinstance(error, TimeoutError):
            text = f"the API server has not answered for {self._timing.call:.3g} s"
        else:
            text = str(error) or type(error).__name__
        quiet = text == self.trouble or isinstance(error, (ConflictError, AlreadyExistsError))
        (self._log.debug if quiet else self._log.warning)("lease not renewed", why=text, retry_in=round(pause, 3))
        self.trouble = text

    def _stamp(self) -> str:
        """The time as Kubernetes' MicroTime, later than any before: the API server does not store, nor tell anybody, a
        write that changes nothing.
        """
        self._written_at = max(self._wall().astimezone(UTC), self._written_at + timedelta(microseconds=1))
        return self._written_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
