"""What an admin may set. The names and defaults are those of Coil v2; what concerns the election is new."""

from dataclasses import dataclass

from coil.admission.webhook_service import AdmissionSettings, webhook_flag
from coil.manager.election import ElectionSettings
from coil.runtime.flag import (
    Endpoint,
    Group,
    flag,
    kind,
    parse_optional_endpoint,
    parse_period,
)
from coil.runtime.settings import ApiSettings, FrameSettings, health_flag, metrics_flag


@kind("PERCENT")
def parse_percentage(text: str) -> int:
    """A whole number of percent, from 1 to 100."""
    digits = text.removesuffix("%")
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= 100):
        raise ValueError('a whole number of percent from 1 to 100, such as "90%"')
    return int(digits)


@dataclass(frozen=True, kw_only=True)
class Settings(AdmissionSettings, ElectionSettings, ApiSettings, FrameSettings):
    """coil-ipam-controller's settings; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag(":9386")
    health_addr: Endpoint = health_flag(":9387")
    webhook_addr: Endpoint = webhook_flag(":9443")
    inspect_addr: Endpoint | None = flag(
        ":9388",
        parse=parse_optional_endpoint,
        group=Group.INSPECTION,
        help="address of /ip-manager; without a host, 127.0.0.1; off for none",
    )
    inspect_history: float = flag(
        "1h",
        parse=parse_period,
        group=Group.INSPECTION,
        help="how far back /ip-manager shows the use of each pool, in 120 steps",
    )
    gc_interval: float = flag(
        "1h", parse=parse_period, group=Group.POOLS, help="how often blocks and requests of absent nodes are looked for"
    )
    node_grace: float = flag(
        "15s",
        parse=parse_period,
        group=Group.POOLS,
        help="how long a node must have been absent before its blocks are taken back",
    )
    dead_node_after: float = flag(
        "10m",
        parse=parse_period,
        group=Group.POOLS,
        help="how long a node must not have been ready to be reported as dead",
    )
    pool_nearly_full: int = flag(
        "90%",
        parse=parse_percentage,
        group=Group.POOLS,
        help="a pool with more of its blocks in use is reported as nearly full",
    )
