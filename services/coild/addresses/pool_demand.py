"""Supply and demand of addresses, pool by pool: which pods wait, who is served, and how many blocks are requested.

    an ADD ─► take ─► the block store has a free address: at once
                 └──► the pool's queue ◄── review ──► as many BlockRequests as blocks are missing, all at once

A pool is reviewed after anything about it has changed: a pod joined the queue or left it, a block came or went, an
address came back or has cooled down, a request has ended. Changes are marked (`coild.addresses.pool_changes`); `run`
reviews each marked pool once. A review is synchronous and brings the pool into the one state that follows from the
facts, so pods do not depend on a particular request, or on each other: the first in the queue gets what comes first.

An address that is still cooling down is given only when nothing else is free and no block can be had: a request was
refused or failed, one is overdue, or the pod has waited as long as it can. The log says so, with the reason: somebody
may still send to the pod that had it. While a refusal lasts, further pods are refused at once, with its reason.
"""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from structlog.typing import FilteringBoundLogger

from coil.crd.names import PoolName
from coil.ipam.block import Block
from coil.ipam.node_ledger import Allocation, Reuse
from coil.ipam.occupancy import AttachmentKey
from coil.reconcile.queue import WorkQueue
from coild.addresses.block_requester import BlockRequester
from coild.addresses.block_size import BlockSizes
from coild.addresses.block_store import BlockStore
from coild.addresses.pool_changes import PoolChanges
from coild.addresses.spare_block import SpareBlock
from coild.model.attachment import AddressUnavailableError, PodName

MAX_OUTSTANDING = 16
"""Block requests of one pool at a time. Pods beyond what these bring wait for the next ones."""

SHORTEST_PAUSE = 0.01
"""Seconds: the rounding of clocks must not make a timer fire before its time, again and again."""

GIVEN_EARLY = "address given before it has cooled down"
"""The log's line of it; INFO."""

REQUESTED_PAUSE = 1.0
"""Seconds after which a block that was kept for an outstanding request is looked at again."""


class WaitOutcome(StrEnum):
    """How a pod's wait for an address ended."""

    SERVED = "served"
    REFUSED = "refused"
    """The pool has no block, or the API server could not be asked."""
    TIMED_OUT = "timed out"
    REUSED = "reused"
    """No block was to be had; it was given an address that had not cooled down."""
    GIVEN_UP = "given up"


WaitObserver: TypeAlias = Callable[[PoolName, float, WaitOutcome], None]
"""Is called with the seconds that a pod had to wait. Must not raise or block."""


@dataclass(eq=False, slots=True)
class Waiter:
    """An attachment that waits. Several callers with one key share one waiter, and get one address.

    An address that was given to a waiter is either claimed by one of its callers, or the waiter is `abandoned`.
    """

    key: AttachmentKey
    pod: PodName
    answer: asyncio.Future[Allocation] = field(default_factory=asyncio.Future)
    callers: int = 0
    claimed: bool = False
    outcome: WaitOutcome = WaitOutcome.GIVEN_UP
    """Of an `answer` that is done."""

    def claim(self) -> Allocation:
        """The address, once `answer` is done; raises AddressUnavailableError if the waiter was refused."""
        allocation = self.answer.result()
        self.claimed = True
        return allocation

    @property
    def abandoned(self) -> bool:
        """Whether an address was given that no caller has claimed, or will."""
        given = self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None
        return given and not self.claimed and self.callers == 0


class WaitQueue:
    """The attachments that wait for an address of one pool, first come, first served."""

    def __init__(self) -> None:
        self._waiters: dict[AttachmentKey, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def first(self) -> Waiter | None:
        """The one that has waited longest."""
        return next(iter(self._waiters.values()), None)

    def join(self, key: AttachmentKey, pod: PodName) -> Waiter:
        """Queue up; a key that waits already keeps its position."""
        waiter = self._waiters.setdefault(key, Waiter(key, pod))
        waiter.callers += 1
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """One caller no longer waits, whatever the outcome was."""
        waiter.callers -= 1
        if waiter.callers == 0 and self._waiters.get(waiter.key) is waiter:
            del self._waiters[waiter.key]

    def serve(self, waiter: Waiter, allocation: Allocation, outcome: WaitOutcome) -> None:
        """The waiter gets its address and leaves the queue."""
        del self._waiters[waiter.key]
        waiter.outcome = outcome
        waiter.answer.set_result(allocation)

    def refuse_last(self, reason: str) -> None:
        """The last in the queue gets nothing."""
        _, waiter = self._waiters.popitem()
        waiter.outcome = WaitOutcome.REFUSED
        waiter.answer.set_exception(AddressUnavailableError(reason))
        waiter.answer.exception()  # every caller may have given up: mark it as retrieved


@dataclass(slots=True, kw_only=True)
class PoolDemand:
    """One per process. `overdue` is how many seconds a request may go unanswered before it is not counted upon.

    `release_queue` has the names of blocks that may be released. Nothing is served before `run` runs.
    """

    changes: PoolChanges
    store: BlockStore
    requester: BlockRequester
    sizes: BlockSizes
    spare: SpareBlock
    release_queue: WorkQueue
    overdue: float
    observe_wait: WaitObserver
    log: FilteringBoundLogger
    clock: Callable[[], float] = time.monotonic
    _queues: dict[PoolName, WaitQueue] = field(default_factory=dict)
    _timers: dict[PoolName, asyncio.TimerHandle] = field(default_factory=dict)

    async def run(self) -> None:
        """Review what is marked, until cancelled."""
        while True:
            await self.changes.wait()
            self.review_marked()

    async def take(self, pool: PoolName, key: AttachmentKey, pod: PodName, *, deadline: float) -> Allocation:
        """An address of the pool, by `deadline` of the event loop's clock. A known key gets what it holds.

        Does not yield to the event loop if an address is free. Raises AddressUnavailableError with the reason.
        Cancelled, it has taken nothing.
        """
        if pool not in self._queues and (allocation := self.store.acquire(pool, key, pod)) is not None:
            if self.spare.addresses:
                self.changes.mark(pool)
            return allocation
        begun, outcome = self.clock(), WaitOutcome.GIVEN_UP
        queue = self._queues.setdefault(pool, WaitQueue())
        waiter = queue.join(key, pod)
        try:
            self.changes.mark(pool)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await asyncio.wait({waiter.answer})
            if not waiter.answer.done():
                outcome = WaitOutcome.TIMED_OUT
                self._serve_last_resort(pool, queue, waiter, waited=self.clock() - begun)
            outcome = waiter.outcome
            allocation = waiter.claim()
        finally:
            self._leave(pool, queue, waiter)
            self.observe_wait(pool, self.clock() - begun, outcome)
        return allocation

    def review_marked(self) -> None:
        """Review the pools that are marked, then offer for release the blocks that nobody uses now."""
        pools, emptied = self.changes.take()
        for pool in pools:
            self.review(pool)
        for block in emptied:
            self.release_queue.add(block)

    def review(self, pool: PoolName) -> None:
        """Serve the pods that can be served, refuse those that cannot, request what is missing. Idempotent.

        Never called from inside a state change of the store or the requester: those leave marks.
        """
        size = self.store.block_size(pool)
        if size is not None:
            self.sizes.teach(pool, size)
        self.requester.match_blocks(pool)
        queue = self._queues.get(pool)
        if queue is not None:
            self._serve(pool, queue)
            self._serve_or_refuse(pool, queue)
            if not queue:
                del self._queues[pool]
        tally = self.store.tally(pool)
        self.spare.note(pool, tally)
        waiting = len(queue or ())
        shortfall = self.spare.shortfall(tally, waiting=waiting)
        patience = self.requester.refusals.spare_until(pool) - self.clock()
        self._request(pool, missing=waiting + (shortfall if patience <= 0 else 0))
        self._set_timer(pool, waiting=waiting, patience=patience if shortfall else -math.inf)

    def mark_all(self) -> None:
        """Have each pool reviewed that has a block here, or a pod that waits."""
        for pool in (*self.store.tallies(), *self._queues):
            self.changes.mark(pool)

    def stay(self, block: Block) -> float:
        """For how many seconds an empty block has to stay at least; 0 if it may go. As of the pool's last review."""
        # It may be the very one that was requested, and its pods about to take their addresses.
        pause = REQUESTED_PAUSE if self.requester.outstanding(block.pool) else 0.0
        return max(pause, self.spare.stay(block.pool, self.store.tally(block.pool), block_size=block.size))

    async def close(self) -> None:
        """End all that is under way. Pods that wait get no answer any more."""
        for timer in self._timers.values():
            timer.cancel()
        await self.sizes.close()
        await self.requester.close()

    # --- inside

    def _serve(self, pool: PoolName, queue: WaitQueue) -> None:
        """Give addresses that have cooled down until none is left."""
        while (waiter := queue.first) is not None:
            allocation = self.store.acquire(pool, waiter.key, waiter.pod)
            if allocation is None:
                return
            queue.serve(waiter, allocation, WaitOutcome.SERVED)

    def _serve_early(self, pool: PoolName, queue: WaitQueue, waiter: Waiter, *, reason: str) -> bool:
        """Give an address that is still cooling down, if there is one; none has cooled down."""
        allocation = self.store.acquire(pool, waiter.key, waiter.pod, reuse=Reuse.ANY)
        if allocation is None:
            return False
        self.log.info(
            GIVEN_EARLY,
            pool=pool,
            addresses=[str(address) for address in (allocation.ipv4, allocation.ipv6) if address is not None],
            pod=waiter.pod.full_name,
            container=waiter.key.container_id,
            reason=reason,
        )
        queue.serve(waiter, allocation, WaitOutcome.REUSED)
        return True

    def _serve_or_refuse(self, pool: PoolName, queue: WaitQueue) -> None:
        """What follows from a refusal, and from a request that nobody answers."""
        refusal = self.requester.refusals.current(pool)
        if self._is_overdue(pool):
            reason = f"no block within {self.overdue:.0f} s"
            while (waiter := queue.first) is not None and self._serve_early(pool, queue, waiter, reason=reason):
                pass
        if refusal is None:
            return
        expected = self._expected(pool)
        while len(queue) > expected and (waiter := queue.first) is not None:
            if not self._serve_early(pool, queue, waiter, reason=refusal.reason):
                break
        while len(queue) > expected:
            queue.refuse_last(refusal.reason)

    def _expected(self, pool: PoolName) -> float:
        """How many addresses the outstanding requests may still bring."""
        outstanding = self.requester.outstanding(pool)
        size = self.sizes.of(pool)
        return outstanding * size if size is not None else math.inf if outstanding else 0

    def _request(self, pool: PoolName, *, missing: int) -> None:
        if missing <= 0 or self.requester.refusals.current(pool) is not None:
            return
        size = self.sizes.of(pool)
        if size is None and missing > 1:
            self.sizes.ask(pool)
        # One at a time while it is not known how many addresses a block has, or whether there are any.
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
        """Mark the pool when time alone will have changed something."""
        if (timer := self._timers.pop(pool, None)) is not None:
            timer.cancel()
        delays = [patience] if patience > 0 else []
        if (waiting or self.spare.addresses) and (cooldown_left := self.store.cooldown_left(pool)) is not None:
            delays.append(cooldown_left)
        if waiting:
            oldest = self.requester.oldest(pool)
            if oldest is not None and not self._is_overdue(pool):
                delays.append(oldest + self.overdue - self.clock())
        if delays:
            delay = max(min(delays), SHORTEST_PAUSE)
            self._timers[pool] = asyncio.get_running_loop().call_later(delay, self.changes.mark, pool)

    def _serve_last_resort(self, pool: PoolName, queue: WaitQueue, waiter: Waiter, *, waited: float) -> None:
        if (allocation := self.store.acquire(pool, waiter.key, waiter.pod)) is not None:
            queue.serve(waiter, allocation, WaitOutcome.SERVED)
            return
        if not self._serve_early(pool, queue, waiter, reason=f"no block within {waited:.0f} s"):
            raise AddressUnavailableError(
                f"no free address of pool {pool} on this node, and no block within {waited:.0f} s; "
                "is coil-ipam-controller running?"
            )

    def _leave(self, pool: PoolName, queue: WaitQueue, waiter: Waiter) -> None:
        queue.leave(waiter)
        if not queue and self._queues.get(pool) is queue:
            del self._queues[pool]
        if waiter.abandoned:
            self.store.revoke(waiter.key)
