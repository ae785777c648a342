"""What an administrator may set."""

from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from coil.kernel.family import Family, IPNetwork
from coil.manager.election import ElectionSettings
from coil.neutron.handoff import BRIDGE, parse_binding_type
from coil.neutron.identity import cluster_id
from coil.neutron.provider import PROVIDERS, Provider
from coil.neutron.supernet import Supernet
from coil.neutron.vip_range import VipRange
from coil.runtime.flag import (
    Endpoint,
    Group,
    flag,
    kind,
    parse_boolean,
    parse_duration,
    parse_integer,
    parse_optional_endpoint,
    parse_optional_path,
    parse_optional_text,
    parse_path,
    parse_period,
)
from coil.runtime.settings import ApiSettings, FrameSettings, health_flag, metrics_flag
from coil_raven.raven_conf import DEFAULT_PATH as RAVEN_CONF

NAMESPACE_LENGTHS: Final = {Family.IPV4: 16, Family.IPV6: 64}
"""Prefix lengths of what a namespace gets: a /16 as the proposal has it, and what IPv6 subnets have (RFC 4291)."""
_LONGEST_IPV4: Final = 28


@kind("CIDR")
def parse_supernets(text: str) -> tuple[Supernet, ...]:
    """At most one of each family, each with the prefix length of its parts: `10.0.0.0/8/16,fd00:1::/48/64`.

    Without a length: 16 for IPv4, or 8 bits more than a supernet that is no larger, up to 28; 64 for IPv6.
    """
    supernets: list[Supernet] = []
    for entry in text.split(","):
        address, _, rest = entry.strip().partition("/")
        length, _, part = rest.partition("/")
        network = ip_network(f"{address}/{length}" if length else address)
        supernets.append(Supernet(network, int(part) if part else _namespace_length(network)))
    if len({supernet.network.version for supernet in supernets}) != len(supernets):
        raise ValueError("at most one supernet of each family")
    return tuple(supernets)


def _namespace_length(supernet: IPNetwork) -> int:
    length = NAMESPACE_LENGTHS[Family.of(supernet)]
    if supernet.version == 6 or supernet.prefixlen < length:
        return length
    return min(supernet.prefixlen + 8, _LONGEST_IPV4)


@kind("NAME")
def parse_cluster_name(text: str) -> str:
    """Up to 12 lowercase letters, digits and hyphens; "" has the cluster identified by the UID of kube-system."""
    return cluster_id("", text) if text else ""


@kind("NAME")
def parse_port_type(text: str) -> str:
    """The name of what plugs in ports: lowercase letters, digits and hyphens."""
    return parse_binding_type(text)


@kind("CIDR[=CIDR][,CIDR[=CIDR]]")
def parse_service_cidrs(text: str) -> tuple[VipRange, ...]:
    """At most one of each family: `10.96.0.0/12,fd00:96::/112=fd00:96::/111`. "" is none."""
    ranges: list[VipRange] = []
    for entry in filter(None, text.split(",")):
        services, _, subnet = (part.strip() for part in entry.partition("="))
        network = ip_network(services)
        ranges.append(VipRange(network, ip_network(subnet)) if subnet else VipRange.around(network))
    if len({each.services.version for each in ranges}) != len(ranges):
        raise ValueError("at most one Service network of each family")
    return tuple(ranges)


@kind("NAME")
def parse_provider(text: str) -> Provider:
    """One whose abilities are known."""
    if text not in PROVIDERS:
        raise ValueError(f"{text!r} is not among {', '.join(sorted(PROVIDERS))}")
    return PROVIDERS[text]


@dataclass(frozen=True, kw_only=True)
class Settings(ElectionSettings, ApiSettings, FrameSettings):
    """coil-raven's settings; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag("127.0.0.1:9394")
    health_addr: Endpoint = health_flag("127.0.0.1:9395")
    inspect_addr: Endpoint | None = flag(
        "127.0.0.1:9393",
        parse=parse_optional_endpoint,
        group=Group.INSPECTION,
        help="address of /ip-manager; without a host, every address; off for none",
    )
    cluster_name: str = flag(
        "",
        parse=parse_cluster_name,
        env="CLUSTER_NAME",
        group=Group.NEUTRON,
        help="the cluster in the names of its objects in Neutron; derived from the UID of kube-system if not given",
    )
    supernets: tuple[Supernet, ...] = flag(
        "10.0.0.0/8",
        parse=parse_supernets,
        group=Group.NEUTRON,
        help="what each namespace gets a part of, with the part's prefix length after another slash (10.0.0.0/8/16); "
        "several by commas, one for each IP family",
    )
    router: str = flag(
        "",
        parse=parse_optional_text,
        group=Group.NEUTRON,
        help="name of the router that connects the namespaces; one is created if not given",
    )
    public_network: str = flag(
        "",
        parse=parse_optional_text,
        group=Group.NEUTRON,
        help="name of the external network, or the CIDR of its subnet, that the created router has its gateway on; "
        "without a gateway if not given",
    )
    project: str = flag(
        "",
        parse=parse_optional_text,
        group=Group.NEUTRON,
        help="ID of the project of namespaces without the annotation kuryr.org/project; the account's if not given",
    )
    port_type: str = flag(
        BRIDGE,
        parse=parse_port_type,
        group=Group.NEUTRON,
        help="what a node is to plug in ports with",
    )
    port_pool_size: int = flag(
        "0",
        parse=parse_integer(0, 100),
        group=Group.NEUTRON,
        help="how many ports wait for pods, for each namespace on each node that has pods of it; 0 for none",
    )
    port_cooling: float = flag(
        "30s",
        parse=parse_duration,
        group=Group.NEUTRON,
        help="how long the port of a pod that has ended is kept, so that no other pod gets its address",
    )
    isolate_namespaces: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.NEUTRON,
        help="have the security groups admit the pods of the same namespace only",
    )
    service_cidrs: tuple[VipRange, ...] = flag(
        "",
        parse=parse_service_cidrs,
        group=Group.NEUTRON,
        help="the cluster's Service networks, as the API server has them, by commas, one for each IP family; a subnet "
        "around one may follow after an equals sign (10.96.0.0/12=10.96.0.0/11). Without any, no load balancers",
    )
    provider: Provider = flag(
        "amphora",
        parse=parse_provider,
        group=Group.NEUTRON,
        help="Octavia's provider of the load balancers: amphora or ovn",
    )
    load_balancer_class: str = flag(
        "coil.cybozu.com/octavia",
        parse=parse_optional_text,
        group=Group.NEUTRON,
        help="the loadBalancerClass of Services that get floating IPs; those without one do, too",
    )
    concurrency: int = flag(
        "8", parse=parse_integer(1, 64), group=Group.NEUTRON, help="calls to OpenStack that are under way at a time"
    )
    gc_interval: float = flag(
        "10m",
        parse=parse_period,
        group=Group.NEUTRON,
        help="how often ports and networks without a pod or namespace are looked for",
    )
    raven_conf: Path = flag(
        str(RAVEN_CONF),
        parse=parse_path,
        group=Group.NEUTRON,
        help="Kuryr's configuration of Raven, read if it is there; flags and environment win",
    )
    clouds_file: Path | None = flag(
        "",
        parse=parse_optional_path,
        env="OS_CLIENT_CONFIG_FILE",
        group=Group.NEUTRON,
        help="clouds.yaml with the credentials; the variables OS_* if not given",
    )
    cloud: str = flag(
        "", parse=parse_optional_text, env="OS_CLOUD", group=Group.NEUTRON, help="which cloud of clouds.yaml"
    )
