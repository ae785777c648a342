"""The settings that several programs share; a program's own settings extend them.

`FrameSettings` every process has, `ApiSettings` whatever speaks to the API server, `ClusterNetworksSettings` who writes
or reads which networks are the cluster's own, `NodeSysctlSettings` who changes settings of the node, `EipLimitSettings`
who holds tenants to what they may have of EIP gateways, `EipLeaseSettings` the programs that meet at the Leases of
gateway nodes: the controller and the agents. Those Leases have a namespace of their own. They have the nodes' names, so
no role can name them, and whoever may renew one may write to every Lease of its namespace: in the system's those are
the scheduler's and the controllers'.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coil.crd.eip_limit import NamespaceLimits
from coil.crd.names import is_namespace_name, is_object_name
from coil.crd.resource import NamespacedName
from coil.runtime.flag import (
    Endpoint,
    Group,
    flag,
    kind,
    parse_endpoint,
    parse_integer,
    parse_optional_path,
    parse_period,
    parse_word,
)
from coil.runtime.log import LOG_LEVELS, LogFormat


def metrics_flag(default: str) -> Endpoint:
    """The `metrics_addr` of a process whose default is `default`, such as "127.0.0.1:9386"."""
    return flag(
        default, parse=parse_endpoint, group=Group.PROCESS, help="address of /metrics; without a host, every address"
    )


def health_flag(default: str) -> Endpoint:
    """The `health_addr` of a process whose default is `default`, such as "127.0.0.1:9387"."""
    return flag(
        default,
        parse=parse_endpoint,
        group=Group.PROCESS,
        help="address of /healthz and /readyz; without a host, every address",
    )


@kind("auto|json|text")
def parse_format(text: str) -> LogFormat:
    return LogFormat(parse_word(*(known.value for known in LogFormat))(text))


@dataclass(frozen=True, kw_only=True)
class FrameSettings:
    """What the frame needs. Every process gives its own ports."""

    metrics_addr: Endpoint
    health_addr: Endpoint
    log_level: str = flag(
        "info",
        parse=parse_word(*LOG_LEVELS),
        group=Group.PROCESS,
        help="least severe lines to log: " + ", ".join(LOG_LEVELS),
    )
    log_format: LogFormat = flag(
        "auto", parse=parse_format, group=Group.PROCESS, help="json, text, or auto: text on a terminal only"
    )
    stop_timeout: float = flag(
        "10s",
        parse=parse_period,
        group=Group.PROCESS,
        help="how long a graceful stop may take before the process just exits",
    )


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """How a process reaches the API server."""

    kubeconfig: Path | None = flag(
        "",
        parse=parse_optional_path,
        env="KUBECONFIG",
        group=Group.API_SERVER,
        help="how to reach the API server; in-cluster if not given",
    )


@kind("NAMESPACE/NAME")
def parse_optional_name(text: str) -> NamespacedName | None:
    """Where an object of a namespace is; empty for none."""
    if not text:
        return None
    namespace, _, name = text.partition("/")
    if not is_namespace_name(namespace) or not is_object_name(name):
        raise ValueError('a namespace and a name, such as "kube-system/coild", or nothing')
    return NamespacedName(namespace, name)


@dataclass(frozen=True, kw_only=True)
class ClusterNetworksSettings:
    """The settings of a process that writes or reads which networks are the cluster's own."""

    cluster_networks: NamespacedName | None = flag(
        "",
        parse=parse_optional_name,
        group=Group.EGRESS,
        help="the ConfigMap in which coil-egress-controller tells the nodes which networks are the cluster's own: what "
        "clients of an Egress, or pods of a policy without destinations, send there does not leave through a gateway; "
        "all programs must be told the same",
    )


@dataclass(frozen=True, kw_only=True)
class NodeSysctlSettings:
    """The settings of a process that changes sysctls of the node."""

    sysctl_record: Path | None = flag(
        "",
        parse=parse_optional_path,
        group=Group.PROCESS,
        help="file, below /run and of this program alone, that records what the node's sysctls were before the program "
        "changed them: `coil-installer restore-sysctls` puts them back; if not given, they stay as they are",
    )


EIP_LEASE_NAMESPACE: Final = "coil-eip-leases"
"""What the chart makes, with the roles."""


@kind("NAMESPACE")
def parse_namespace(text: str) -> str:
    """The name of a namespace."""
    if not is_namespace_name(text):
        raise ValueError("the name of a namespace")
    return text


@dataclass(frozen=True, kw_only=True)
class EipLimitSettings:
    """What one namespace may have of EIP gateways: where policies are let in, and on the nodes."""

    policies_per_namespace: int = flag(
        "500",
        parse=parse_integer(0, 65000),
        group=Group.EIP,
        help="how many EgressGatewayPolicies a namespace may have; the controller refuses more, and nodes drop the "
        "packets of the newest",
    )
    networks_per_namespace: int = flag(
        "4096",
        parse=parse_integer(0, 1_000_000),
        group=Group.EIP,
        help="how many networks (destSubnet and podSubnet) the EgressGatewayPolicies of a namespace may have together, "
        "with the same consequences",
    )

    @property
    def namespace_limits(self) -> NamespaceLimits:
        return NamespaceLimits(policies=self.policies_per_namespace, networks=self.networks_per_namespace)


@dataclass(frozen=True, kw_only=True)
class EipLeaseSettings:
    """The settings of a process that reads or writes the Leases of gateway nodes."""

    eip_lease_namespace: str = flag(
        EIP_LEASE_NAMESPACE,
        parse=parse_namespace,
        group=Group.EIP,
        help="the namespace of the gateway nodes' Leases; coil-egress-controller and the agents must be told the same",
    )
