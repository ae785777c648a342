"""Asks the ipam-controller for blocks, one BlockRequest a block, and knows which pools have refused.

Between `coild.addresses.pool_demand`, which decides how many are asked for, and the API server. One request goes
through:

    create ─► the answer, seen by the informer of this node's requests ─► the block, seen by the informer of blocks

The block may be seen before the answer, by its label: it counts at once. The request is deleted when both are here,
while the pods already take their addresses. It never outlives its block, see `retract`.

An answer counts by the request's UID, so an older request of the same name cannot be mistaken for it; one that was
given before anybody waited is found in the informer's cache. A refusal (the pool is dry) or an unreachable API server
is remembered for a backoff. A request that nobody answers stays, and counts, for minutes: neither a dry pool nor an
absent controller makes a storm.
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
from coild.addresses.pool_backoff import PoolBackoff
from coild.model.address_source import AddressUnavailableError

ANSWER_TIMEOUT = 300.0
"""Seconds after which a request that nobody answers is taken back; the next pod makes a new one."""

BLOCK_TIMEOUT = 30.0
"""Seconds for the answered block to arrive by the other watch, and for the answer to follow its block."""


DELETED = Refused("the request was deleted", "")


@dataclass(eq=False, slots=True)
class _PendingRequest:
    """One request on its way to a block. `request` is known when the API server has taken it."""

    pool: PoolName
    begun: float
    request: BlockRequest | None = None
    answer: asyncio.Future[Granted | Refused] = field(default_factory=asyncio.Future)
    landed: asyncio.Future[BlockName] = field(default_factory=asyncio.Future)
    """Done when the block is in the books."""


class _DeletedError(AddressUnavailableError):
    """The request was deleted before it was answered."""


@dataclass(slots=True)
class BlockRequester:
    """One per process. `node_uid` is the Node's at start.

    Set `settled`: it is told when a request of the pool has come to its end, by a block or without.
    """

    client: ApiClient
    requests: Informer[BlockRequest]
    store: BlockStore
    node: NodeName
    node_uid: str
    backoff: InitVar[Backoff]
    rng: Random
    log: FilteringBoundLogger
    clock: Callable[[], float] = time.monotonic
    settled: Callable[[PoolName], None] = lambda pool: None
    refusals: PoolBackoff = field(init=False)
    _quests: dict[PoolName, list[_PendingRequest]] = field(default_factory=dict)
    """What is outstanding, the oldest first."""
    _unanswered: dict[RequestUid, _PendingRequest] = field(default_factory=dict)
    _own: set[str] = field(default_factory=set)
    """Names of the requests that this process still has to do with."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self, backoff: Backoff) -> None:
        self.refusals = PoolBackoff(backoff=backoff, rng=self.rng, clock=self.clock)
        self.requests.subscribe(self._observe)
        self.store.subscribe(self._look)

    def start(self, pool: PoolName) -> None:
        """Ask for a block, in the background. Its end is told to `settled`, a failure is in `refusals` by then."""
        quest = _PendingRequest(pool, self.clock())
        self._quests.setdefault(pool, []).append(quest)
        task = asyncio.create_task(self._run(quest), name=f"block request for {pool}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def outstanding(self, pool: PoolName) -> int:
        """How many blocks of the pool have been asked for and are not here yet, as far as this process knows."""
        return len(self._quests.get(pool, ()))

    def oldest(self, pool: PoolName) -> float | None:
        """When the oldest request that is outstanding was begun."""
        quests = self._quests.get(pool)
        return quests[0].begun if quests else None

    async def discard_stale(self) -> None:
        """Delete the node's requests that nobody here waits for; their blocks, if any, are adopted.

        An earlier process left them, or a creation whose answer was lost. Failures are logged and left to the next
        call.
        """
        for request in self.requests.items():
            if request.metadata.name not in self._own:
                await self._delete(request)

    async def retract(self, uid: RequestUid) -> None:
        """Delete the request of that UID, if it stands. Before its block goes back; raises ApiError to be retried.

        A controller that died between block and answer would come back, find no block for the request and make a
        second one.
        """
        asked = (quest.request for quest in self._unanswered.values() if quest.request is not None)
        request = next((request for request in chain(asked, self.requests.items()) if request.uid == uid), None)
        if request is not None:
            await self._remove_object(request)

    async def close(self) -> None:
        """Cancel what is under way and wait for its end. A request that stays is for the next process to discard."""
        doomed = list(self._tasks)
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)

    # --- one request

    async def _run(self, quest: _PendingRequest) -> None:
        try:
            await self._request(quest)
        except AddressUnavailableError as error:
            self._refuse(quest, str(error))
        except ApiError as error:
            self._refuse(quest, f"no block of pool {quest.pool}: the API server did not take the request: {error}")
        except asyncio.CancelledError:
            self._remove(quest)
            raise
        self._settle(quest)

    def _refuse(self, quest: _PendingRequest, reason: str) -> None:
        if self.refusals.current(quest.pool) is not None:
            return  # one for all that were under way together
        refusal = self.refusals.refuse(quest.pool, reason)
        delay = round(refusal.until - refusal.since, 1)
        self.log.warning("no block", pool=quest.pool, reason=reason, next_try_in_seconds=delay)

    def _settle(self, quest: _PendingRequest) -> None:
        if self._remove(quest):
            self.settled(quest.pool)

    def _remove(self, quest: _PendingRequest) -> bool:
        """Whether it was outstanding until now."""
        quests = self._quests.get(quest.pool, [])
        if quest not in quests:
            return False
        quests.remove(quest)
        if not quests:
            del self._quests[quest.pool]
        return True

    async def _request(self, quest: _PendingRequest) -> None:
        owner = self.node_uid
        try:
            await self._ask(quest, owner)
        except _DeletedError:
            # A request that the UID of a Node since re-created owns is collected at once. To read the Node before each
            # request would cost all pods that wait a round trip, to be right in this case.
            node = await self.client.get(NODES, self.node)
            if node.metadata.uid == owner:
                raise
            self.node_uid = node.metadata.uid
            await self._ask(quest, node.metadata.uid)

    async def _ask(self, quest: _PendingRequest, owner: str) -> None:
        name = f"req-{self.node}-{self.rng.getrandbits(32):08x}"
        self._own.add(name)
        try:
            created = await self.client.create(BLOCK_REQUESTS, self._body(name, quest.pool, owner))
        except BaseException:
            # Refused, or the answer was lost and it exists: then `discard_stale` will find it.
            self._own.discard(name)
            raise
        quest.request = created
        quest.answer = asyncio.Future()
        self._unanswered[created.uid] = quest
        try:
            # Answer and block may have come while the create call was still on its way back.
            self._observe(None, self.requests.get(name))
            self._look(quest.pool)
            await self._block(quest, name)
        finally:
            del self._unanswered[created.uid]
            # Nobody has to wait for the deletion. A process that stops leaves it to the next.
            self._spawn_deletion(created)

    def _body(self, name: str, pool: PoolName, owner: str) -> dict[str, object]:
        reference = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": owner, "controller": False}
        return {
            "apiVersion": BLOCK_REQUESTS.api_version,
            "kind": BLOCK_REQUESTS.kind,
            "metadata": {"name": name, "labels": {LABEL_NODE: self.node}, "ownerReferences": [reference]},
            "spec": {"nodeName": self.node, "poolName": pool},
        }

    async def _block(self, quest: _PendingRequest, name: str) -> None:
        """Return when the block is here and the request is answered."""
        pool = quest.pool
        either: list[asyncio.Future[Any]] = [quest.answer, quest.landed]
        await asyncio.wait(either, timeout=ANSWER_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if quest.landed.done():
            # It serves pods already. The controller has still to say so in the request.
            await asyncio.wait({quest.answer}, timeout=BLOCK_TIMEOUT)
        elif not quest.answer.done():
            raise AddressUnavailableError(
                f"no block of pool {pool}: no answer within {ANSWER_TIMEOUT:.0f} s; is coil-ipam-controller running?"
            )
        elif isinstance(answer := quest.answer.result(), Granted):
            await asyncio.wait({quest.landed}, timeout=BLOCK_TIMEOUT)
            if not quest.landed.done():
                raise AddressUnavailableError(
                    f"block {answer.block} of pool {pool} was granted but did not arrive within {BLOCK_TIMEOUT:.0f} s"
                )
        elif answer is DELETED:
            raise _DeletedError(f"no block of pool {pool}: the request was deleted before it was answered")
        else:
            detail = f" ({answer.message})" if answer.message else ""
            raise AddressUnavailableError(f"no block of pool {pool}: {answer.reason}{detail}")
        self.log.info("block granted", pool=pool, block=quest.landed.result(), request=name)

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
        quest = self._unanswered.get(subject.uid) if subject is not None else None
        if quest is None or quest.answer.done():
            return
        if new is None:
            quest.answer.set_result(DELETED)
        elif not isinstance(outcome := new.outcome(), Pending):
            quest.answer.set_result(outcome)
            self._look(quest.pool)

    def _look(self, pool: PoolName) -> None:
        """Is a block here that was asked for?"""
        for quest in list(self._quests.get(pool, ())):
            if quest.request is None or quest.landed.done():
                continue
            block = self.store.answer_to(quest.request.uid)
            answer = quest.answer.result() if quest.answer.done() else None
            if block is None and isinstance(answer, Granted) and self.store.here(answer.block):
                block = answer.block
            if block is not None:
                quest.landed.set_result(block)
                self.refusals.forgive(pool, asked=quest.begun)
                self._settle(quest)
