"""coil-ipam-controller: gives blocks of pools to nodes, and takes back those of nodes that are no more.

Run by `python -m coil_ipam_controller`, any number of replicas. Wires the parts together and nothing else: all
replicas keep their caches up to date and are ready; one of them, elected, works.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NODES
from coil.crd.resource import HasMetadata, Resource
from coil.ipam.index_book import IndexBook
from coil.kube.client import KubeClient
from coil.kube.lease_store import KubeLeaseStore
from coil.reconcile.claim import LeaseClaim, boot_clock, new_identity
from coil.reconcile.dead_man import DeadManThread
from coil.reconcile.informer import Informer
from coil.reconcile.informer_metric import InformerMetrics
from coil.reconcile.leader import LeaderElector
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.sync_barrier import wait_synced
from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coil_ipam_controller.cluster_view import BLOCK_INDEXERS, REQUEST_INDEXERS, ClusterView
from coil_ipam_controller.leadership import Leadership, TermSources
from coil_ipam_controller.pool_metric import PoolCollector
from coil_ipam_controller.settings import Settings
from coil_ipam_controller.term import TermSource

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

    def follow(resource: Resource[T], indexers: Mapping[str, Callable[[T], Iterable[str]]]) -> Informer[T]:
        return Informer(kube.collection(resource), log=log, metrics=informer_metrics, indexers=indexers)

    pools = follow(ADDRESS_POOLS, {})
    blocks = follow(ADDRESS_BLOCKS, BLOCK_INDEXERS)
    requests = follow(BLOCK_REQUESTS, REQUEST_INDEXERS)
    nodes = follow(NODES, {})
    view = ClusterView(pools, blocks, requests, nodes)
    # The book hears of a block before any controller does.
    book = IndexBook(time.monotonic)
    blocks.subscribe(book.observe)
    sources = TermSources(TermSource(pools), TermSource(blocks), TermSource(requests), TermSource(nodes))
    PoolCollector(view, process.registry)

    informers: dict[str, Informer[Any]] = {
        "addresspools": pools,
        "addressblocks": blocks,
        "blockrequests": requests,
        "nodes": nodes,
    }
    for name, informer in informers.items():
        process.add_readiness(name, partial(_listed, informer))
        process.spawn(name, informer.run())
    await wait_synced(informers.values(), log=log)

    metrics = ReconcileMetrics(process.registry)
    leadership = Leadership(
        client=kube,
        view=view,
        sources=sources,
        book=book,
        gc_interval=settings.gc_interval,
        now=partial(datetime.now, UTC),
        metrics=metrics,
        log=log,
    )
    store = KubeLeaseStore(client=kube, namespace=settings.lease_namespace, name=NAME)
    claim = LeaseClaim(store, identity=new_identity(), timing=settings.lease_duration)
    dead_man = DeadManThread(clock=boot_clock)
    process.stack.callback(dead_man.close)
    elector = LeaderElector(NAME, claim, dead_man=dead_man, metrics=metrics, log=log)
    process.spawn("election", elector.run(leadership.lead))


def _listed(informer: Informer[Any]) -> str | None:
    return None if informer.synced else f"not listed yet: {informer.last_error or 'no answer'}"
