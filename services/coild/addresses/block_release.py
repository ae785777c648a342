"""Gives blocks back that no pod uses any more, and reports those whose release does not get done.

Driven by a work queue of block names. A block first cools down, as long as its addresses do: another node might give
them to its pods, and would not know which of them were freed a moment ago. One that is kept as a spare, or may be the
very one that was requested, stays. Then, in this order: out of the ledger (no address of it can be given), the route
withdrawn, the request that it answers retracted should it still exist (its answer may be under way), the object
deleted, its finalizer removed. Each step may be repeated, and a crash between two of them is finished by the next
process, which finds the block without a pod.

The UID of the object goes with each call as a precondition, so a block of the same name made since is left alone; the
conflict is raised to be retried, until the informer has shown the store which object has the name now.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.meta import without_finalizer
from coil.crd.names import BlockName, NodeName, RequestUid
from coil.ipam.block import BlockUse
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import EventSubject, Recorder
from coild.addresses.block_store import BlockStore, PendingRelease
from coild.addresses.pool_demand import PoolDemand

SHORTEST_PAUSE = 0.01
"""Seconds: the rounding of clocks must not leave a pause too short to pass."""

RELEASED_LATE = "BlockReleasedLate"
"""Reason of the Event about a block that should have gone long ago."""

LATE_SECONDS = 300.0

NAMED = 5
"""So many addresses are named in one message."""


@dataclass(frozen=True, slots=True)
class ReleasableBlocks:
    """Which blocks of the store may be released, and when. `cooldown` in seconds; `clock` is that of the store."""

    store: BlockStore
    cooldown: float
    clock: Callable[[], float] = time.monotonic

    def cooldown_left(self, name: BlockName) -> float | None:
        """Seconds until the block may go, 0 for now; None when it is in use, reserved, suspected or not in the ledger.

        It stays as long as one of its addresses cools down, and for one cooldown after it arrived, unless a pod took
        it.
        """
        block = self.store.block(name)
        if block is None or not self.store.is_empty(name):
            return None
        if self.store.document(name) is None:
            return 0.0  # deleted under its pods: another node may have its addresses by now
        if self.store.is_suspect(name):
            return None
        end = self.store.last_cooldown_end(name)
        arrived = self.store.arrived(name)
        if block.use is BlockUse.OPEN and arrived is not None:
            end = max(end, arrived + self.cooldown)
        return max(end - self.clock(), 0.0)

    def begin_release(self, name: BlockName) -> PendingRelease | None:
        """Take an empty block out of the ledger for good, and return what is to be deleted. Idempotent until it is.

        None when the block is in use, reserved, suspected or unknown, or its object is gone already.
        """
        if (pending := self.store.pending.get(name)) is not None:
            return pending
        return None if self.cooldown_left(name) is None else self.store.remove(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRelease:
    """The reconciler. `withdraw` makes the exported routes agree with the store, `retract` is the requester's."""

    client: ApiClient
    blocks: ReleasableBlocks
    demand: PoolDemand
    withdraw: Callable[[], Awaitable[None]]
    retract: Callable[[RequestUid], Awaitable[None]]
    log: FilteringBoundLogger

    async def reconcile(self, key: str) -> Result:
        """Release the block named `key` if no pod uses it. Idempotent; raises to be retried."""
        name = BlockName(key)
        block = self.blocks.store.block(name)
        if block is not None:
            self.demand.review(block.pool)  # a pod that waits comes first, whatever was marked since the last review
            pause = self.blocks.cooldown_left(name)
            if pause == 0 and block.use is BlockUse.OPEN:
                pause = self.demand.stay(block)
            if pause:
                return RequeueAfter(max(pause, SHORTEST_PAUSE))
        pending = self.blocks.begin_release(name)
        if pending is None:
            return DONE
        await self.withdraw()
        await self.retract(pending.request)
        try:
            await self.client.delete(ADDRESS_BLOCKS, name, uid=pending.uid)
            patch = {"metadata": {"uid": pending.uid, "finalizers": without_finalizer(pending.finalizers)}}
            await self.client.patch(ADDRESS_BLOCKS, name, patch)
        except NotFoundError:
            pass
        self.log.info("block released", block=name)
        return DONE


@dataclass(slots=True)
class StuckRelease:
    """Reports blocks that should have gone long ago: an Event on each, with what holds it. Driven by the sweep.

    One per process. It remembers since when it has seen each block linger, so it is as exact as it is called often.
    """

    store: BlockStore
    recorder: Recorder
    node: NodeName
    clock: Callable[[], float] = time.monotonic
    _seen: dict[EventSubject, float] = field(default_factory=dict)

    def report(self) -> None:
        """One warning for each block whose release has been under way, or asked for, for too long. Never raises."""
        now = self.clock()
        lingering = dict(self._lingering())
        self._seen = {subject: self._seen.get(subject, now) for subject in lingering}
        for subject, message in lingering.items():
            if now - self._seen[subject] >= LATE_SECONDS:
                self.recorder.warn(subject, reason=RELEASED_LATE, message=message)

    def _lingering(self) -> Iterator[tuple[EventSubject, str]]:
        for pending in self.store.pending:
            subject = EventSubject(ADDRESS_BLOCKS.api_version, ADDRESS_BLOCKS.kind, pending.name, uid=pending.uid)
            others = without_finalizer(pending.finalizers)
            why = f"it still has the finalizers {', '.join(others)}" if others else "its object could not be removed"
            yield subject, f"node {self.node} has given the block back, but {why}"
        for document in self.store.draining():
            subject = EventSubject.of(ADDRESS_BLOCKS, document.metadata)
            yield subject, f"its deletion was asked for, but pods on node {self.node} still have addresses of it"
        for document, pods in self.store.kept():
            addresses = sorted(str(address) for held in pods for address in held.addresses)
            named = ", ".join(addresses[:NAMED]) + (", …" if len(addresses) > NAMED else "")
            yield (
                EventSubject.of(ADDRESS_BLOCKS, document.metadata),
                f"pods on node {self.node} have addresses that are in none of its blocks: {named}; "
                "in case they were this block's, it is kept until they have gone",
            )
