"""What a node's admin has decided about the interfaces, as the parts here need it."""

from dataclasses import dataclass, field
from ipaddress import IPv4Network

from coil.eni.surplus import SURPLUS_SECONDS
from coil.eni.warm_pool import WarmTargets
from coil.kernel.nft_table import PortChoice
from coild.eni.own_writes import DESCRIBE_LAG_SECONDS
from coild.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EniSettings:
    """`version` is the IP version of the pods' addresses. `excluded` are networks outside the VPC that pods reach with
    their own addresses. Without `groups` new interfaces have the primary one's. `unneeded` is
    how long addresses and interfaces must be surplus before they are given back, `describe_lag` how much older than its
    question what EC2 describes may be. They and `resync` are in seconds.
    """

    cluster: str
    targets: WarmTargets = field(default_factory=WarmTargets)
    prefixes: bool = False
    version: int = 4
    external_snat: bool = False
    snat_ports: PortChoice = PortChoice.FULLY_RANDOM
    excluded: tuple[IPv4Network, ...] = ()
    metadata_access: bool = False
    groups: tuple[str, ...] = ()
    resync: float = 60.0
    unneeded: float = SURPLUS_SECONDS
    describe_lag: float = DESCRIBE_LAG_SECONDS


def read_eni_settings(settings: Settings) -> EniSettings:
    """Of a process that was started for this source."""
    prefixes = settings.enable_prefix_delegation
    return EniSettings(
        cluster=settings.cluster_name,
        targets=WarmTargets(
            interfaces=settings.warm_eni_target,
            ips=settings.warm_ip_target,
            # At least none is what any node has: not a target that others have to give way to.
            minimum=settings.minimum_ip_target or None,
            # Set in many clusters that have no prefixes; amazon-vpc-cni-k8s does not heed it there either.
            prefixes=settings.warm_prefix_target if prefixes else None,
            max_interfaces=settings.max_eni or None,
        ),
        prefixes=prefixes,
        version=6 if settings.enable_ipv6 else 4,
        external_snat=settings.external_snat,
        snat_ports=settings.randomize_snat,
        excluded=settings.exclude_snat_cidrs,
        metadata_access=settings.allow_pod_metadata_access,
        groups=settings.security_groups,
        resync=settings.eni_resync_interval,
        unneeded=settings.eni_unneeded_time,
        describe_lag=settings.eni_describe_lag,
    )
