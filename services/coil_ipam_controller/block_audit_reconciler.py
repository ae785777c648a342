"""Repairs AddressBlocks where that is safe, and reports those that need an admin.

The keys are names of blocks. A block is examined when it appears or changes, and by a resync over all of them. What
seems wrong is examined again after `CONFIRM_SECONDS`, unchanged, before anything is done: other programs may write a
block in several steps, and Coil v2's daemon removes the finalizer a moment before it deletes a block. A finding is
reported once for as long as it holds; nothing is ever deleted here.

That a block was moved to another node shows only in the change, so only the leader that saw it knows.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from prometheus_client import CollectorRegistry, Gauge
from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import Node
from coil.crd.names import BlockName, NodeName, PoolName
from coil.ipam.layout import PoolLayout
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.manager.term import Term
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil_ipam_controller.block_audit import BlockFault, Finding, examine_block, is_unprotected, plan_protection
from coil_ipam_controller.caches import BY_NODE, Caches
from coil_ipam_controller.pool_assessment import assess_pool

CONFIRM_SECONDS = 30.0
RECHECK_SECONDS = 300.0
"""After which a block with a finding is examined again, as not every repair is a change of the block."""
LATE_SECONDS = 600.0
"""After which a block is reported that was deleted and is still there."""
WORKERS = 2
_BLOCKS_PER_TURN = 100


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """Which version of a block seemed wrong, and since when (monotonic)."""

    version: str
    since: float


def doubtful_blocks(registry: CollectorRegistry) -> Gauge:
    """How many blocks the leader has a finding for; 0 in every other replica."""
    return Gauge(
        "coil_controller_doubtful_blocks",
        "Blocks that contradict their pool, have no owner or are stuck in deletion; an Event on each has the reason.",
        registry=registry,
    )


class BlockAuditReconciler:
    """`doubtful` is called with the number of blocks that have a finding, and with 0 when the term ends.

    All blocks are examined every `resync` seconds. `now` is the wall clock in UTC, `clock` monotonic seconds.
    """

    def __init__(
        self,
        *,
        client: ApiClient,
        caches: Caches,
        recorder: Recorder,
        resync: float,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        doubtful: Callable[[int], None],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._caches = caches
        self._recorder = recorder
        self._resync = resync
        self._now = now
        self._clock = clock
        self._doubtful = doubtful
        self._log = log
        self._resynced = False
        self._suspicions: dict[BlockName, _Suspicion] = {}
        self._reported: dict[BlockName, tuple[Finding, ...]] = {}
        self._moved_from: dict[BlockName, NodeName] = {}
        self._layouts: dict[PoolName, tuple[AddressPool, PoolLayout | None]] = {}

    def setup(self, term: Term) -> None:
        term.on_end(partial(self._doubtful, 0))
        controller = term.controller("blockaudit", self.reconcile, workers=WORKERS)
        controller.watch(self._caches.blocks, self.suspects)
        controller.watch(self._caches.nodes, self.reserved_of)
        controller.needs(self._caches.pools)
        controller.resync(self.all_suspects, every=self._resync, at_start=True)

    async def reconcile(self, key: str) -> Result:
        """Examine the block of that name, and act once it has been wrong for long enough."""
        name = BlockName(key)
        block = self._caches.blocks.get(name)
        if block is None:
            self._acquit(name)
            self._moved_from.pop(name, None)
            return DONE
        if block.metadata.deleting:
            return self._watch_departure(block)
        findings = self._examine(block)
        pool = self._caches.pools.get(block.pool)
        unprotected = self._may_protect(block, findings, pool)
        if not findings and not unprotected:
            self._acquit(name)
            return DONE
        suspicion = self._suspicions.get(name)
        if suspicion is None or suspicion.version != block.metadata.resource_version:
            suspicion = self._suspicions[name] = _Suspicion(block.metadata.resource_version, self._clock())
        left = suspicion.since + CONFIRM_SECONDS - self._clock()
        if left > 0:
            return RequeueAfter(left)
        if findings:
            self._report(block, findings)
            return RequeueAfter(RECHECK_SECONDS)
        if pool is not None:
            await self._protect(block, pool)
        return DONE

    async def all_suspects(self) -> AsyncIterator[str]:
        """Every block that seems wrong. Begins the time in which `suspects` answers."""
        self._resynced = True
        for number, block in enumerate(self._caches.blocks.items(), start=1):
            if self._seems_wrong(block):
                yield block.name
            if number % _BLOCKS_PER_TURN == 0:
                await asyncio.sleep(0)

    def suspects(self, old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
        """The block of this change, if it is to be examined. None before the first resync, which examines all."""
        if not self._resynced:
            return
        if new is None:
            if old is not None and (old.name in self._suspicions or old.name in self._moved_from):
                yield old.name
            return
        if old is not None and old.node and old.node != new.node:
            self._moved_from.setdefault(new.name, old.node)
        if new.name in self._suspicions or self._seems_wrong(new):
            yield new.name

    def reserved_of(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """The reserved blocks of a node that was deleted: nothing collects them."""
        if new is None and old is not None:
            for block in self._caches.blocks.by_index(BY_NODE, old.metadata.name):
                if block.reserved:
                    yield block.name

    def _seems_wrong(self, block: AddressBlock) -> bool:
        if block.metadata.deleting:
            return True
        findings = self._examine(block)
        return bool(findings) or self._may_protect(block, findings, self._caches.pools.get(block.pool))

    def _examine(self, block: AddressBlock) -> tuple[Finding, ...]:
        pool = self._caches.pools.get(block.pool)
        findings = examine_block(block, pool, None if pool is None else self._layout(pool))
        origin = self._moved_from.get(block.name)
        if origin == block.node:
            del self._moved_from[block.name]
        elif origin is not None and self._caches.nodes.get(origin) is not None:
            message = f"was moved from the node {origin!r} to {block.node!r}; pods on {origin!r} may use its addresses"
            findings += (Finding(BlockFault.NODE_CHANGED, message),)
        if block.reserved and block.node and self._caches.nodes.get(block.node) is None:
            message = (
                f"is reserved for the node {block.node!r}, which is no more: delete it when nothing uses its addresses"
            )
            findings += (Finding(BlockFault.NODE_GONE, message),)
        return findings

    @staticmethod
    def _may_protect(block: AddressBlock, findings: tuple[Finding, ...], pool: AddressPool | None) -> bool:
        """Whether the block lacks a protection that can be restored without a decision by an admin."""
        if findings or pool is None or pool.metadata.deleting or block.reserved:
            return False
        return is_unprotected(block, pool)

    def _layout(self, pool: AddressPool) -> PoolLayout | None:
        known = self._layouts.get(pool.name)
        if known is None or known[0].spec != pool.spec or known[0].metadata.uid != pool.metadata.uid:
            known = self._layouts[pool.name] = (pool, assess_pool(pool, ()).layout)
        return known[1]

    async def _protect(self, block: AddressBlock, pool: AddressPool) -> None:
        log = self._log.bind(block=block.name, node=block.node, pool=block.pool)
        try:
            # An owner reference to a pool that does not exist would make Kubernetes delete the block.
            live = await self._client.get(ADDRESS_POOLS, pool.name)
            if live.metadata.uid != pool.metadata.uid or live.metadata.deleting:
                return
            await self._client.patch(ADDRESS_BLOCKS, block.name, plan_protection(block, pool))
        except NotFoundError:
            log.debug("block or its pool was deleted in the meantime")
            return
        self._acquit(block.name)
        message = "had lost its finalizer or the reference to its pool, and has them again"
        self._recorder.note(_subject(block), reason="Protected", message=message)
        log.warning("block was unprotected and is protected again")

    def _watch_departure(self, block: AddressBlock) -> Result:
        """Its node has to release it; blocks of absent nodes are collected by `node_reconciler`."""
        self._suspicions.setdefault(block.name, _Suspicion(block.metadata.resource_version, self._clock()))
        since = block.metadata.deletion_timestamp
        left = LATE_SECONDS if since is None else LATE_SECONDS - (self._now() - since).total_seconds()
        if left > 0:
            return RequeueAfter(left)
        holders = ", ".join(block.metadata.finalizers)
        message = (
            f"was deleted at {since:%Y-%m-%d %H:%M:%S} UTC and is still there (finalizers {holders}): pods on the node "
            f"{block.node!r} use its addresses, or coild does not run there"
        )
        self._report(block, (Finding(BlockFault.RELEASED_LATE, message),))
        return RequeueAfter(RECHECK_SECONDS)

    def _report(self, block: AddressBlock, findings: tuple[Finding, ...]) -> None:
        if self._reported.get(block.name) == findings:
            return
        before = self._reported.get(block.name, ())
        self._reported[block.name] = findings
        self._doubtful(len(self._reported))
        for finding in findings:
            if finding in before:
                continue
            self._log.warning("block needs a look", block=block.name, fault=str(finding.fault), message=finding.message)
            self._recorder.warn(_subject(block), reason=finding.fault, message=finding.message)
            pool = self._caches.pools.get(block.pool)
            if finding.fault is BlockFault.NODE_GONE and pool is not None:
                # An admin who wonders why the pool is so full looks there.
                subject = EventSubject.of(ADDRESS_POOLS, pool.metadata)
                message = f"its block {block.name} {finding.message}"
                self._recorder.warn(subject, reason=finding.fault, message=message)

    def _acquit(self, name: BlockName) -> None:
        self._suspicions.pop(name, None)
        if self._reported.pop(name, None) is not None:
            self._doubtful(len(self._reported))
            self._log.info("block needs no look any more", block=name)


def _subject(block: AddressBlock) -> EventSubject:
    return EventSubject.of(ADDRESS_BLOCKS, block.metadata)
