"""Requests blocks from the ipam-controller, one BlockRequest per block, and remembers which pools have refused.

Between `coild.addresses.pool_demand`, which decides how many are requested, and the API server. A request's life:

    create ─► the answer, seen by the informer of this node's requests ─► the block, seen by the informer of blocks

The block may be seen before the answer, by its label: it counts at once. The request is deleted when both are here,
while the pods already take their addresses. It never outlives its block, see `retract`.

An answer is matched by the request's UID, so an older request of the same name cannot be mistaken for it; one that was
given while the create call was still under way is found in the informer's cache. A refusal (the pool is exhausted) or
an unreachable API server is remembered for a backoff. A request that nobody answers stays, and counts as outstanding,
for minutes: neither an exhausted pool nor an absent controller causes a storm of requests.

Nothing here calls its caller: when a request has ended, or may have, its pool is marked
(`coild.addresses.pool_changes`), and the review that follows looks at what is here.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from itertools import chain
from random import Random
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest, Granted, Pending, Refused
from coil.crd.builtin import NODES
from coil.crd.names import LABEL_NODE, BlockName, NodeName, PoolName, RequestUid
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, ConflictError, NotFoundError
from coil.reconcile.backoff import Backoff
from coil.reconcile.informer import Informer
from coild.addresses.block_store import BlockStore
from coild.addresses.pool_changes import PoolChanges
from coild.model.attachment import AddressUnavailableError

ANSWER_TIMEOUT = 300.0
"""Seconds after which a request that nobody answers is taken back; the next pod makes a new one."""

BLOCK_TIMEOUT = 30.0
"""Seconds for the answered block to arrive by the other watch, and for the answer to follow its block."""


SPARE_BACKOFF = Backoff(base=30.0, cap=600.0)
"""How long a pool that refused is not asked for mere spare addresses: thousands of nodes might ask."""

DELETED = Refused("the request was deleted", "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Times are those of `PoolBackoff.clock`. `spare_until` is for requests that no pod waits for."""

    reason: str
    since: float
    until: float
    spare_until: float
    attempts: int


@dataclass(slots=True)
class PoolBackoff:
    """The pools that gave no block, why, and until when they are not asked again.

    One entry per pool whose last answer was a refusal; the next refusal lasts longer, until the pool gives a block.
    """

    backoff: Backoff
    rng: Random
    clock: Callable[[], float]
    _refusals: dict[PoolName, Refusal] = field(default_factory=dict)

    def refuse(self, pool: PoolName, reason: str) -> Refusal:
        """Record a refusal. Refusals of requests that were under way together are to be recorded once."""
        now = self.clock()
        known = self._refusals.get(pool)
        attempts = 0 if known is None else known.attempts + 1
        refusal = Refusal(
            reason=reason,
            since=now,
            until=now + self.backoff.delay(attempts, self.rng.random),
            spare_until=now + SPARE_BACKOFF.delay(attempts, self.rng.random),
            attempts=attempts,
        )
        self._refusals[pool] = refusal
        return refusal

    def forgive(self, pool: PoolName, *, asked: float) -> None:
        """The pool gave a block to a request made at `asked`. One made before the refusal proves nothing."""
        refusal = self._refusals.get(pool)
        if refusal is not None and refusal.since <= asked:
            del self._refusals[pool]

    def current(self, pool: PoolName) -> Refusal | None:
        """The refusal, while it lasts: pods that need an address now get it as the reason for having none."""
        refusal = self._refusals.get(pool)
        return refusal if refusal is not None and self.clock() < refusal.until else None

    def is_doubtful(self, pool: PoolName) -> bool:
        """Whether the pool's last answer was a refusal, however long ago."""
        return pool in self._refusals

    def spare_until(self, pool: PoolName) -> float:
        """Until when the pool is not asked for spare addresses; −∞ without a refusal."""
        refusal = self._refusals.get(pool)
        return float("-inf") if refusal is None else refusal.spare_until


@dataclass(eq=False, slots=True)
class _PendingRequest:
    """One request on its way to a block. `request` is known once the API server has created it."""

    pool: PoolName
    begun: float
    request: BlockRequest | None = None
    answer: asyncio.Future[Granted | Refused] = field(default_factory=asyncio.Future)
    arrived: asyncio.Future[BlockName] = field(default_factory=asyncio.Future)
    """Done when the block is in the store."""


class _DeletedError(AddressUnavailableError):
    """The request was deleted before it was answered."""


@dataclass(slots=True)
class BlockRequester:
    """One per process. `node_uid` is the Node's at start."""

    client: ApiClient
    requests: Informer[BlockRequest]
    store: BlockStore
    changes: PoolChanges
    node: NodeName
    node_uid: str
    backoff: InitVar[Backoff]
    rng: Random
    log: FilteringBoundLogger
    clock: Callable[[], float] = time.monotonic
    refusals: PoolBackoff = field(init=False)
    _outstanding: dict[PoolName, list[_PendingRequest]] = field(default_factory=dict)
    """By pool, the oldest first."""
    _unanswered: dict[RequestUid, _PendingRequest] = field(default_factory=dict)
    _own: set[str] = field(default_factory=set)
    """Names of the requests that this process still has to take care of."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self, backoff: Backoff) -> None:
        self.refusals = PoolBackoff(backoff=backoff, rng=self.rng, clock=self.clock)
        self.requests.subscribe(self._observe)

    def start(self, pool: PoolName) -> None:
        """Request a block, in the background. When that ends the pool is marked; a failure is in `refusals` by then."""
        pending = _PendingRequest(pool, self.clock())
        self._outstanding.setdefault(pool, []).append(pending)
        task = asyncio.create_task(self._run(pending), name=f"block request for {pool}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def match_blocks(self, pool: PoolName) -> None:
        """Match the requests of the pool with the blocks that are here: those requests are no longer outstanding."""
        for pending in list(self._outstanding.get(pool, ())):
            block = self._block_of(pending)
            if block is not None and not pending.arrived.done():
                pending.arrived.set_result(block)
                self.refusals.forgive(pool, asked=pending.begun)
                self._remove(pending)

    def outstanding(self, pool: PoolName) -> int:
        """How many requested blocks of the pool are not here yet, as of the last `match_blocks`."""
        return len(self._outstanding.get(pool, ()))

    def oldest(self, pool: PoolName) -> float | None:
        """When the oldest outstanding request of the pool was begun; None if there is none."""
        outstanding = self._outstanding.get(pool)
        return outstanding[0].begun if outstanding else None

    async def discard_stale(self) -> None:
        """Delete the node's requests that nobody here waits for; their blocks, if any, are adopted.

        They were left by an earlier process, or by a creation whose answer was lost. Failures are logged and left to
        the next call.
        """
        for request in self.requests.items():
            if request.metadata.name not in self._own:
                await self._delete(request)

    async def retract(self, uid: RequestUid) -> None:
        """Delete the request of that UID, if it stands. Before its block goes back; raises ApiError to be retried.

        A controller that was killed between creating the block and completing the request would otherwise find no
        block for it when it returns, and make a second one.
        """
        asked = (pending.request for pending in self._unanswered.values() if pending.request is not None)
        request = next((request for request in chain(asked, self.requests.items()) if request.uid == uid), None)
        if request is not None:
            await self._remove_object(request)

    async def close(self) -> None:
        """Cancel what is under way and wait for its end. A request that stays is for the next process to discard."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one request

    async def _run(self, pending: _PendingRequest) -> None:
        try:
            await self._request(pending)
        except AddressUnavailableError as error:
            self._refuse(pending, str(error))
        except ApiError as error:
            self._refuse(pending, f"no block of pool {pending.pool}: the API server did not take the request: {error}")
        finally:
            self._remove(pending)
            self.changes.mark(pending.pool)

    def _refuse(self, pending: _PendingRequest, reason: str) -> None:
        if self.refusals.current(pending.pool) is not None:
            return  # recorded already, for all that were under way together
        refusal = self.refusals.refuse(pending.pool, reason)
        delay = round(refusal.until - refusal.since, 1)
        self.log.warning("no block", pool=pending.pool, reason=reason, next_try_in_seconds=delay)

    def _remove(self, pending: _PendingRequest) -> None:
        """It is outstanding no longer. Idempotent."""
        outstanding = self._outstanding.get(pending.pool, [])
        if pending in outstanding:
            outstanding.remove(pending)
        if not outstanding:
            self._outstanding.pop(pending.pool, None)

    async def _request(self, pending: _PendingRequest) -> None:
        owner = self.node_uid
        try:
            await self._ask(pending, owner)
        except _DeletedError:
            # If the Node was re-created, a request owned by its former UID is garbage-collected at once. Reading the
            # Node before each request would cost all waiting pods a round trip, for the sake of this rare case.
            node = await self.client.get(NODES, self.node)
            if node.metadata.uid == owner:
                raise
            self.node_uid = node.metadata.uid
            await self._ask(pending, node.metadata.uid)

    async def _ask(self, pending: _PendingRequest, owner: str) -> None:
        name = f"req-{self.node}-{self.rng.getrandbits(32):08x}"
        self._own.add(name)
        try:
            created = await self.client.create(BLOCK_REQUESTS, self._body(name, pending.pool, owner))
        except BaseException:
            # Rejected; or the answer was lost and the request exists: then `discard_stale` will find it.
            self._own.discard(name)
            raise
        pending.request = created
        pending.answer = asyncio.Future()
        self._unanswered[created.uid] = pending
        try:
            # Answer and block may have come while the create call was still on its way back.
            self._observe(None, self.requests.get(name))
            self.changes.mark(pending.pool)
            await self._block(pending, name)
        finally:
            del self._unanswered[created.uid]
            # Nothing waits for the deletion. A process that stops leaves it to the next.
            self._spawn_deletion(created)

    def _body(self, name: str, pool: PoolName, owner: str) -> dict[str, object]:
        reference = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": owner, "controller": False}
        return {
            "apiVersion": BLOCK_REQUESTS.api_version,
            "kind": BLOCK_REQUESTS.kind,
            "metadata": {"name": name, "labels": {LABEL_NODE: self.node}, "ownerReferences": [reference]},
            "spec": {"nodeName": self.node, "poolName": pool},
        }

    async def _block(self, pending: _PendingRequest, name: str) -> None:
        """Return when the block is here and the request is answered."""
        pool = pending.pool
        either: list[asyncio.Future[Any]] = [pending.answer, pending.arrived]
        await asyncio.wait(either, timeout=ANSWER_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if pending.arrived.done():
            # It serves pods already. The controller has still to complete the request.
            await asyncio.wait({pending.answer}, timeout=BLOCK_TIMEOUT)
        elif not pending.answer.done():
            raise AddressUnavailableError(
                f"no block of pool {pool}: no answer within {ANSWER_TIMEOUT:.0f} s; is coil-ipam-controller running?"
            )
        elif isinstance(answer := pending.answer.result(), Granted):
            await asyncio.wait({pending.arrived}, timeout=BLOCK_TIMEOUT)
            if not pending.arrived.done():
                raise AddressUnavailableError(
                    f"block {answer.block} of pool {pool} was granted but did not arrive within {BLOCK_TIMEOUT:.0f} s"
                )
        elif answer is DELETED:
            raise _DeletedError(f"no block of pool {pool}: the request was deleted before it was answered")
        else:
            detail = f" ({answer.message})" if answer.message else ""
            raise AddressUnavailableError(f"no block of pool {pool}: {answer.reason}{detail}")
        self.log.info("block granted", pool=pool, block=pending.arrived.result(), request=name)

    def _spawn_deletion(self, request: BlockRequest) -> None:
        async def delete() -> None:
            try:
                await self._delete(request)
            finally:
                self._own.discard(request.metadata.name)

        task = asyncio.create_task(delete(), name=f"deletion of {request.metadata.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete(self, request: BlockRequest) -> None:
        try:
            await self._remove_object(request)
        except ApiError as error:
            # Left behind it is harmless: `discard_stale`, or the Node's deletion, takes it away.
            self.log.warning("block request not deleted", request=request.metadata.name, error=str(error))

    async def _remove_object(self, request: BlockRequest) -> None:
        with suppress(NotFoundError, ConflictError):  # gone, or another has its name
            await self.client.delete(BLOCK_REQUESTS, request.metadata.name, uid=request.uid)

    # --- what the informers say

    def _observe(self, old: BlockRequest | None, new: BlockRequest | None) -> None:
        subject = new or old
        pending = self._unanswered.get(subject.uid) if subject is not None else None
        if pending is None or pending.answer.done():
            return
        if new is None:
            pending.answer.set_result(DELETED)
        elif not isinstance(outcome := new.outcome(), Pending):
            pending.answer.set_result(outcome)
            self.changes.mark(pending.pool)

    def _block_of(self, pending: _PendingRequest) -> BlockName | None:
        """The block that answers the request, if it is here."""
        if pending.request is None:
            return None
        if (block := self.store.answer_to(pending.request.uid)) is not None:
            return block
        answer = pending.answer.result() if pending.answer.done() else None
        return answer.block if isinstance(answer, Granted) and self.store.is_here(answer.block) else None
