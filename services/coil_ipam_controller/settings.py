"""What an admin may set. The names and defaults are those of Coil v2; what concerns the election is new."""

from dataclasses import dataclass
from pathlib import Path

from coil.reconcile.claim import LeaderTiming
from coil.runtime.duration import parse_period
from coil.runtime.endpoint import Endpoint
from coil.runtime.flag import flag, parse_optional_path, parse_text
from coil.runtime.settings import FrameSettings, health_flag, metrics_flag


def parse_lease(text: str) -> LeaderTiming:
    """The timing of an election whose lease has that length, in whole seconds."""
    seconds = parse_period(text)
    if seconds < 5 or seconds != int(seconds):
        raise ValueError('a number of whole seconds, 5 or more, such as "15s"')
    # In the proportions of the default. Shorter leases leave too little for one slow answer.
    part = seconds / 15
    return LeaderTiming(lease=int(seconds), renew=9 * part, grace=4 * part, retry=2 * part, call=4 * part)


@dataclass(frozen=True, kw_only=True)
class Settings(FrameSettings):
    """coil-ipam-controller's settings; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag(":9386")
    health_addr: Endpoint = health_flag(":9387")
    kubeconfig: Path | None = flag(
        "", parse=parse_optional_path, env="KUBECONFIG", help="how to reach the API server; in-cluster if not given"
    )
    gc_interval: float = flag(
        "1h", parse=parse_period, help="how often blocks and requests of absent nodes are looked for"
    )
    lease_duration: LeaderTiming = flag(
        "15s", parse=parse_lease, help="how long after a leader's death another replica takes over"
    )
    lease_namespace: str = flag("kube-system", parse=parse_text, help="where the lease of the leader election is kept")
