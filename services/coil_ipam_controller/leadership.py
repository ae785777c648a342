"""What a leader does in its term: one controller per kind, and the periodic look for what events have missed.

In the flow: informers run in every replica and always; the election calls `lead` for as long as this replica is
the leader. A term begins with everything that is there, told as new, and its end leaves nothing running.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool
from coil.crd.block_request import BlockRequest, Pending
from coil.crd.builtin import Node
from coil.ipam.index_book import IndexBook
from coil.kube.api_client import ApiClient
from coil.reconcile.controller import Controller, Reconcile
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coil_ipam_controller.address_pool_controller import AddressPoolController
from coil_ipam_controller.block_request_controller import BlockRequestController
from coil_ipam_controller.cluster_view import ClusterView
from coil_ipam_controller.node_controller import NodeController
from coil_ipam_controller.term import TermSource

REQUEST_WORKERS = 16
POOL_WORKERS = 2
NODE_WORKERS = 4


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


class Leadership:
    """`view` and `sources` stand on the same caches, which must be synced before `lead`. `now` is UTC."""

    def __init__(
        self,
        *,
        client: ApiClient,
        view: ClusterView,
        sources: TermSources,
        book: IndexBook,
        gc_interval: float,
        now: Callable[[], datetime],
        metrics: ReconcileMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._view = view
        self._sources = sources
        self._gc_interval = gc_interval
        self._metrics = metrics
        self._log = log
        self._requests = BlockRequestController(client=client, view=view, book=book, now=now, log=log)
        self._pools = AddressPoolController(client=client, view=view, book=book, log=log)
        self._nodes = NodeController(client=client, view=view, log=log)

    async def lead(self) -> None:
        """Work until cancelled. May be called again after that."""
        with ExitStack() as term:
            term.callback(self._sources.end_term)
            requests = self._controller(self._queue(term, "blockrequest"), self._requests.reconcile, REQUEST_WORKERS)
            requests.watch(self._sources.requests, _new_request)
            pools = self._controller(self._queue(term, "addresspool"), self._pools.reconcile, POOL_WORKERS)
            pools.watch(self._sources.pools, _standing_pool)
            pools.watch(self._sources.blocks, _pool_of_gone_block)
            node_queue = self._queue(term, "node")
            nodes = self._controller(node_queue, self._nodes.reconcile, NODE_WORKERS)
            nodes.watch(self._sources.nodes, _gone_node)
            nodes.watch(self._sources.blocks, self._absent_node_of_new_block)
            async with asyncio.TaskGroup() as group:
                for controller in (requests, pools, nodes):
                    group.create_task(controller.run(), name=controller.name)
                group.create_task(self._sweep(node_queue), name="sweep")

    def _queue(self, term: ExitStack, name: str) -> WorkQueue:
        queue = WorkQueue(name, metrics=self._metrics)
        term.callback(queue.close)
        return queue

    def _controller(self, queue: WorkQueue, reconcile: Reconcile, workers: int) -> Controller:
        return Controller(queue.name, reconcile, queue=queue, metrics=self._metrics, log=self._log, workers=workers)

    async def _sweep(self, queue: WorkQueue) -> None:
        while True:
            absent = self._nodes.absent_nodes()
            self._log.info("looking for what absent nodes have left", nodes=len(absent))
            for name in absent:
                queue.add(name)
            await asyncio.sleep(self._gc_interval)

    def _absent_node_of_new_block(self, old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
        """A block may be created for a node that goes at the same moment."""
        if old is None and new is not None and new.node and self._view.nodes.get(new.node) is None:
            yield new.node


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


def _gone_node(old: Node | None, new: Node | None) -> Iterable[str]:
    if new is None and old is not None:
        yield old.metadata.name
