"""coil-ipam-controller: gives blocks of pools to nodes, and takes back those of nodes that are no more.

Run by `python -m coil_ipam_controller`, any number of replicas. Wires the parts together and nothing else: all
replicas keep their caches up to date, answer admission reviews and are ready; one of them, elected, works.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.admission.assembly import WebhookService, start_admission
from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NODES
from coil.crd.names import BlockName
from coil.crd.resource import HasMetadata, Resource
from coil.ipam.index_set import IndexSet
from coil.ipam.layout import PlannedBlock
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.manager.election import Election
from coil.reconcile.cache import wait_synced
from coil.reconcile.event_metric import EventMetrics
from coil.reconcile.event_recorder import EventRecorder, Recorder
from coil.reconcile.informer import Informer
from coil.reconcile.informer_metric import InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.term import TermSource
from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coil_ipam_controller.cluster_view import BLOCK_INDEXERS, REQUEST_INDEXERS, ClusterView
from coil_ipam_controller.dead_node_metric import DeadNodeCollector
from coil_ipam_controller.deps import Deps
from coil_ipam_controller.inspection import start_cluster_inspection
from coil_ipam_controller.leadership import Leadership, TermSources
from coil_ipam_controller.pool_admission import PoolAdmission
from coil_ipam_controller.pool_event import tell_passed_over
from coil_ipam_controller.pool_metric import PoolCollector, doubtful_blocks
from coil_ipam_controller.settings import Settings

T = TypeVar("T", bound=HasMetadata)

NAME = "coil-ipam-controller"


def main() -> int:
    settings = parse_settings(
        Settings, sys.argv[1:], os.environ, program=NAME, about="Gives address blocks of pools to nodes."
    )
    return run(partial(assemble, settings), name=NAME, settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything; returns once the caches are synced and this replica contends for the lease."""
    log = process.log
    kube = await process.stack.enter_async_context(KubeClient.connect(settings.kubeconfig))
    informer_metrics = InformerMetrics(process.registry)

    def follow(
        resource: Resource[T],
        indexers: Mapping[str, Callable[[T], Iterable[str]]],
        freshness: Freshness = Freshness.LATEST,
    ) -> Informer[T]:
        collection = kube.collection(resource, freshness=freshness)
        return Informer(collection, log=log, metrics=informer_metrics, indexers=indexers)

    pools = follow(ADDRESS_POOLS, {})
    # Tens of thousands, and no decision takes the cache's word for a block, or for the absence of a node: see
    # BlockRequestReconciler and NodeReconciler.
    blocks = follow(ADDRESS_BLOCKS, BLOCK_INDEXERS, Freshness.CACHED)
    nodes = follow(NODES, {}, Freshness.CACHED)
    requests = follow(BLOCK_REQUESTS, REQUEST_INDEXERS)
    view = ClusterView(pools, blocks, requests, nodes)
    # The book hears of a block before any controller does.
    recorder = EventRecorder(kube, component=NAME, log=log, metrics=EventMetrics(process.registry))
    process.spawn("events", recorder.run())
    book = IndexSet(time.monotonic, passed_over=partial(_report_passed_over, log, recorder, view))
    blocks.subscribe(book.observe)
    sources = TermSources(TermSource(pools), TermSource(blocks), TermSource(requests), TermSource(nodes))
    PoolCollector(view, process.registry)
    now = partial(datetime.now, UTC)
    DeadNodeCollector(view, process.registry, after=settings.dead_node_after, now=now)

    informers: dict[str, Informer[Any]] = {
        "addresspools": pools,
        "addressblocks": blocks,
        "blockrequests": requests,
        "nodes": nodes,
    }
    for name, informer in informers.items():
        process.add_readiness(name, partial(_listed, informer))
        process.spawn(name, informer.run())
    admission = PoolAdmission(client=kube, known_pools=lambda: pools.items() if pools.synced else None, log=log)
    place = WebhookService(NAME, settings.lease_namespace)
    await start_admission(process, settings, admission.judges, client=kube, at=place)
    await wait_synced(informers.values(), log=log)

    metrics = ReconcileMetrics(process.registry)
    leadership = Leadership(
        Deps(client=kube, view=view, book=book, recorder=recorder, now=now, clock=time.monotonic, log=log),
        policy=settings.policy,
        sources=sources,
        doubtful=doubtful_blocks(process.registry).set,
        metrics=metrics,
    )
    election = Election(process, settings, client=kube, metrics=metrics)
    process.spawn("election", election.run(leadership.lead))
    leads = election.holds_lease
    start_cluster_inspection(settings, process, view=view, replica=election.identity, leads=leads, log=log)


def _report_passed_over(
    log: FilteringBoundLogger, recorder: Recorder, view: ClusterView, planned: PlannedBlock, holder: BlockName
) -> None:
    log.error("index passed over: its addresses are another block's", index=planned.name, holder=holder)
    if (pool := view.pools.get(planned.pool)) is not None:
        tell_passed_over(recorder, pool, planned.name, holder)


def _listed(informer: Informer[Any]) -> str | None:
    return None if informer.synced else f"not listed yet: {informer.last_error or 'no answer'}"
