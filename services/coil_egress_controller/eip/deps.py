"""What the reconcilers of floating egress addresses share in a term, and what an admin has decided about their work."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from structlog.typing import FilteringBoundLogger

from coil.eip.tunnel_plan import TunnelNets
from coil.kube.api_client import ApiClient
from coil.reconcile.event_recorder import Recorder
from coil_egress_controller.eip.metric import EipMetrics
from coil_egress_controller.eip.view import EipView


@dataclass(frozen=True, slots=True, kw_only=True)
class EipSettings:
    """`lease_namespace` has the leases of gateway nodes. `slice_endpoints` is the most a slice has; `resync` is in
    seconds.
    """

    lease_namespace: str
    tunnel_nets: TunnelNets
    slice_endpoints: int
    resync: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EipDeps:
    """`view` stands on caches that are synced. `now` is the wall clock in UTC, `clock` monotonic seconds, and `random`
    gives [0, 1).
    """

    client: ApiClient
    view: EipView
    recorder: Recorder
    policy: EipSettings
    metrics: EipMetrics
    now: Callable[[], datetime]
    clock: Callable[[], float]
    random: Callable[[], float]
    log: FilteringBoundLogger
