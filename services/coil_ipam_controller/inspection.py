"""What the cluster's blocks are doing: from the caches, so that every replica can tell, leader or not.

    ClusterView, BlockHistory, LeaderElector ─► look ─► coil_ipam_controller.cluster_description ─► coil.page

Nothing is asked of the API server: a picture may be as late as the caches are.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from structlog.typing import FilteringBoundLogger

from coil.page.cluster_document import ClusterDocument
from coil.page.cluster_page import render_cluster_page
from coil.runtime.inspection import Inspection, start_inspection
from coil.runtime.process import Process
from coil_ipam_controller.cluster_description import ClusterSnapshot, describe_cluster
from coil_ipam_controller.cluster_view import ClusterView
from coil_ipam_controller.history import BlockHistory
from coil_ipam_controller.settings import Settings


def start_cluster_inspection(
    settings: Settings,
    process: Process,
    *,
    view: ClusterView,
    replica: str,
    leads: Callable[[], bool],
    log: FilteringBoundLogger,
) -> None:
    """Keep the history, and serve the inspection on the port of the settings, until the process stops.

    `replica` is this process's name in the election, `leads` whether it has won. The caches must be synced.
    """
    now = partial(datetime.now, UTC)
    history = BlockHistory(view, span=settings.inspect_history, now=now)
    process.spawn("history", history.run())

    def look() -> Callable[[], ClusterDocument]:
        snapshot = ClusterSnapshot(
            replica=replica,
            leads=leads(),
            at=now(),
            pools=view.pools.items(),
            blocks=view.blocks.items(),
            nodes=view.nodes.items(),
            requests=view.requests.items(),
            history=history.read(),
        )
        return partial(describe_cluster, snapshot)

    start_inspection(process, Inspection(look, render_cluster_page), {"inspect": settings.inspect_addr}, log=log)
