"""Asks the ipam-controller for blocks: at most one outstanding BlockRequest per pool, shared by all who wait.

Between `coild.pool_source`, which finds no free address, and the API server. One request goes through:

    create ─► the answer, seen by the informer of this node's requests ─► the block, seen by the informer of blocks

and is deleted then, while the pods already take their addresses.

An answer counts by the request's UID, so an older request of the same name cannot be mistaken for it; one that was
given before anybody waited is found in the informer's cache. A refusal (the pool is dry) or an unreachable API server
is remembered for a backoff, during which the next callers are told the same at once: a hundred pods without an address
make one request, not a hundred.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from structlog.typing import FilteringBoundLogger

from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest, Granted, Pending, Refused
from coil.crd.builtin import NODES
from coil.crd.names import LABEL_NODE, BlockName, NodeName, PoolName, RequestUid
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, ConflictError, NotFoundError
from coil.reconcile.backoff import Backoff
from coil.reconcile.informer import Informer
from coild.address_source import AddressUnavailableError

ANSWER_TIMEOUT = 300.0
"""Seconds after which a request that nobody answers is taken back; the next pod makes a new one."""

BLOCK_TIMEOUT = 30.0
"""Seconds for the answered block to arrive by the other watch."""


@dataclass(slots=True)
class _Refusal:
    """Why a pool gave no block, and until when the next callers are told so without asking again."""

    reason: str
    until: float
    attempts: int


@dataclass(slots=True)
class BlockRequester:
    """One per process. `arrived` waits until the named block is in this node's books."""

    client: ApiClient
    requests: Informer[BlockRequest]
    node: NodeName
    arrived: Callable[[BlockName], Awaitable[None]]
    backoff: Backoff
    rng: Random
    log: FilteringBoundLogger
    clock: Callable[[], float] = time.monotonic
    _outstanding: dict[PoolName, asyncio.Task[None]] = field(default_factory=dict)
    _refusals: dict[PoolName, _Refusal] = field(default_factory=dict)
    _waiting: dict[RequestUid, asyncio.Future[Granted | Refused]] = field(default_factory=dict)
    """By UID of the request."""
    _own: set[str] = field(default_factory=set)
    """Names of the requests that this process still has to do with."""
    _deletions: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.requests.subscribe(self._observe)

    async def request(self, pool: PoolName) -> None:
        """Return when a block of `pool` has been added to this node's books; join the request under way, if any.

        Raises `AddressUnavailableError` with the reason when there is none to be had. Cancelling one caller leaves the
        request to the others and, should none be left, to the next pod: its block is adopted whenever it comes.
        """
        task = self._outstanding.get(pool)
        if task is None:
            refusal = self._refusals.get(pool)
            if refusal is not None and self.clock() < refusal.until:
                raise AddressUnavailableError(refusal.reason)
            task = asyncio.create_task(self._run(pool), name=f"block request for {pool}")
            self._outstanding[pool] = task
        await asyncio.shield(task)

    def outstanding(self, pool: PoolName) -> bool:
        """Whether a block of the pool has been asked for and is not here yet, as far as this process knows."""
        return pool in self._outstanding

    async def discard_stale(self) -> None:
        """Delete the node's requests that nobody here waits for; their blocks, if any, are adopted.

        An earlier process left them, or a creation whose answer was lost. Failures are logged and left to the next
        call.
        """
        for request in self.requests.items():
            if request.metadata.name not in self._own:
                await self._delete(request)

    async def close(self) -> None:
        """Cancel what is under way and wait for its end. A request that stays is for the next process to discard."""
        await _cancel(self._outstanding.values())
        await _cancel(self._deletions)

    async def _run(self, pool: PoolName) -> None:
        try:
            await self._request(pool)
        except AddressUnavailableError as error:
            self._refuse(pool, str(error))
            raise
        except ApiError as error:
            reason = f"no block of pool {pool}: the API server did not take the request: {error}"
            self._refuse(pool, reason)
            raise AddressUnavailableError(reason) from error
        else:
            self._refusals.pop(pool, None)
        finally:
            del self._outstanding[pool]
            # Every caller may have given up; the outcome then is in the log and in `_refusals`, not unretrieved.
            if (task := asyncio.current_task()) is not None:
                task.add_done_callback(_retrieve)

    def _refuse(self, pool: PoolName, reason: str) -> None:
        attempts = self._refusals[pool].attempts + 1 if pool in self._refusals else 0
        delay = self.backoff.delay(attempts, self.rng.random)
        self._refusals[pool] = _Refusal(reason=reason, until=self.clock() + delay, attempts=attempts)
        self.log.warning("no block", pool=pool, reason=reason, next_try_in_seconds=round(delay, 1))

    async def _request(self, pool: PoolName) -> None:
        # The Node is read each time: a request owned by the UID of a node since re-created would be collected at once.
        node = await self.client.get(NODES, self.node)
        name = f"req-{self.node}-{self.rng.getrandbits(32):08x}"
        body = {
            "apiVersion": BLOCK_REQUESTS.api_version,
            "kind": BLOCK_REQUESTS.kind,
            "metadata": {
                "name": name,
                "labels": {LABEL_NODE: self.node},
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "name": self.node,
                        "uid": node.metadata.uid,
                        "controller": False,
                    }
                ],
            },
            "spec": {"nodeName": self.node, "poolName": pool},
        }
        self._own.add(name)
        created: BlockRequest | None = None
        try:
            created = await self.client.create(BLOCK_REQUESTS, body)
            block = await self._answer(created, pool)
            await self._arrival(block, pool)
            self.log.info("block granted", pool=pool, block=block, request=name)
        finally:
            self._finish(name, created)

    async def _arrival(self, block: BlockName, pool: PoolName) -> None:
        try:
            async with asyncio.timeout(BLOCK_TIMEOUT):
                await self.arrived(block)
        except TimeoutError:
            raise AddressUnavailableError(
                f"block {block} of pool {pool} was granted but did not arrive within {BLOCK_TIMEOUT:.0f} s"
            ) from None

    async def _answer(self, created: BlockRequest, pool: PoolName) -> BlockName:
        future: asyncio.Future[Granted | Refused] = asyncio.get_running_loop().create_future()
        self._waiting[created.uid] = future
        # The answer may have come while the create call was still on its way back.
        self._observe(None, self.requests.get(created.metadata.name))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                answer = await future
        except TimeoutError:
            raise AddressUnavailableError(
                f"no block of pool {pool}: no answer within {ANSWER_TIMEOUT:.0f} s; is coil-ipam-controller running?"
            ) from None
        finally:
            del self._waiting[created.uid]
        if isinstance(answer, Refused):
            detail = f" ({answer.message})" if answer.message else ""
            raise AddressUnavailableError(f"no block of pool {pool}: {answer.reason}{detail}")
        return answer.block

    def _finish(self, name: str, created: BlockRequest | None) -> None:
        """Delete the request in the background: nobody has to wait for that."""
        if created is None:
            # Refused, or the answer was lost and it exists: then `discard_stale` will find it.
            self._own.discard(name)
            return

        async def delete() -> None:
            try:
                await self._delete(created)
            finally:
                self._own.discard(name)

        task = asyncio.create_task(delete(), name=f"deletion of {name}")
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    async def _delete(self, request: BlockRequest) -> None:
        try:
            await self.client.delete(BLOCK_REQUESTS, request.metadata.name, uid=request.metadata.uid)
        except (NotFoundError, ConflictError):
            pass  # gone, or another has its name
        except ApiError as error:
            # Left behind it is harmless: `discard_stale`, or the Node's deletion, takes it away.
            self.log.warning("block request not deleted", request=request.metadata.name, error=str(error))

    def _observe(self, old: BlockRequest | None, new: BlockRequest | None) -> None:
        subject = new or old
        waiter = self._waiting.get(subject.uid) if subject is not None else None
        if waiter is None or waiter.done():
            return
        if new is None:
            waiter.set_result(Refused("the request was deleted before it was answered", ""))
        elif not isinstance(outcome := new.outcome(), Pending):
            waiter.set_result(outcome)


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    doomed = list(tasks)
    for task in doomed:
        task.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)
