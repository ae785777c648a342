"""What the reconcilers of a term share, and what an admin has decided about their work."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from structlog.typing import FilteringBoundLogger

from coil.ipam.index_set import IndexSet
from coil.kube.api_client import ApiClient
from coil.reconcile.event_recorder import Recorder
from coil_ipam_controller.cluster_view import ClusterView


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """`view` and `book` stand on caches that are synced. `now` is the wall clock in UTC, `clock` monotonic seconds."""

    client: ApiClient
    view: ClusterView
    book: IndexSet
    recorder: Recorder
    now: Callable[[], datetime]
    clock: Callable[[], float]
    log: FilteringBoundLogger


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Times in seconds; see the settings of the same names. `pool_nearly_full` is in percent."""

    gc_interval: float
    node_grace: float
    dead_node_after: float
    pool_nearly_full: int
