"""One process's claim on a Lease: what it has read and written of it, and how long that is good for.

Below the leader election, which starts and ends the work; a claim only talks to the Lease. Invariants:
* every write is guarded by the resource version it was read with, so writes have an order and each writer
  has seen its predecessor's;
* only an acknowledged write extends a claim, and it counts from when it was *sent*, by our own clock;
* another holder's write is good for its duration from when we *received* it, by our own clock, unless it
  changes. Sending is before receiving, so a holder knows that its time is up before anybody else does;
* after an answer that did not come, nobody knows whether the write took place: the Lease is read before
  the next write.
Wall clocks are written into the Lease for humans and never read.
"""

import asyncio
import math
import random
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from coil.kube.errors import ApiError, ConflictError, NotFoundError
from coil.kube.lease_lock import Lease, LeaseSpec, ResourceLock
from coil.reconcile.backoff import Backoff

_RELEASE_ATTEMPTS = 4


class LeaseLostError(Exception):
    """The Lease says that somebody else, or nobody, holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderTiming:
    """All in seconds. A crashed leader is replaced `lease` to `lease` + `retry` later, a leaving one in `retry`.

    A leader that has not renewed for `renew` stops its work, which has `grace` to end; each call to the API
    server has `call`. `lease` is whole because the API stores it so. What renew + grace leave over, 2 s
    here, is for clocks that run at different speeds and for the exit of a process that must die.
    """

    lease: int = 15
    renew: float = 9.0
    grace: float = 4.0
    retry: float = 2.0
    call: float = 4.0

    def __post_init__(self) -> None:
        if min(self.lease, self.renew, self.grace, self.retry, self.call) <= 0:
            raise ValueError(f"every period of a leader election must be positive: {self}")
        if self.renew + self.grace >= self.lease:
            raise ValueError(f"renew + grace must be shorter than the lease: {self}")
        if max(self.retry, self.call) + self.call >= self.renew:
            raise ValueError(f"renew must be longer than retry + call and than two calls: {self}")


def boot_clock() -> float:
    """Monotonic seconds that also count while the machine is suspended: clock_gettime(2), CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def new_identity() -> str:
    """A holder name that no other process, and no earlier life of this one, has used."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class LeaseClaim:
    """See the module. `identity` must be unique to this process's life.

    `clock` is monotonic seconds, `wall` the time that humans read in the Lease, `random` gives [0, 1).
    Every call is bounded by `timing.call`; a cancelled one leaves the claim in doubt, never extended.
    """

    def __init__(
        self,
        lock: ResourceLock,
        *,
        identity: str,
        timing: LeaderTiming = LeaderTiming(),
        clock: Callable[[], float] = boot_clock,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        random: Callable[[], float] = random.random,
    ) -> None:
        self.identity = identity
        self.timing = timing
        self.clock = clock
        self.random = random
        self.rival = ""  # who else was last seen to hold the Lease
        self.may_stand = False  # a write of ours may stand in the Lease
        self._lock = lock
        self._wall = wall
        self._lease: Lease | None = None  # our last acknowledged write; None after any doubt
        self._renewed = -math.inf  # when that write was sent
        self._rival_spec: LeaseSpec | None = None
        self._rival_since = -math.inf  # when that was first received
        self._written_at = datetime.min.replace(tzinfo=UTC)

    @property
    def renew_by(self) -> float:
        """When, without a further renewal, the work must begin to stop."""
        return self._renewed + self.timing.renew

    @property
    def stop_by(self) -> float:
        """When the work must be over: the expiry, less half of what the timing leaves over."""
        timing = self.timing
        return self._renewed + timing.lease - (timing.lease - timing.renew - timing.grace) / 2

    async def try_acquire(self) -> bool:
        """One look at the Lease and, if it is free, one write. True once such a write was acknowledged.

        Raises what the lock raises, and TimeoutError.
        """
        lease = await self._read()
        now = self.clock()
        if lease is not None and lease.spec.holder_identity not in {"", self.identity}:
            if lease.spec != self._rival_spec:
                self._rival_spec, self._rival_since = lease.spec, now
                self.rival = lease.spec.holder_identity
            if now < self._rival_until:
                return False
        elif lease is None and now < self._rival_until:
            return False  # deleted under its holder, who may still be at work
        await self._write(lease)
        return True

    async def renew(self) -> None:
        """One acknowledged write. After any doubt, and at once after a conflict, the Lease is read before it.

        Raises LeaseLostError when the Lease is not ours, what the lock raises, and TimeoutError.
        """
        if self._lease is not None:
            try:
                await self._write(self._lease)
            except (ConflictError, NotFoundError):
                pass  # somebody has written or deleted it: look who holds it now
            else:
                return
        lease = await self._read()
        if lease is not None and lease.spec.holder_identity != self.identity:
            raise LeaseLostError(f"held by {lease.spec.holder_identity or 'nobody'}")
        await self._write(lease)

    async def release(self) -> bool:
        """Leave a Lease that anybody may take at once; True when none of ours stands in it any more.

        Best effort in `timing.call` seconds: otherwise it expires by itself. Only for when the work is over.
        """
        pause = Backoff(base=0.1, cap=1.0)
        try:
            async with asyncio.timeout(self.timing.call):
                for attempt in range(_RELEASE_ATTEMPTS):
                    try:
                        await self._clear()
                    except ApiError:
                        await asyncio.sleep(pause.delay(attempt, self.random))
                    else:
                        self.may_stand = False
                        return True
        except TimeoutError:
            pass
        return False

    async def _clear(self) -> None:
        lease = self._lease or await self._read()
        self._lease = None
        if lease is None or lease.spec.holder_identity != self.identity:
            return
        now = self._stamp()
        spec = LeaseSpec(
            lease_duration_seconds=1,
            acquire_time=now,
            renew_time=now,
            lease_transitions=lease.spec.lease_transitions,
        )
        await self._lock.replace(msgspec.structs.replace(lease, spec=spec))

    @property
    def _rival_until(self) -> float:
        """When the holder that we last saw can no longer be at work; -inf when we saw none."""
        if self._rival_spec is None:
            return -math.inf
        return self._rival_since + (self._rival_spec.lease_duration_seconds or self.timing.lease)

    async def _read(self) -> Lease | None:
        async with asyncio.timeout(self.timing.call):
            return await self._lock.read()

    async def _write(self, lease: Lease | None) -> None:
        """Write us into `lease` as it was read, or create it."""
        now = self._stamp()
        previous = lease.spec if lease is not None else LeaseSpec(lease_transitions=-1)
        ours = previous.holder_identity == self.identity
        spec = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self.timing.lease,
            acquire_time=previous.acquire_time if ours else now,
            renew_time=now,
            lease_transitions=previous.lease_transitions + (not ours),
        )
        self._lease = None
        self.may_stand = True
        sent = self.clock()
        async with asyncio.timeout(self.timing.call):
            if lease is None:
                self._lease = await self._lock.create(Lease(spec=spec))
            else:
                self._lease = await self._lock.replace(msgspec.structs.replace(lease, spec=spec))
        self._renewed = sent

    def _stamp(self) -> str:
        """The time as Kubernetes' MicroTime, later than any before.

        A renewal must differ from the last one: the API server does not store a write that changes nothing,
        and the others would see a holder that is silent.
        """
        self._written_at = max(self._wall().astimezone(UTC), self._written_at + timedelta(microseconds=1))
        return self._written_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
