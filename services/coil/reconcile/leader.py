"""One process of several works; the others stand by. Decided by a claim on a Lease of the API server.

In the flow: a service runs its informers always and its controllers inside `lead`.

Two are never at work, because
* a claim ends for its holder before it ends for anybody else (see `claim`), by monotonic clocks that are
  never compared;
* a leader that has not renewed for `renew` seconds cancels its work and awaits the end for up to `grace`
  seconds, and renew + grace is shorter than the lease. The deadline is kept apart from the renewal, so a
  call that hangs delays nothing;
* work that is not over by then dies with the process, and so does a process whose event loop is stuck or
  that wakes too late from a suspension (see `watchdog`).

What remains: a request that the leader sent just before its time was up may be carried out after it. Writes
are therefore guarded by resource versions, here as in the reconcilers. And a Lease that is deleted by hand
is free for a process that has not seen it before, though its holder works on until its next renewal.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from structlog.typing import FilteringBoundLogger

from coil.reconcile.backoff import Backoff
from coil.reconcile.claim import LeaseClaim, LeaseLostError
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.watchdog import Watchdog, exit_now

_LOOK_SECONDS = 0.5


class LeaderElector:
    """Contends with `claim`; see the module for what it guarantees. One `run` at a time.

    `name` is for metrics and logs. `watchdog` must use the claim's clock. `fatal` ends the process and must
    not return.
    """

    def __init__(
        self,
        name: str,
        claim: LeaseClaim,
        *,
        watchdog: Watchdog,
        metrics: ReconcileMetrics,
        log: FilteringBoundLogger,
        fatal: Callable[[str], NoReturn] = exit_now,
    ) -> None:
        self.name = name
        self._claim = claim
        self._watchdog = watchdog
        self._leading = metrics.leading.labels(name)
        self._log = log.bind(election=name, identity=claim.identity)
        self._fatal = fatal
        self._pause = Backoff(base=claim.timing.retry, cap=claim.timing.retry, jitter=0.25)
        self._working = False

    def holds_lease(self) -> bool:
        """True while nobody else can be at work. To be asked just before a step that nothing else guards.

        Looks at the clock only, so it is right even before a late event loop has noticed a lost lease.
        """
        return self._working and self._claim.clock() < self._claim.stop_by

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait to become leader, await `lead()`, give the Lease back. Does not return before `lead` does.

        When leadership is lost, `lead` is cancelled and awaited, and the wait begins again; `lead` is then
        called once more. It must let CancelledError through within `grace` seconds, otherwise the process
        ends. What `lead` raises, also while it is being cancelled, is raised after the Lease was given back.

        Cancelled: `lead` is cancelled and awaited (`grace`), the Lease is given back (`call`); both are
        bounded, and neither is cut short by further cancellations.
        """
        try:
            while True:
                await self._acquire()
                if await self._term(lead):
                    return
        finally:
            if self._claim.may_stand:
                await _unbroken(self._release())

    async def _acquire(self) -> None:
        claim, attempt, rival = self._claim, 0, ""
        while True:
            try:
                if await claim.try_acquire():
                    return
                attempt = 0
            except Exception as error:
                self._log.warning("cannot contend for the lease", error=_text(error), attempt=attempt)
                attempt += 1
            if claim.rival != rival:
                rival = claim.rival
                self._log.info("standing by", leader=rival)
            await asyncio.sleep(self._pause.delay(attempt, claim.random))

    async def _term(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """One time as leader. True: `lead` has returned. False: the Lease is lost and `lead` has ended."""
        claim = self._claim
        if claim.clock() >= claim.renew_by:
            return False  # the acknowledgement came too late to be worth anything
        self._watchdog.arm(claim.stop_by)
        self._working = True
        self._leading.set(1)
        self._log.info("leading")
        work = asyncio.create_task(lead(), name=f"{self.name}-lead")
        keep = asyncio.create_task(self._keep(), name=f"{self.name}-keep")
        try:
            while not (work.done() or keep.done()) and (left := claim.renew_by - claim.clock()) > 0:
                # In short steps: the clock may jump where timers do not (a suspended machine).
                await asyncio.wait({work, keep}, timeout=min(left, _LOOK_SECONDS), return_when=FIRST_COMPLETED)
        finally:
            ended_itself = work.done()
            await _unbroken(self._stop(work, keep))
        if not work.cancelled():
            work.result()
        elif ended_itself:
            raise RuntimeError("the leader's work ended with a cancellation that nobody asked for")
        if not ended_itself:
            self._log.warning("lost the lease", reason=_lost_because(keep))
        return ended_itself

    async def _keep(self) -> None:
        """Renew for ever. Raises LeaseLostError when the Lease is not ours any more."""
        claim, attempt = self._claim, 0
        pause = self._pause.delay(attempt, claim.random)
        while True:
            await asyncio.sleep(pause)
            pause = self._pause.delay(attempt, claim.random)
            began = claim.clock()
            try:
                await claim.renew()
            except LeaseLostError:
                raise
            except Exception as error:
                attempt += 1
                self._log.warning("cannot renew the lease", error=_text(error), attempt=attempt)
            else:
                attempt = 0
                # The claim counts from the sending, so a slow answer must not delay the next renewal as well.
                pause -= claim.clock() - began
                if self._working:
                    self._watchdog.arm(claim.stop_by)

    async def _stop(self, work: asyncio.Task[None], keep: asyncio.Task[None]) -> None:
        """End both tasks, the work before the claim does. A process that is too late for it does not survive."""
        claim = self._claim
        keep.cancel()
        left = claim.stop_by - claim.clock()
        if not work.done() and left > 0:
            work.cancel()
            await asyncio.wait({work}, timeout=min(claim.timing.grace, left))
        if not work.done():
            claim.may_stand = False  # never give a Lease back under a work that still runs
            self._fatal(f"the leader's work for {self.name!r} does not end and its lease expires")
        self._working = False
        self._watchdog.disarm()
        self._leading.set(0)
        if not work.cancelled() and (error := work.exception()) is not None:
            self._log.error("the leader's work failed", error=_text(error))
        # A renewal that hangs even in its cancellation does no harm, its write is guarded: not waited for
        # beyond this.
        await asyncio.wait({keep}, timeout=claim.timing.call)

    async def _release(self) -> None:
        if await self._claim.release():
            self._log.info("gave the lease back")
        else:
            self._log.warning("the lease was not given back and has to expire")


async def _unbroken(step: Coroutine[Any, Any, None]) -> None:
    """Await `step` to its end whatever cancels the caller meanwhile, then let the cancellation through.

    For steps that are bounded by themselves, and worse to leave than to wait for.
    """
    task = asyncio.create_task(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def _lost_because(keep: asyncio.Task[None]) -> str:
    if keep.cancelled() or not keep.done():
        return "not renewed in time"
    return _text(keep.exception())


def _text(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"
