"""What an admin may set. The names and defaults are those of Coil v2; election, image and resync are new."""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import TypeVar

from coil.admission.webhook_service import AdmissionSettings, webhook_flag
from coil.crd.names import SLICE_ENDPOINTS
from coil.kernel.family import IPNetwork
from coil.manager.election import ElectionSettings
from coil.runtime.flag import (
    Endpoint,
    Group,
    flag,
    kind,
    parse_boolean,
    parse_integer,
    parse_networks,
    parse_optional_text,
    parse_period,
    variable,
)
from coil.runtime.settings import (
    ApiSettings,
    ClusterNetworksSettings,
    EipLeaseSettings,
    EipLimitSettings,
    FrameSettings,
    health_flag,
    metrics_flag,
)

Network = TypeVar("Network", IPv4Network, IPv6Network)


@kind("CIDR")
def parse_ipv4_network(text: str) -> IPv4Network:
    """For the tunnels: room for two nodes at least."""
    return _parse_network(text, IPv4Network, longest=30, expected='an IPv4 network, such as "172.31.0.0/16"')


@kind("CIDR")
def parse_ipv6_network(text: str) -> IPv6Network:
    """For the tunnels, likewise."""
    return _parse_network(text, IPv6Network, longest=126, expected='an IPv6 network, such as "fd11::/112"')


def _parse_network(text: str, kind: Callable[[str], Network], *, longest: int, expected: str) -> Network:
    try:
        network = kind(text)
    except ValueError:
        raise ValueError(expected) from None
    if network.prefixlen > longest:
        raise ValueError(expected)
    return network


@dataclass(frozen=True, kw_only=True)
class Settings(
    AdmissionSettings,
    ElectionSettings,
    ClusterNetworksSettings,
    EipLeaseSettings,
    EipLimitSettings,
    ApiSettings,
    FrameSettings,
):
    """coil-egress-controller's settings; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag("127.0.0.1:9396")
    health_addr: Endpoint = health_flag("127.0.0.1:9397")
    webhook_addr: Endpoint = webhook_flag(":9444")
    enable_egress: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.EGRESS,
        help="serve Egresses: router pods for egress NAT",
    )
    egress_port: int = flag(
        "5555",
        parse=parse_integer(1, 65535),
        group=Group.EGRESS,
        help="UDP port of the tunnels; coild must be told the same",
    )
    egress_image: str = flag(
        "",
        parse=parse_optional_text,
        group=Group.EGRESS,
        help="image of the router pods; if not given, that of this controller's own pod",
    )
    allow_privileged_templates: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.EGRESS,
        help="let Egresses give router pods any privilege, such as host namespaces, hostPath and more capabilities; "
        "whoever may write Egresses may then be root on nodes",
    )
    cluster_cidr: tuple[IPNetwork, ...] = flag(
        "",
        parse=parse_networks,
        group=Group.EGRESS,
        help="networks between commas; further networks of the cluster that no object names, for --cluster-networks",
    )
    enable_egress_policies: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.EIP,
        help="serve the kinds EgressPolicy, EgressClusterPolicy and EgressClusterInfo of egressgateway 0.6",
    )
    eip_cluster_cidr: tuple[IPNetwork, ...] = flag(
        "",
        parse=parse_networks,
        group=Group.EIP,
        help="networks between commas; what nodes' agents are given as --cluster-cidr, beside the ConfigMap",
    )
    resync_interval: float = flag(
        "1h",
        parse=parse_period,
        group=Group.PROCESS,
        help="how often everything is compared with the API server, whatever has happened",
    )
    enable_eip: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.EIP,
        help="serve EgressGateways and EgressGatewayPolicies: floating egress addresses",
    )
    tunnel_ipv4_subnet: IPv4Network = flag(
        "172.31.0.0/16",
        parse=parse_ipv4_network,
        group=Group.EIP,
        help="where the addresses of nodes' tunnels are taken from",
    )
    tunnel_ipv6_subnet: IPv6Network = flag(
        "fd11::/112",
        parse=parse_ipv6_network,
        group=Group.EIP,
        help="where the IPv6 addresses of nodes' tunnels are taken from",
    )
    policies_per_gateway: int = flag(
        "2000",
        parse=parse_integer(0, 65000),
        group=Group.EIP,
        help="how many EgressGatewayPolicies an EgressGateway serves; its status is one object, which must stay small "
        "enough for etcd",
    )
    slice_endpoints: int = flag(
        str(SLICE_ENDPOINTS),
        parse=parse_integer(1, 1000),
        group=Group.EIP,
        help="how many pods an EgressEndpointSlice has at most",
    )
    pod_namespace: str = variable(
        "COIL_POD_NAMESPACE", parse=parse_optional_text, default="", help="where this controller's own pod is"
    )
    pod_name: str = variable(
        "COIL_POD_NAME", parse=parse_optional_text, default="", help="the name of this controller's own pod"
    )
