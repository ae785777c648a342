"""Supply and demand of addresses, pool by pool: who waits, who is served, and how many blocks are asked for.

    an ADD ─► take ─► the books have a rested address: at once
                 └──► the line of the pool ◄── review ──► as many BlockRequests as blocks are missing, all at once

`review` is called whenever something has changed: a pod joined the line or left it, a block came or went, an address
came back or has rested, a request has ended. It is synchronous and brings the pool into the one state that follows from
the facts, so pods do not depend on a particular request, or on each other: whoever is first gets what comes first.

An address that still rests is given when nothing else is free and no block can be had: a request was refused or failed,
one is overdue, or the pod has waited as long as it can. As long as a refusal lasts, further pods are told so at once.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from coil.crd.names import PoolName
from coil.ipam.attachment import AttachmentKey
from coil.ipam.block import Block
from coil.ipam.node_ledger import Allocation, Reuse
from coild.addresses.block_requester import BlockRequester
from coild.addresses.block_size import BlockSizes
from coild.addresses.block_store import BlockStore
from coild.addresses.spare_block import SpareBlock
from coild.addresses.wait_queue import Waiter, WaitQueue
from coild.model.address_source import AddressUnavailableError, PodName

MAX_OUTSTANDING = 16
"""Block requests of one pool at a time. Pods beyond what these bring wait for the next ones."""

SHORTEST_PAUSE = 0.01
"""Seconds: the rounding of clocks must not make a timer ring before its time, again and again."""

REQUESTED_PAUSE = 1.0
"""Seconds after which a block that was kept for an outstanding request is looked at again."""


class WaitOutcome(StrEnum):
    """How a pod's wait for an address ended."""

    SERVED = "served"
    REFUSED = "refused"
    """The pool has no block, or the API server could not be asked."""
    TIMED_OUT = "timed out"
    REUSED = "reused"
    """Nothing came in time; it was given an address that had not rested."""
    GIVEN_UP = "given up"


class DemandObserver(Protocol):
    """Is told of pods that had to wait. Must not raise or block."""

    def waited(self, pool: PoolName, seconds: float, outcome: WaitOutcome) -> None: ...


class Unobserved:
    """Nobody wants to know."""

    def waited(self, pool: PoolName, seconds: float, outcome: WaitOutcome) -> None:
        pass


@dataclass(slots=True)
class PoolDemand:
    """One per process. `overdue` is how many seconds a request may go unanswered before it is not counted upon."""

    store: BlockStore
    requester: BlockRequester
    sizes: BlockSizes
    spare: SpareBlock
    overdue: float
    observer: DemandObserver = field(default_factory=Unobserved)
    clock: Callable[[], float] = time.monotonic
    _lines: dict[PoolName, WaitQueue] = field(default_factory=dict)
    _timers: dict[PoolName, asyncio.TimerHandle] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.subscribe(self.review)
        self.requester.settled = self.review
        self.sizes.learnt = self.review

    async def take(self, pool: PoolName, key: AttachmentKey, pod: PodName, *, deadline: float) -> Allocation:
        """An address of the pool, by `deadline` of the event loop's clock. A known key gets what it holds.

        Raises AddressUnavailableError with the reason. Cancelled, it has taken nothing.
        """
        if pool not in self._lines and (allocation := self.store.acquire(pool, key, pod)) is not None:
            if self.spare.addresses:
                self.review(pool)
            return allocation
        begun, outcome = self.clock(), WaitOutcome.GIVEN_UP
        line = self._lines.setdefault(pool, WaitQueue())
        waiter = line.join(key, pod)
        self.review(pool)
        try:
            async with asyncio.timeout_at(deadline):
                allocation = await waiter.wait()
            outcome = WaitOutcome.SERVED
        except TimeoutError:
            waited = self.clock() - begun
            outcome = WaitOutcome.TIMED_OUT
            allocation = self._last_resort(pool, waiter, waited)
            outcome = WaitOutcome.REUSED
        except AddressUnavailableError:
            outcome = WaitOutcome.REFUSED
            raise
        finally:
            self._leave(pool, line, waiter)
            self.observer.waited(pool, self.clock() - begun, outcome)
        return allocation

    def review(self, pool: PoolName) -> None:
        """Serve who can be served, turn away who cannot, ask for what is missing. Idempotent."""
        size = self.store.block_size(pool)
        if size is not None:
            self.sizes.teach(pool, size)
        line = self._lines.get(pool)
        if line is not None:
            self._serve(pool, line, Reuse.RESTED, leave=0)
            self._despair(pool, line)
            if not line:
                del self._lines[pool]
        tally = self.store.tally(pool)
        self.spare.note(pool, tally)
        waiting = len(line or ())
        shortfall = self.spare.shortfall(tally, waiting=waiting)
        patience = self.requester.refusals.spare_until(pool) - self.clock()
        self._ask(pool, missing=waiting + (shortfall if patience <= 0 else 0))
        self._set_timer(pool, waiting=waiting, patience=patience if shortfall else -math.inf)

    def review_all(self) -> None:
        """Review each pool that has a block here, or a pod that waits."""
        for pool in {*self.store.tallies(), *self._lines}:
            self.review(pool)

    async def discard_stale(self) -> None:
        """Take back what was asked for and nobody waits for any more. Does not raise for a failure."""
        await self.requester.discard_stale()

    def stay(self, block: Block) -> float:
        """For how many seconds an empty block has to stay at least; 0 if it may go."""
        # It may be the very one that was asked for, and its pods about to take their addresses.
        pause = REQUESTED_PAUSE if self.requester.outstanding(block.pool) else 0.0
        return max(pause, self.spare.stay(block.pool, self.store.tally(block.pool), block_size=block.size))

    async def close(self) -> None:
        """End all that is under way. Pods that wait are told nothing any more."""
        for timer in self._timers.values():
            timer.cancel()
        await self.sizes.close()
        await self.requester.close()

    # --- inside

    def _serve(self, pool: PoolName, line: WaitQueue, reuse: Reuse, *, leave: float) -> None:
        """Give addresses until none is left, or `leave` waiters are."""
        while len(line) > leave and (waiter := line.first) is not None:
            allocation = self.store.acquire(pool, waiter.key, waiter.pod, reuse=reuse)
            if allocation is None:
                return
            line.serve(waiter, allocation)

    def _despair(self, pool: PoolName, line: WaitQueue) -> None:
        """What follows from a refusal, and from a request that nobody answers."""
        refusal = self.requester.refusals.current(pool)
        if self._is_overdue(pool):
            self._serve(pool, line, Reuse.ANY, leave=0)
        if refusal is None:
            return
        expected = self._expected(pool)
        self._serve(pool, line, Reuse.ANY, leave=expected)
        while len(line) > expected:
            line.turn_away(refusal.reason)

    def _expected(self, pool: PoolName) -> float:
        """How many addresses may still come of the requests that are under way."""
        outstanding = self.requester.outstanding(pool)
        size = self.sizes.of(pool)
        return outstanding * size if size is not None else math.inf if outstanding else 0

    def _ask(self, pool: PoolName, *, missing: int) -> None:
        if missing <= 0 or self.requester.refusals.current(pool) is not None:
            return
        size = self.sizes.of(pool)
        if size is None and missing > 1:
            self.sizes.ask(pool)
        # One at a time while it is not known for how many addresses one is, or whether there are any.
        if size is None or self.requester.refusals.is_doubtful(pool):
            wanted = 1
        else:
            wanted = min(math.ceil(missing / size), MAX_OUTSTANDING)
        for _ in range(wanted - self.requester.outstanding(pool)):
            self.requester.start(pool)

    def _is_overdue(self, pool: PoolName) -> bool:
        oldest = self.requester.oldest(pool)
        return oldest is not None and self.clock() - oldest >= self.overdue

    def _set_timer(self, pool: PoolName, *, waiting: int, patience: float) -> None:
        """Look again when time alone will have changed something."""
        if (timer := self._timers.pop(pool, None)) is not None:
            timer.cancel()
        delays = [patience] if patience > 0 else []
        if (waiting or self.spare.addresses) and (rested := self.store.next_rested(pool)) is not None:
            delays.append(rested)
        if waiting:
            oldest = self.requester.oldest(pool)
            if oldest is not None and not self._is_overdue(pool):
                delays.append(oldest + self.overdue - self.clock())
        if delays:
            delay = max(min(delays), SHORTEST_PAUSE)
            self._timers[pool] = asyncio.get_running_loop().call_later(delay, self._ring, pool)

    def _ring(self, pool: PoolName) -> None:
        self._timers.pop(pool, None)
        self.review(pool)

    def _last_resort(self, pool: PoolName, waiter: Waiter, waited: float) -> Allocation:
        allocation = self.store.acquire(pool, waiter.key, waiter.pod, reuse=Reuse.ANY)
        if allocation is None:
            raise AddressUnavailableError(
                f"no free address of pool {pool} on this node, and no block within {waited:.0f} s; "
                "is coil-ipam-controller running?"
            ) from None
        waiter.taken = True
        return allocation

    def _leave(self, pool: PoolName, line: WaitQueue, waiter: Waiter) -> None:
        line.leave(waiter)
        if waiter.abandoned:
            self.store.revoke(waiter.key)  # tells of the supply, which reviews the pool
        elif not line and self._lines.get(pool) is line:
            del self._lines[pool]
