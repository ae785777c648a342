"""What `--route-sync` adds to coild: two more informers, which see the whole cluster, and the routes made of them."""

from random import Random

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.builtin import NODES
from coil.kube.client import KubeClient
from coil.netlink.host import HostNetwork
from coil.reconcile.backoff import Backoff
from coil.reconcile.informer import Informer
from coil.reconcile.informer_metric import InformerMetrics
from coil.runtime.process import Process
from coild.routes.metric import RouteSyncMetrics
from coild.routes.sync import ClusterRouting, RouteSync
from coild.settings import Settings

_BACKOFF = Backoff(base=0.5, cap=30.0)


def start_route_sync(
    settings: Settings,
    process: Process,
    *,
    network: HostNetwork,
    kube: KubeClient,
    informer_metrics: InformerMetrics,
    rng: Random,
    log: FilteringBoundLogger,
) -> None:
    """Spawn it. Pods of this node are served without waiting for it, but the process is not ready before it is."""
    cluster = ClusterRouting(
        blocks=Informer(
            kube.collection(ADDRESS_BLOCKS), log=log, metrics=informer_metrics.named("addressblocks-of-all-nodes")
        ),
        nodes=Informer(kube.collection(NODES), log=log, metrics=informer_metrics),
    )
    sync = RouteSync(
        network,
        cluster,
        own=settings.node_name,
        protocol=settings.route_sync_protocol_id,
        backoff=_BACKOFF,
        rng=rng,
        metrics=RouteSyncMetrics(process.registry, node=settings.node_name),
        log=log,
    )
    if settings.clear_routes_on_shutdown:
        process.stack.push_async_callback(sync.withdraw)
    process.add_readiness("route-sync", sync.missing)
    process.spawn("addressblocks-of-all-nodes", cluster.blocks.run())
    process.spawn("nodes", cluster.nodes.run())
    process.spawn("route-sync", sync.run(settings.route_sync_interval))
