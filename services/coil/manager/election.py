"""The leader election of a service: one process of several works, the others stand by. Decided by a claim on a Lease.

In the flow: `Manager.start` runs the caches always and the controllers inside `lead`. `Election` is this replica's part
in it, by its settings; `LeaderElector` contends, begins and ends the work; `Watchdog` ends the process if that fails.

Two are never at work, because
* a claim ends for its holder before it ends for anybody else (see `claim`), by monotonic clocks that are
  never compared;
* a leader that has not renewed for `renew` seconds cancels its work and awaits the end for up to `grace`
  seconds, and renew + grace is shorter than the lease. The deadline is kept apart from the renewal, so a
  call that hangs delays nothing;
* work that is not over by then dies with the process, and so does a process whose event loop is stuck or
  that wakes too late from a suspension (see `Watchdog`).

What remains: a request that the leader sent just before its time was up may be carried out after it. Writes
are therefore guarded by resource versions, here as in the reconcilers. And a Lease that is deleted by hand
is free for a process that has not seen it before, though its holder works on until its next renewal.
"""

import asyncio
import os
import threading
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

from structlog.typing import FilteringBoundLogger

from coil.kube.client import KubeClient
from coil.kube.lease_lock import LeaseLock
from coil.manager.claim import LeaderTiming, LeaseClaim, LeaseLostError, boot_clock, new_identity
from coil.reconcile.backoff import Backoff
from coil.reconcile.metric import ReconcileMetrics
from coil.runtime.flag import Group, flag, kind, parse_period, parse_text
from coil.runtime.process import Process

# sysexits.h EX_TEMPFAIL: nothing is wrong with the configuration; start again.
EXIT_LEASE_EXPIRED = 75

# The clock may run on while timers stand still (suspend), so the deadline is looked at this often.
_LOOK_SECONDS = 0.5


def exit_now(reason: str) -> NoReturn:
    """End the process at once: no handlers, no buffers, no waiting for a work that does not stop."""
    os.write(2, f"coil: fatal: {reason}\n".encode())
    os._exit(EXIT_LEASE_EXPIRED)


class Watchdog:
    """Ends the process when its lease is about to expire unrenewed.

    The election stops its work in time, but it lives on the event loop, and something else may sit on that loop: a
    system call that does not return, a loop in pure Python. Then neither the renewal nor the cancellation runs, and the
    work would carry on, under another leader's eyes, as soon as the loop is free. So a thread watches the deadline, and
    what it does about it needs no loop.

    A thread, started with the first `arm`, that calls `fatal` when `clock()` passes the deadline.

    `clock` must be the one that the deadlines were computed with. The thread is a daemon: it never holds
    up the process, and `close` ends it.
    """

    def __init__(self, *, clock: Callable[[], float], fatal: Callable[[str], object] = exit_now) -> None:
        self._clock = clock
        self._fatal = fatal
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def arm(self, deadline: float, /) -> None:
        with self._changed:
            self._deadline = deadline
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="lease-watchdog", daemon=True)
                self._thread.start()

    def disarm(self) -> None:
        with self._changed:
            self._deadline = None
            self._changed.notify()

    def close(self) -> None:
        """Disarm and end the thread. Idempotent."""
        with self._changed:
            self._deadline = None
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=5 * _LOOK_SECONDS)

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                if self._deadline is None:
                    self._changed.wait()
                    continue
                left = self._deadline - self._clock()
                if left <= 0:
                    self._deadline = None
                    self._fatal("the lease expires and the event loop has not stopped its leader's work")
                else:
                    self._changed.wait(min(left, _LOOK_SECONDS))


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


@kind("PERIOD")
def parse_lease(text: str) -> LeaderTiming:
    """The timing of an election whose lease has that length, in whole seconds."""
    seconds = parse_period(text)
    if seconds < 5 or seconds != int(seconds):
        raise ValueError('a number of whole seconds, 5 or more, such as "15s"')
    # In the proportions of the default. Shorter leases leave too little for one slow answer.
    part = seconds / 15
    return LeaderTiming(lease=int(seconds), renew=9 * part, grace=4 * part, retry=2 * part, call=4 * part)


@dataclass(frozen=True, kw_only=True)
class ElectionSettings:
    """The settings of a process that elects a leader among its replicas; its own settings extend them."""

    lease_duration: LeaderTiming = flag(
        "15s",
        parse=parse_lease,
        group=Group.ELECTION,
        help="how long after a leader's death another replica takes over",
    )
    lease_namespace: str = flag(
        "kube-system", parse=parse_text, group=Group.ELECTION, help="where the lease of the leader election is kept"
    )


class Election:
    """Contends for the lease `process.name` in the namespace of the settings; see the module.

    `identity` is this replica's name in the election. One `run` at a time.
    """

    def __init__(
        self, process: Process, settings: ElectionSettings, *, client: KubeClient, metrics: ReconcileMetrics
    ) -> None:
        lock = LeaseLock(client=client, namespace=settings.lease_namespace, name=process.name)
        claim = LeaseClaim(lock, identity=new_identity(), timing=settings.lease_duration)
        watchdog = Watchdog(clock=boot_clock)
        process.stack.callback(watchdog.close)
        self.identity = claim.identity
        self._claim = claim
        self._elector = LeaderElector(process.name, claim, watchdog=watchdog, metrics=metrics, log=process.log)

    def holds_lease(self) -> bool:
        """True while no other replica can be leading."""
        return self._elector.holds_lease()

    @property
    def leader(self) -> str:
        """Who leads, as far as this replica has seen; "" where it has seen nobody."""
        return self.identity if self.holds_lease() else self._claim.rival

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await `lead()` whenever this replica is elected, and give the lease back at the end."""
        await self._elector.run(lead)
