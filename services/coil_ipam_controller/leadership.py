"""What a leader does in its term: one controller per concern, and the periodic look for what events have missed.

In the flow: informers run in every replica and always; the election calls `lead` for as long as this replica is
the leader. A term begins with everything that is there, told as new, and its end leaves nothing running.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool
from coil.crd.block_request import BlockRequest, Pending
from coil.crd.builtin import Node
from coil.reconcile.controller import Controller, Reconcile
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coil.reconcile.term import TermSource
from coil_ipam_controller.deps import Deps, Policy
from coil_ipam_controller.pool_status_reconciler import SETTLE_SECONDS
from coil_ipam_controller.reconcilers import Reconcilers

REQUEST_WORKERS = 16
NODE_WORKERS = 4
WORKERS = 2


@dataclass(frozen=True, slots=True)
class TermSources:
    """Who tells of changes, by kind."""

    pools: TermSource[AddressPool]
    blocks: TermSource[AddressBlock]
    requests: TermSource[BlockRequest]
    nodes: TermSource[Node]

    def end_term(self) -> None:
        for source in (self.pools, self.blocks, self.requests, self.nodes):
            source.end_term()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queues:
    """What waits to be done, by whom of the team."""

    requests: WorkQueue
    pools: WorkQueue
    statuses: WorkQueue
    nodes: WorkQueue
    dead_nodes: WorkQueue
    audit: WorkQueue


class Leadership:
    """`sources` stand on the caches of the workplace, which must be synced before `lead`.

    `doubtful` hears how many blocks somebody has to look at.
    """

    def __init__(
        self,
        place: Deps,
        *,
        policy: Policy,
        sources: TermSources,
        doubtful: Callable[[int], None],
        metrics: ReconcileMetrics,
    ) -> None:
        self._place = place
        self._policy = policy
        self._sources = sources
        self._doubtful = doubtful
        self._metrics = metrics
        self._log = place.log

    async def lead(self) -> None:
        """Work until cancelled. May be called again after that."""
        with ExitStack() as term:
            term.callback(self._doubtful, 0)
            term.callback(self._sources.end_term)
            team = Reconcilers.assemble(self._place, self._policy, doubtful=self._doubtful)
            queues = _Queues(
                requests=self._queue(term, "blockrequest"),
                pools=self._queue(term, "addresspool"),
                statuses=self._queue(term, "poolstatus"),
                nodes=self._queue(term, "node"),
                dead_nodes=self._queue(term, "deadnode"),
                audit=self._queue(term, "blockaudit"),
            )
            async with asyncio.TaskGroup() as group:
                for controller in self._controllers(team, queues):
                    group.create_task(controller.run(), name=controller.name)
                group.create_task(self._sweep(team, queues), name="sweep")

    def _controllers(self, team: Reconcilers, queues: _Queues) -> list[Controller]:
        """Who does what, and what makes them do it."""
        sources = self._sources
        requests = self._controller(queues.requests, team.requests.reconcile, REQUEST_WORKERS)
        requests.watch(sources.requests, _new_request)
        pools = self._controller(queues.pools, team.pools.reconcile)
        pools.watch(sources.pools, _standing_pool)
        pools.watch(sources.blocks, _pool_of_gone_block)
        statuses = self._controller(queues.statuses, team.statuses.reconcile)
        statuses.watch(sources.pools, team.statuses.affected)
        statuses.watch(sources.blocks, _pools_of_block, batch_window=SETTLE_SECONDS)
        nodes = self._controller(queues.nodes, team.nodes.reconcile, NODE_WORKERS)
        nodes.watch(sources.nodes, team.nodes.gone_nodes)
        nodes.watch(sources.blocks, team.nodes.absent_holders)
        dead_nodes = self._controller(queues.dead_nodes, team.dead_nodes.reconcile)
        dead_nodes.watch(sources.nodes, team.dead_nodes.changed_nodes)
        dead_nodes.watch(sources.blocks, team.dead_nodes.holders)
        audit = self._controller(queues.audit, team.audit.reconcile)
        audit.watch(sources.blocks, team.audit.suspects)
        audit.watch(sources.nodes, team.audit.reserved_of)
        return [requests, pools, statuses, nodes, dead_nodes, audit]

    def _queue(self, term: ExitStack, name: str) -> WorkQueue:
        queue = WorkQueue(name, metrics=self._metrics, clock=self._place.clock)
        term.callback(queue.close)
        return queue

    def _controller(self, queue: WorkQueue, reconcile: Reconcile, workers: int = WORKERS) -> Controller:
        return Controller(queue.name, reconcile, queue=queue, metrics=self._metrics, log=self._log, workers=workers)

    async def _sweep(self, team: Reconcilers, queues: _Queues) -> None:
        while True:
            absent, dangling = team.nodes.absent_nodes(), team.requests.dangling()
            self._log.info("looking for what absent nodes have left", nodes=len(absent), dangling=len(dangling))
            for queue, keys in (
                (queues.nodes, absent),
                (queues.requests, dangling),
                (queues.dead_nodes, team.dead_nodes.unready_nodes()),
                # Somebody may have edited a status, or a write of ours was overtaken by one of a leader before.
                (queues.statuses, [pool.name for pool in self._place.view.pools.items()]),
            ):
                for key in keys:
                    queue.add(key)
            await team.audit.sweep(queues.audit)
            await asyncio.sleep(self._policy.gc_interval)


def _new_request(old: BlockRequest | None, new: BlockRequest | None) -> Iterable[str]:
    # Not what changes later: this is our own writing, and a reconcile that fails is repeated by its queue.
    if old is None and new is not None and isinstance(new.outcome(), Pending):
        yield new.metadata.name


def _standing_pool(_old: AddressPool | None, new: AddressPool | None) -> Iterable[str]:
    if new is not None:
        yield new.metadata.name


def _pool_of_gone_block(old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
    if new is None and old is not None and old.pool:
        yield old.pool


def _pools_of_block(old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
    """Pools that have a block more or less."""
    before, after = ((block.pool, block.index) if block is not None else None for block in (old, new))
    if before != after:
        yield from {place[0] for place in (before, after) if place is not None and place[0]}
