"""Looks after blocks that are not what they should be: mends what is safe to mend, and tells of the rest.

The keys are names of blocks. A block is looked at when it appears or changes and by a sweep over all of them; what
seems wrong is looked at once more after `settle`, unchanged, before anything is done: blocks may be written in several
steps by others, and Coil's older daemon removes its finalizer a moment before it deletes a block. What is told is
told once for as long as it holds; nothing is ever deleted here.

One that was moved to another node can only be told from its change, so it is known to the leader that saw it.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import Node
from coil.crd.names import BlockName, NodeName, PoolName
from coil.ipam.layout import PoolLayout
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil.reconcile.queue import WorkQueue
from coil_ipam_controller.block_audit import BlockFault, Finding, examine_block, is_unprotected, plan_protection
from coil_ipam_controller.cluster_view import BY_NODE, ClusterView
from coil_ipam_controller.pool_supply import assess_pool

SETTLE_SECONDS = 30.0
RECHECK_SECONDS = 300.0
"""After which a block that something was told of is looked at again, as not every cure is a change of the block."""
LATE_SECONDS = 600.0
"""After which it is told that a block was deleted and is still there."""
_BLOCKS_PER_TURN = 100


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """Which version of a block seemed wrong, and since when (monotonic)."""

    version: str
    since: float


class BlockAuditReconciler:
    """`now` is the wall clock in UTC, `clock` monotonic seconds. `doubtful` hears how many blocks are told of."""

    def __init__(
        self,
        *,
        client: ApiClient,
        view: ClusterView,
        recorder: Recorder,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        doubtful: Callable[[int], None],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._view = view
        self._recorder = recorder
        self._now = now
        self._clock = clock
        self._doubtful = doubtful
        self._log = log
        self._swept = False
        self._suspicions: dict[BlockName, _Suspicion] = {}
        self._told: dict[BlockName, tuple[Finding, ...]] = {}
        self._moved_from: dict[BlockName, NodeName] = {}
        self._layouts: dict[PoolName, tuple[AddressPool, PoolLayout | None]] = {}

    async def reconcile(self, key: str) -> Result:
        """Look at the block of that name, and act when it has been wrong for long enough."""
        name = BlockName(key)
        block = self._view.blocks.get(name)
        if block is None:
            self._acquit(name)
            self._moved_from.pop(name, None)
            return DONE
        if block.metadata.deleting:
            return self._watch_departure(block)
        findings = self._examine(block)
        pool = self._view.pools.get(block.pool)
        unprotected = self._may_protect(block, findings, pool)
        if not findings and not unprotected:
            self._acquit(name)
            return DONE
        suspicion = self._suspicions.get(name)
        if suspicion is None or suspicion.version != block.metadata.resource_version:
            suspicion = self._suspicions[name] = _Suspicion(block.metadata.resource_version, self._clock())
        left = suspicion.since + SETTLE_SECONDS - self._clock()
        if left > 0:
            return RequeueAfter(left)
        if findings:
            self._tell(block, findings)
            return RequeueAfter(RECHECK_SECONDS)
        if pool is not None:
            await self._protect(block, pool)
        return DONE

    async def sweep(self, queue: WorkQueue) -> None:
        """Add every block that seems wrong. Begins the time in which `suspects` answers."""
        self._swept = True
        for number, block in enumerate(self._view.blocks.items(), start=1):
            if self._seems_wrong(block):
                queue.add(block.name)
            if number % _BLOCKS_PER_TURN == 0:
                await asyncio.sleep(0)

    def suspects(self, old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
        """The block whose change this is, if it is to be looked at."""
        if not self._swept:
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
        """The reserved blocks of a node that goes: they are nobody's to collect."""
        if new is None and old is not None:
            for block in self._view.blocks.by_index(BY_NODE, old.metadata.name):
                if block.reserved:
                    yield block.name

    def _seems_wrong(self, block: AddressBlock) -> bool:
        if block.metadata.deleting:
            return True
        findings = self._examine(block)
        return bool(findings) or self._may_protect(block, findings, self._view.pools.get(block.pool))

    def _examine(self, block: AddressBlock) -> tuple[Finding, ...]:
        pool = self._view.pools.get(block.pool)
        findings = examine_block(block, pool, None if pool is None else self._layout(pool))
        origin = self._moved_from.get(block.name)
        if origin == block.node:
            del self._moved_from[block.name]
        elif origin is not None and self._view.nodes.get(origin) is not None:
            message = f"was moved from the node {origin!r} to {block.node!r}; pods on {origin!r} may use its addresses"
            findings += (Finding(BlockFault.NODE_CHANGED, message),)
        if block.reserved and block.node and self._view.nodes.get(block.node) is None:
            message = (
                f"is reserved for the node {block.node!r}, which is no more: delete it when nothing uses its addresses"
            )
            findings += (Finding(BlockFault.NODE_GONE, message),)
        return findings

    @staticmethod
    def _may_protect(block: AddressBlock, findings: tuple[Finding, ...], pool: AddressPool | None) -> bool:
        """Whether the block misses a protection that it can be given without asking anybody."""
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
            # A reference to a pool that is no more would have Kubernetes delete the block.
            live = await self._client.get(ADDRESS_POOLS, pool.name)
            if live.metadata.uid != pool.metadata.uid or live.metadata.deleting:
                return
            await self._client.patch(ADDRESS_BLOCKS, block.name, plan_protection(block, pool))
        except NotFoundError:
            log.debug("block or its pool went meanwhile")
            return
        self._acquit(block.name)
        message = "had lost its finalizer or the reference to its pool, and has them again"
        self._recorder.note(_subject(block), reason="Protected", message=message)
        log.warning("block was unprotected and is protected again")

    def _watch_departure(self, block: AddressBlock) -> Result:
        """Its node is to let it go; the blocks of absent nodes are collected elsewhere."""
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
        self._tell(block, (Finding(BlockFault.RELEASED_LATE, message),))
        return RequeueAfter(RECHECK_SECONDS)

    def _tell(self, block: AddressBlock, findings: tuple[Finding, ...]) -> None:
        if self._told.get(block.name) == findings:
            return
        before = self._told.get(block.name, ())
        self._told[block.name] = findings
        self._doubtful(len(self._told))
        for finding in findings:
            if finding in before:
                continue
            self._log.warning("block needs a look", block=block.name, fault=str(finding.fault), message=finding.message)
            self._recorder.warn(_subject(block), reason=finding.fault, message=finding.message)
            pool = self._view.pools.get(block.pool)
            if finding.fault is BlockFault.NODE_GONE and pool is not None:
                # Whoever wonders why the pool is so full looks there.
                subject = EventSubject.of(ADDRESS_POOLS, pool.metadata)
                message = f"its block {block.name} {finding.message}"
                self._recorder.warn(subject, reason=finding.fault, message=message)

    def _acquit(self, name: BlockName) -> None:
        self._suspicions.pop(name, None)
        if self._told.pop(name, None) is not None:
            self._doubtful(len(self._told))
            self._log.info("block needs no look any more", block=name)


def _subject(block: AddressBlock) -> EventSubject:
    return EventSubject.of(ADDRESS_BLOCKS, block.metadata)
