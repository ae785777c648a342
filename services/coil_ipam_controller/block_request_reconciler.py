"""Answers BlockRequests: each gets exactly one block, or a refusal that says why.

The way of a request: three writes and, with caches that are up to date, no read:
1. choose the lowest free index of the pool, from the caches and the reservations of requests under way;
2. promise: write the block's name into the request's status, on condition that the request has not changed;
3. create the block of that name, labelled with the request's UID;
4. answer: write the conditions.

Why one block per request, whatever is repeated, overlaps or dies: a block is only ever created under the name
that the request's own status promises, and a promise is only replaced when its name turned out to be another
request's. So a leader that follows a dead one, or one that still has a call under way, either reads the promise
and creates the same name, or has read the request before the promise and fails at step 2. The API server lets
one of them create it, and the label tells the other that it is the right one. Nothing of this needs the
caches to be up to date, nor two leaders never to overlap; the caches only make it quick. (Before a promise is
replaced its name is looked up, never taken for another's because a cache says so.)

A refusal is final for its request, so it is never given on the word of a cache alone.

A node deletes its request as soon as it has read the answer. One that is still there long afterwards is dangling: its
node has died in the meantime, or runs a daemon that does not clean up. It is deleted, as nothing depends on it: the
block itself names its node. A request without an answer is never deleted while its node exists.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest, ConditionType, Pending, RefusalReason, Refused
from coil.crd.builtin import NODES
from coil.crd.meta import Condition, ObjectMeta, OwnerReference
from coil.crd.names import (
    FINALIZER,
    LABEL_NODE,
    LABEL_POOL,
    LABEL_REQUEST,
    LABEL_VALUE_LENGTH,
    BlockName,
    is_object_name,
)
from coil.ipam.index_set import IndexSet
from coil.ipam.layout import PlannedBlock, parse_block_index
from coil.kube.api_client import ApiClient
from coil.kube.errors import AlreadyExistsError, NotFoundError
from coil.manager.term import Term
from coil.reconcile.controller import DONE, Result
from coil.reconcile.event_recorder import Recorder
from coil_ipam_controller.caches import BY_REQUEST, Caches
from coil_ipam_controller.pool_assessment import check_pool, describe_exhaustion, report_exhausted, report_unusable

DANGLING_SECONDS = 600.0
"""After which an answered request is deleted."""

ATTEMPTS = 8
"""Names tried in one reconcile that turn out to be taken; after that the caches get time to catch up."""
WORKERS = 16


class StaleCacheError(Exception):
    """Every index that looked free was taken: the caches lag behind. Worth a retry."""


class RequestGoneError(Exception):
    """The request was deleted, so nothing waits for an answer."""


@dataclass(frozen=True, slots=True)
class _Choice:
    pool: AddressPool
    planned: PlannedBlock


class BlockRequestReconciler:
    """The keys are names of requests. `index` follows the blocks of `caches`; `now` is the wall clock, in UTC.

    Requests that dangle are looked for every `resync` seconds.
    """

    def __init__(
        self,
        *,
        client: ApiClient,
        caches: Caches,
        index: IndexSet,
        recorder: Recorder,
        resync: float,
        now: Callable[[], datetime],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._caches = caches
        self._index = index
        self._recorder = recorder
        self._resync = resync
        self._now = now
        self._log = log

    def setup(self, term: Term) -> None:
        caches = self._caches
        controller = term.controller("blockrequest", self.reconcile, workers=WORKERS)
        controller.watch(caches.requests, _new_request)
        controller.needs(caches.pools, caches.blocks, caches.nodes)
        controller.resync(self.dangling, every=self._resync, at_start=True)

    async def reconcile(self, name: str) -> Result:
        """Answer the request of that name. Raises ConflictError when the cache lags behind: come again."""
        request = self._caches.requests.get(name)
        if request is None or request.metadata.deleting:
            return DONE
        if not isinstance(request.outcome(), Pending):
            await self._retire(request)
            return DONE
        log = self._log.bind(request=name, node=request.spec.node_name, pool=request.spec.pool_name)
        try:
            await self._answer(request, log)
        except RequestGoneError:
            log.info("block request was deleted before it was answered")
        return DONE

    def dangling(self) -> list[str]:
        """Names of answered requests that their nodes seem to have forgotten."""
        return [request.metadata.name for request in self._caches.requests.items() if self._is_dangling(request)]

    def _is_dangling(self, request: BlockRequest) -> bool:
        answered = [time for condition in request.status.conditions if (time := condition.last_transition_time)]
        if isinstance(request.outcome(), Pending) or not answered:
            return False
        return (self._now() - max(answered)).total_seconds() >= DANGLING_SECONDS

    async def _retire(self, request: BlockRequest) -> None:
        if not self._is_dangling(request):
            return
        with suppress(NotFoundError):
            await self._client.delete(BLOCK_REQUESTS, request.metadata.name, uid=request.uid)
            self._log.info("dangling block request deleted", request=request.metadata.name, node=request.spec.node_name)

    async def _answer(self, request: BlockRequest, log: FilteringBoundLogger) -> None:
        promise = request.status.address_block_name
        promised = await self._live_block(promise)
        block = promised if promised and _answers(promised, request) else await self._find_block(request)
        if block is not None:
            await self._grant(request, block.name)
            log.info("block found again", block=block.name)
            return
        refusal = await self._check_node(request)
        # A promised name without a block must be tried first: a call that creates it may be under way.
        bound = "" if promised else promise
        for _ in range(ATTEMPTS):
            choice = refusal or await self._choose(request, bound)
            if isinstance(choice, Refused):
                await self._refuse(request, choice)
                log.warning("block request refused", reason=str(choice.reason), message=choice.message)
                self._report(request, choice)
                return
            request = await self._promise(request, choice.planned)
            if await self._create(request, choice):
                await self._grant(request, choice.planned.name)
                log.info("block created", block=choice.planned.name)
                return
            log.info("block name is taken, trying another", block=choice.planned.name)
            self._index.mark_foreign(choice.planned, request.uid)
            bound = ""
        raise StaleCacheError(f"{ATTEMPTS} block names in a row were taken")

    async def _find_block(self, request: BlockRequest) -> AddressBlock | None:
        """A block that was created for this request by a controller that writes no promises (Coil v2).

        The cache finds it, the API server confirms it.
        """
        known = self._caches.blocks.by_index(BY_REQUEST, request.uid)
        for block in sorted(known, key=lambda block: block.index):
            live = await self._live_block(block.name)
            if live is not None and _answers(live, request):
                return live
        return None

    async def _check_node(self, request: BlockRequest) -> Refused | None:
        name = request.spec.node_name
        if len(name) > LABEL_VALUE_LENGTH:
            message = f"the name of the node {name!r} does not fit into a label"
            return Refused(RefusalReason.INVALID_NODE, message)
        if self._caches.nodes.get(name) is not None:
            return None
        try:
            if is_object_name(name):
                await self._client.get(NODES, name)
                return None
        except NotFoundError:
            pass
        return Refused(RefusalReason.NO_SUCH_NODE, f"there is no node {name!r}")

    async def _choose(self, request: BlockRequest, bound: str) -> _Choice | Refused:
        cached = self._caches.pools.get(request.spec.pool_name)
        choice = self._choose_from(cached, request, bound)
        if isinstance(choice, Refused):
            choice = self._choose_from(await self._live_pool(request.spec.pool_name), request, bound)
        return choice

    def _choose_from(self, pool: AddressPool | None, request: BlockRequest, bound: str) -> _Choice | Refused:
        """Reserves the index that it chooses: the one of the name `bound`, if that is one of the pool's."""
        name = request.spec.pool_name
        if pool is None:
            return Refused(RefusalReason.NO_SUCH_POOL, f"there is no address pool {name!r}")
        layout = check_pool(pool, self._caches.pools.items())
        if isinstance(layout, Refused):
            return layout
        index = parse_block_index(layout.pool, bound)
        if index is not None and index < layout.size and layout.withheld_until(index) is None:
            planned = layout.block_at(index)
            self._index.take(planned, request.uid)
            return _Choice(pool, planned)
        free = self._index.reserve(layout, request.uid)
        if free is None:
            return Refused(RefusalReason.OUT_OF_BLOCKS, describe_exhaustion(layout.pool, self._index.capacity(layout)))
        return _Choice(pool, free)

    async def _promise(self, request: BlockRequest, planned: PlannedBlock) -> BlockRequest:
        """Written even if the status promises this name already: it proves that the request still stands."""
        try:
            return await self._write_status(request, {"addressBlockName": planned.name})
        except BaseException:
            self._index.release(planned, request.uid)
            raise

    async def _create(self, request: BlockRequest, choice: _Choice) -> bool:
        """Whether the block of the promised name exists for this request; False when it is somebody else's."""
        block = render_block(choice.planned, pool=choice.pool, request=request)
        try:
            await self._client.create(ADDRESS_BLOCKS, block)
        except AlreadyExistsError:
            live = await self._live_block(block.name)
            if live is None:
                raise
            return _answers(live, request)
        finally:
            # Also when the outcome of the creation is unknown: others are not to try its index for now.
            self._index.mark_created(choice.planned, request.uid)
        return True

    async def _grant(self, request: BlockRequest, block: BlockName) -> None:
        conditions = self._conditions([ConditionType.COMPLETE])
        await self._write_status(request, {"addressBlockName": block, "conditions": conditions})

    async def _refuse(self, request: BlockRequest, refusal: Refused) -> None:
        # Failed comes first, for kubectl's column (see `coil.crd.schema`).
        kinds = [ConditionType.FAILED, ConditionType.COMPLETE]
        conditions = self._conditions(kinds, reason=refusal.reason, message=refusal.message)
        await self._write_status(request, {"addressBlockName": None, "conditions": conditions})

    def _report(self, request: BlockRequest, refusal: Refused) -> None:
        """Report a refusal on its pool, too: that is where an admin can do something about it."""
        pool = self._caches.pools.get(request.spec.pool_name)
        if pool is None or pool.metadata.deleting:
            return
        if refusal.reason == RefusalReason.OUT_OF_BLOCKS:
            report_exhausted(self._recorder, pool, refusal.message)
        elif refusal.reason == RefusalReason.INVALID_POOL:
            report_unusable(self._recorder, pool, refusal.message)

    def _conditions(self, kinds: Sequence[ConditionType], *, reason: str = "", message: str = "") -> Any:
        now = self._now()
        conditions = [
            Condition(
                type=kind,
                status="True",
                reason=reason,
                message=message,
                last_probe_time=now,
                last_transition_time=now,
            )
            for kind in kinds
        ]
        return msgspec.to_builtins(conditions)

    async def _write_status(self, request: BlockRequest, status: dict[str, Any]) -> BlockRequest:
        """On condition that the request is the one, and in the state, that was read. Raises RequestGoneError."""
        patch = {"metadata": {"resourceVersion": request.metadata.resource_version}, "status": status}
        try:
            return await self._client.patch(BLOCK_REQUESTS, request.metadata.name, patch, subresource="status")
        except NotFoundError:
            raise RequestGoneError from None

    async def _live_block(self, name: str) -> AddressBlock | None:
        try:
            return await self._client.get(ADDRESS_BLOCKS, name) if is_object_name(name) else None
        except NotFoundError:
            return None

    async def _live_pool(self, name: str) -> AddressPool | None:
        try:
            return await self._client.get(ADDRESS_POOLS, name) if is_object_name(name) else None
        except NotFoundError:
            return None


def render_block(planned: PlannedBlock, *, pool: AddressPool, request: BlockRequest) -> AddressBlock:
    """The block that answers `request`, complete from its birth: a block without labels, owner or finalizer
    would be nobody's."""
    owner = OwnerReference(
        api_version=ADDRESS_POOLS.api_version,
        kind=ADDRESS_POOLS.kind,
        name=pool.metadata.name,
        uid=pool.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    metadata = ObjectMeta(
        name=planned.name,
        labels={
            LABEL_POOL: pool.metadata.name,
            LABEL_NODE: request.spec.node_name,
            LABEL_REQUEST: request.uid,
        },
        finalizers=(FINALIZER,),
        owner_references=(owner,),
    )
    return AddressBlock(
        metadata=metadata,
        index=planned.index,
        ipv4=None if planned.ipv4 is None else str(planned.ipv4),
        ipv6=None if planned.ipv6 is None else str(planned.ipv6),
    )


def _new_request(old: BlockRequest | None, new: BlockRequest | None) -> Iterable[str]:
    # Later changes are written here; a reconcile that fails is retried by its queue.
    if old is None and new is not None and isinstance(new.outcome(), Pending):
        yield new.metadata.name


def _answers(block: AddressBlock, request: BlockRequest) -> bool:
    return block.request == request.uid and not block.metadata.deleting
