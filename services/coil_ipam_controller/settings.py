"""What an admin may set. The names and defaults are those of Coil v2; what concerns the election is new."""

from dataclasses import dataclass
from typing import Final

from coil.admission.webhook_service import AdmissionSettings, webhook_flag
from coil.manager.election import ElectionSettings
from coil.runtime.flag import (
    Endpoint,
    Group,
    flag,
    kind,
    parse_optional_endpoint,
    parse_optional_text,
    parse_optional_url,
    parse_period,
    parse_word,
)
from coil.runtime.settings import ApiSettings, FrameSettings, health_flag, metrics_flag

POOLS: Final = "pools"
AWS_ENI: Final = "aws-eni"


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

    metrics_addr: Endpoint = metrics_flag("127.0.0.1:9386")
    health_addr: Endpoint = health_flag("127.0.0.1:9387")
    webhook_addr: Endpoint = webhook_flag(":9443")
    inspect_addr: Endpoint | None = flag(
        "127.0.0.1:9388",
        parse=parse_optional_endpoint,
        group=Group.INSPECTION,
        help="address of /ip-manager; without a host, every address; off for none",
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
    address_source: str = flag(
        POOLS,
        parse=parse_word(POOLS, AWS_ENI),
        group=Group.AWS,
        help="where the nodes have pods' addresses from; with aws-eni, orphaned network interfaces are collected and "
        "subnets are watched",
    )
    cluster_name: str = flag(
        "",
        parse=parse_optional_text,
        env="CLUSTER_NAME",
        group=Group.AWS,
        help="the tag of this cluster's interfaces, the same as coild's",
    )
    aws_region: str = flag(
        "",
        parse=parse_optional_text,
        env="AWS_REGION",
        group=Group.AWS,
        help="the region of the cluster's nodes; the one that the metadata service names if not given",
    )
    ec2_endpoint: str | None = flag(
        "", parse=parse_optional_url, group=Group.AWS, help="EC2's API; that of the region if not given"
    )
    metadata_endpoint: str | None = flag(
        "",
        parse=parse_optional_url,
        group=Group.AWS,
        help="the instance's metadata service; its link-local address if not given",
    )

    def __post_init__(self) -> None:
        if self.address_source == AWS_ENI and not self.cluster_name:
            raise ValueError(
                "--address-source=aws-eni: --cluster-name must be given, or the interfaces could be another cluster's"
            )
