"""What a node's admin may set. The names and defaults are those of Coil v2; a few are new."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from coil.crd.names import NodeName
from coil.kernel.family import IPNetwork
from coil.kernel.link import parse_link_name
from coil.kernel.nft_table import PortChoice
from coil.podnet.plan import RoutePolicy
from coil.runtime.flag import (
    Endpoint,
    Group,
    flag,
    kind,
    parse_boolean,
    parse_duration,
    parse_integer,
    parse_networks,
    parse_optional_endpoint,
    parse_optional_integer,
    parse_optional_path,
    parse_optional_text,
    parse_optional_url,
    parse_path,
    parse_period,
    parse_text,
    variable,
)
from coil.runtime.node_page_flag import node_page_flag
from coil.runtime.settings import (
    ApiSettings,
    ClusterNetworksSettings,
    FrameSettings,
    NodeSysctlSettings,
    health_flag,
    metrics_flag,
)

_TABLES = parse_integer(1, 2**32 - 1)
_LEAST_PROTOCOL: Final = 5
_PROTOCOLS = parse_integer(_LEAST_PROTOCOL, 255)
_PROTOCOL: Final = 30
_PRIORITIES = parse_integer(1, 32765)
_ADDRESSES = parse_optional_integer(65536)
_INTERFACES = parse_optional_integer(1024)

POOL_JOURNAL: Final = Path("/run/coild.journal")
ENI_JOURNAL: Final = Path("/var/lib/coil/eni.journal")
"""Unlike a pool's, an interface's addresses are still cooling down after a reboot."""
NEUTRON_JOURNAL: Final = Path("/var/lib/coil/neutron.journal")
"""What was plugged in before a reboot is still to be unplugged after it."""
VXLAN_PORT: Final = 7790
"""Beside the mesh of the EIP gateways (7789), so that a firewall has one range. Not the kernel's default (8472), which
Flannel and Cilium use, nor IANA's (4789), which Neutron's own agents, Docker and Antrea use: two VXLAN links of one
port cannot have the same identifier, and each program would see the other's packets.
"""
PLUGIN_SECONDS: Final = 60.0
"""What the plugin gives an ADD (`coil_cni.plugin.TIMEOUT`)."""
_WIRING_SECONDS: Final = 5.0
"""Of an ADD, what is left for all but its waits."""


class AddressSourceName(StrEnum):
    """Where the pods' addresses come from."""

    POOLS = "pools"
    AWS_ENI = "aws-eni"
    NEUTRON = "neutron"


class HostAddress(StrEnum):
    """What the host end of each veth carries, which is the pods' gateway."""

    LINK_LOCAL = "link-local"
    NODE_IP = "node-ip"


@kind("link-local|node-ip")
def _parse_host_address(text: str) -> HostAddress:
    try:
        return HostAddress(text)
    except ValueError:
        raise ValueError("link-local or node-ip") from None


_PORT_CHOICES: Final = {
    "fully-random": PortChoice.FULLY_RANDOM,
    "plain": PortChoice.RANDOM,
    "off": PortChoice.OWN,
    # What amazon-vpc-cni-k8s calls these.
    "prng": PortChoice.FULLY_RANDOM,
    "hashrandom": PortChoice.RANDOM,
    "none": PortChoice.OWN,
}


@kind("NAME")
def parse_bridge(text: str) -> str:
    """The name of a link."""
    return parse_link_name(text)


@kind("pools|aws-eni|neutron")
def _parse_address_source(text: str) -> AddressSourceName:
    try:
        return AddressSourceName(text)
    except ValueError:
        raise ValueError("pools, aws-eni or neutron") from None


@kind("fully-random|plain|off")
def _parse_port_choice(text: str) -> PortChoice:
    try:
        return _PORT_CHOICES[text]
    except KeyError:
        raise ValueError("fully-random, plain or off") from None


@kind("CIDR,CIDR")
def _parse_ipv4_networks(text: str) -> tuple[IPv4Network, ...]:
    try:
        return tuple(IPv4Network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError("a list of IPv4 networks such as 10.0.0.0/8,192.168.0.0/16") from None


@kind("NAME,NAME")
def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@kind("true|false")
def _parse_optional_boolean(text: str) -> bool | None:
    return parse_boolean(text) if text else None


@kind("NODE")
def _parse_node_name(text: str) -> NodeName:
    return NodeName(parse_text(text))


@dataclass(frozen=True, kw_only=True)
class Settings(ClusterNetworksSettings, NodeSysctlSettings, ApiSettings, FrameSettings):
    """coild's settings; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag("127.0.0.1:9384")
    health_addr: Endpoint = health_flag("127.0.0.1:9385")
    inspect_addr: Endpoint | None = flag(
        "127.0.0.1:6666",
        parse=parse_optional_endpoint,
        group=Group.INSPECTION,
        help="address of /ip-manager; without a host, every address; off for none",
    )
    inspect_page_addr: Endpoint | None = node_page_flag()  # noqa: RUF009 - a flag's value cannot be changed
    node_name: NodeName = variable("COIL_NODE_NAME", parse=_parse_node_name, help="the Node this process runs on")
    socket: Path = flag(
        "/run/coild.sock", parse=parse_path, group=Group.PODS, help="the Unix socket that the plugin calls"
    )
    pod_table_id: int = flag(
        "116",
        parse=parse_integer(0, 2**32 - 1),
        group=Group.PODS,
        help="routing table of the routes to this node's pods; 0 with --enable-ipam=false only",
    )
    pod_rule_prio: int = flag(
        "2000", parse=_PRIORITIES, group=Group.PODS, help="priority of the rule that looks up the pod table"
    )
    export_table_id: int = flag(
        "119", parse=_TABLES, group=Group.ROUTES, help="routing table that a routing daemon announces"
    )
    protocol_id: int = flag(
        str(_PROTOCOL),
        parse=parse_integer(0, 255),
        group=Group.ROUTES,
        help=f"protocol of the routes that coild makes, {_LEAST_PROTOCOL} or above; with --enable-ipam=false, a lower "
        f"one stands for {_PROTOCOL}",
    )
    enable_ipam: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.PODS,
        help="assign addresses to pods and wire them; if false, coild only serves egress NAT, chained after another "
        "plugin",
    )
    enable_egress: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.EGRESS,
        help="set up tunnels for pods that name an Egress in an annotation; nodes with such pods need the kernel "
        "modules fou and fou6",
    )
    enable_originating_only: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.EGRESS,
        help="clients of an Egress answer connections from outside on the way these came in, not through the tunnel",
    )
    egress_fail_open: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.EGRESS,
        help="start a pod although the Egress that it names is missing, invalid or unknown, and let it reach with its "
        "own address what no Egress serves; without, such a pod waits, and what its Egress was for is unreachable",
    )
    verify_routers: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.EGRESS,
        help="drop and count encapsulated packets for clients of an Egress that do not come from its router pods, as "
        "the EndpointSlices of its Service have them",
    )
    egress_port: int = flag(
        "5555", parse=parse_integer(1, 65535), group=Group.EGRESS, help="UDP port of the tunnels, the same everywhere"
    )
    host_port_addresses: tuple[IPNetwork, ...] = flag(
        "",
        parse=parse_networks,
        group=Group.PODS,
        help="networks between commas; host ports are served at the node's addresses in them, too, beside those that "
        "its Node has",
    )
    node_conditions: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.PODS,
        help="say in conditions of the Node when other programs drop packets of pods, or keep removing routes; takes "
        "the right to patch the status of nodes",
    )
    set_network_unavailable: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.PODS,
        help="set the Node's condition NetworkUnavailable to False once pods can be connected, where a cloud provider "
        "leaves it True; takes the right to patch the status of nodes",
    )
    eip_agent_socket: Path | None = flag(
        "",
        parse=parse_optional_path,
        group=Group.EIP,
        help="the Unix socket of coil-egress-agent-node: a pod starts when the policies that select it hold; if not "
        "given, what it sends first may leave with its own address",
    )
    verify_source: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.PODS,
        help="drop and count what a pod sends with a source that is not one of its addresses; takes a kernel with fib "
        "expressions in nftables",
    )
    compat_calico: bool = flag(
        "false", parse=parse_boolean, group=Group.PODS, help="name host ends of veths as Calico does"
    )
    host_address: HostAddress = flag(
        "link-local",
        parse=_parse_host_address,
        group=Group.PODS,
        help="the pods' gateway: link-local (169.254.1.1 and fe80::1) or node-ip (the Node's InternalIPs)",
    )
    mtu: int = flag(
        "0",
        parse=parse_integer(0, 65535),
        group=Group.PODS,
        help="MTU of the pods in bytes; 0 for that of the node's uplink",
    )
    address_source: AddressSourceName = flag(
        "pools",
        parse=_parse_address_source,
        group=Group.PODS,
        help="where the pods' addresses come from: address pools, the node's network interfaces in AWS, or the ports "
        "that coil-raven makes for pods in OpenStack's Neutron",
    )
    cluster_name: str = flag(
        "",
        parse=parse_optional_text,
        env="CLUSTER_NAME",
        group=Group.AWS,
        help="the tag of this cluster's interfaces, by which it tells them from another cluster's",
    )
    warm_eni_target: int = flag(
        "1",
        parse=parse_integer(0, 1024),
        env="WARM_ENI_TARGET",
        group=Group.AWS,
        help="how many interfaces' addresses to keep ready; without effect if one of the other targets is set",
    )
    warm_ip_target: int | None = flag(
        "",
        parse=_ADDRESSES,
        env="WARM_IP_TARGET",
        group=Group.AWS,
        help="how many addresses to keep ready",
    )
    minimum_ip_target: int | None = flag(
        "",
        parse=_ADDRESSES,
        env="MINIMUM_IP_TARGET",
        group=Group.AWS,
        help="how many addresses to have at least, those of pods included",
    )
    warm_prefix_target: int | None = flag(
        "",
        parse=_ADDRESSES,
        env="WARM_PREFIX_TARGET",
        group=Group.AWS,
        help="with prefix delegation, how many prefixes to keep ready; without effect if one of the two above is set",
    )
    max_eni: int | None = flag(
        "",
        parse=_INTERFACES,
        env="MAX_ENI",
        group=Group.AWS,
        help="how many interfaces to use at most, the primary one included; 0 or nothing for as many as EC2 allows",
    )
    enable_prefix_delegation: bool = flag(
        "false",
        parse=parse_boolean,
        env="ENABLE_PREFIX_DELEGATION",
        group=Group.AWS,
        help="have EC2 assign prefixes of 16 addresses, and single ones only where a subnet has no whole prefix left",
    )
    enable_ipv4: bool | None = flag(
        "",
        parse=_parse_optional_boolean,
        env="ENABLE_IPv4",
        group=Group.AWS,
        help="pods get IPv4 addresses; if not given, they do without --enable-ipv6",
    )
    enable_ipv6: bool = flag(
        "false",
        parse=parse_boolean,
        env="ENABLE_IPv6",
        group=Group.AWS,
        help="pods get IPv6 addresses, of a prefix of the primary interface",
    )
    external_snat: bool = flag(
        "false",
        parse=parse_boolean,
        env="AWS_VPC_K8S_CNI_EXTERNALSNAT",
        group=Group.AWS,
        help="leave it to a NAT gateway to translate what pods send out of the VPC",
    )
    randomize_snat: PortChoice = flag(
        "fully-random",
        parse=_parse_port_choice,
        env="AWS_VPC_K8S_CNI_RANDOMIZESNAT",
        group=Group.AWS,
        help="source ports of connections that are translated: drawn freely, by netfilter's plain `random`, or kept if "
        "they are free",
    )
    exclude_snat_cidrs: tuple[IPv4Network, ...] = flag(
        "",
        parse=_parse_ipv4_networks,
        env="AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS",
        group=Group.AWS,
        help="networks outside the VPC that pods reach with their own addresses",
    )
    allow_pod_metadata_access: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.AWS,
        help="let pods reach the instance's metadata service, and with it the credentials of the instance's role",
    )
    security_groups: tuple[str, ...] = flag(
        "",
        parse=_parse_names,
        group=Group.AWS,
        help="IDs of the security groups of new interfaces; those of the primary interface if not given",
    )
    eni_resync_interval: float = flag(
        "60s",
        parse=parse_period,
        group=Group.AWS,
        help="within what time to notice what others have changed in the node's interfaces: the metadata service is "
        "asked twice as often, and EC2 if that tells something new, or nothing",
    )
    eni_unneeded_time: float = flag(
        "10m",
        parse=parse_period,
        group=Group.AWS,
        help="how long addresses and interfaces must be surplus before they are given back to EC2; fetching them again "
        "costs calls, and all nodes of the account share one rate of calls",
    )
    eni_describe_lag: float = flag(
        "60s",
        parse=parse_period,
        group=Group.AWS,
        help="how long what EC2 describes may lag behind calls that it has carried out: for that time the node's own "
        "changes stand against it, and a call that was not answered is not repeated",
    )
    ec2_endpoint: str | None = flag(
        "", parse=parse_optional_url, group=Group.AWS, help="EC2's API; that of the instance's region if not given"
    )
    metadata_endpoint: str | None = flag(
        "",
        parse=parse_optional_url,
        group=Group.AWS,
        help="the instance's metadata service; its link-local address if not given",
    )
    neutron_binding_dir: Path = flag(
        "/usr/libexec/kuryr",
        parse=parse_path,
        group=Group.NEUTRON,
        help="folder of the executables that plug in ports, each named like the type of its ports",
    )
    neutron_openvswitch_socket: Path | None = flag(
        "",
        parse=parse_optional_path,
        group=Group.NEUTRON,
        help="socket of Open vSwitch's database, to plug in ports of type openvswitch; an executable does that if not "
        "given",
    )
    neutron_openvswitch_bridge: str = flag(
        "br-int",
        parse=parse_bridge,
        group=Group.NEUTRON,
        help="Open vSwitch's integration bridge, as Neutron's agent on the node has it",
    )
    neutron_midolman_socket: Path | None = flag(
        "",
        parse=parse_optional_path,
        group=Group.NEUTRON,
        help="socket of MidoNet's agent, to plug in ports of type midonet; an executable does that if not given",
    )
    neutron_vxlan_port: int = flag(
        str(VXLAN_PORT),
        parse=parse_integer(1, 65535),
        group=Group.NEUTRON,
        help="UDP port of VXLAN between nodes, for ports of type bridge; the same on all nodes",
    )
    neutron_vxlan_checksum_offload: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.NEUTRON,
        help="leave checksums of packets in VXLAN to the node's network interface; if false, the kernel computes them, "
        "for interfaces that get them wrong",
    )
    neutron_bind_timeout: float = flag(
        "10s",
        parse=parse_period,
        group=Group.NEUTRON,
        help="how long plugging in a port, or unplugging it, may take",
    )
    neutron_active_timeout: float = flag(
        "30s",
        parse=parse_duration,
        group=Group.NEUTRON,
        help="how long an ADD waits, once the pod's port is plugged in, for Neutron to report it as ACTIVE; 0 for "
        "not at all",
    )
    addressblock_gc_interval: float = flag(
        "5m",
        parse=parse_period,
        group=Group.POOLS,
        help="interval between two collections of unused addresses and blocks",
    )
    cooling: float = flag(
        "30s",
        parse=parse_duration,
        group=Group.POOLS,
        help="how long a freed address, or a block without pods, stays unused",
    )
    warm_addresses: int = flag(
        "0",
        parse=parse_integer(0, 4096),
        group=Group.POOLS,
        help="free addresses to keep ready in each pool that pods of this node use",
    )
    journal: Path | None = flag(
        str(POOL_JOURNAL),
        parse=parse_optional_path,
        group=Group.POOLS,
        help="file that keeps cooldowns and owners of addresses across restarts; none if empty. With aws-eni and "
        f"neutron it is to survive a reboot, and is {ENI_JOURNAL} or {NEUTRON_JOURNAL} by default",
    )
    acquire_timeout: float = flag(
        "10s",
        parse=parse_period,
        group=Group.POOLS,
        help="how long an ADD may wait for an address; with neutron, for the annotation that names the pod's port",
    )
    clear_routes_on_shutdown: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.ROUTES,
        help="when this process is stopped and the Node is gone, withdraw the exported routes, and those of "
        "--route-sync",
    )
    route_sync: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.ROUTES,
        help="route the other nodes' blocks via these nodes' InternalIPs: for a flat layer 2 network without a "
        "routing daemon",
    )
    route_sync_protocol_id: int = flag(
        "31",
        parse=_PROTOCOLS,
        group=Group.ROUTES,
        help="protocol of the routes that --route-sync makes in the main table",
    )
    route_sync_interval: float = flag(
        "1m",
        parse=parse_period,
        group=Group.ROUTES,
        help="interval between two comparisons of these routes with the kernel",
    )

    def __post_init__(self) -> None:
        for is_wrong, why in _contradictions(self):
            if is_wrong:
                raise ValueError(why)

    @property
    def route_protocol(self) -> int:
        """Coil v2's manifests for a chained coild say 2, the kernel's own: its routes would pass for coild's."""
        return self.protocol_id if self.protocol_id >= _LEAST_PROTOCOL else _PROTOCOL

    @property
    def route_policy(self) -> RoutePolicy:
        """The numbers by which the kernel's side knows this process."""
        return RoutePolicy(
            pod_table=self.pod_table_id,
            rule_priority=self.pod_rule_prio,
            export_table=self.export_table_id,
            protocol=self.route_protocol,
        )

    @property
    def eni_journal(self) -> Path | None:
        """Where the source aws-eni keeps its journal: unless told otherwise, where it survives a reboot."""
        return ENI_JOURNAL if self.journal == POOL_JOURNAL else self.journal

    @property
    def neutron_journal(self) -> Path | None:
        """The same for the source neutron."""
        return NEUTRON_JOURNAL if self.journal == POOL_JOURNAL else self.journal


def _contradictions(settings: Settings) -> Iterator[tuple[bool, str]]:
    """What cannot all be meant, each with whether it is so and a sentence."""
    yield (
        not settings.enable_ipam and not settings.enable_egress,
        "--enable-ipam=false and --enable-egress=false leave coild nothing to do",
    )
    yield (
        settings.enable_ipam and not settings.pod_table_id,
        "--pod-table-id=0 is no table: coild needs one for the routes to the pods, unless --enable-ipam=false",
    )
    yield (
        settings.enable_ipam and settings.protocol_id < _LEAST_PROTOCOL,
        f"--protocol-id={settings.protocol_id} is a protocol of the kernel's: choose one from {_LEAST_PROTOCOL} to 255",
    )
    if settings.address_source is AddressSourceName.NEUTRON:
        yield from _contradictions_with_neutron(settings)
    if settings.address_source is not AddressSourceName.AWS_ENI:
        return
    from coil.eni.node_plan import TABLES  # here, as nothing of it is for nodes with pools

    for is_wrong, why in (
        (not settings.enable_ipam, "--enable-ipam=false says that another plugin gives the pods their addresses"),
        (settings.route_sync, "--route-sync is for address pools: the VPC routes to the pods itself"),
        (
            settings.clear_routes_on_shutdown,
            "--clear-routes-on-shutdown is for address pools: no routes are exported",
        ),
        (settings.warm_addresses > 0, "--warm-addresses is for address pools: set WARM_IP_TARGET"),
        (
            settings.host_address is HostAddress.NODE_IP,
            "--host-address=node-ip is for address pools: the gateway of the pods is 169.254.1.1 or fe80::1",
        ),
        (
            settings.pod_table_id in TABLES,
            f"--pod-table-id={settings.pod_table_id} is the table of an interface: these have {TABLES[0]} to "
            f"{TABLES[-1]}",
        ),
        (not settings.cluster_name, "--cluster-name must be given, or the interfaces could be another cluster's"),
        (
            settings.enable_ipv6 and settings.enable_ipv4 is True,
            "--enable-ipv4 and --enable-ipv6 exclude each other: pods have addresses of one family",
        ),
        (
            not settings.enable_ipv6 and settings.enable_ipv4 is False,
            "--enable-ipv4=false without --enable-ipv6 leaves the pods no address",
        ),
    ):
        yield is_wrong, f"--address-source=aws-eni: {why}"


def _contradictions_with_neutron(settings: Settings) -> Iterator[tuple[bool, str]]:
    waits = settings.acquire_timeout + settings.neutron_bind_timeout + settings.neutron_active_timeout
    for is_wrong, why in (
        (not settings.enable_ipam, "--enable-ipam=false says that another plugin gives the pods their addresses"),
        (
            settings.enable_egress,
            "pods in Neutron's networks have no egress NAT yet, and what their Egresses are for would leave by the "
            "network's router: set --enable-egress=false",
        ),
        (settings.route_sync, "--route-sync is for address pools: Neutron's routers route to the pods"),
        (
            settings.clear_routes_on_shutdown,
            "--clear-routes-on-shutdown is for address pools: no routes are exported",
        ),
        (settings.warm_addresses > 0, "--warm-addresses is for address pools: a port is the pod's"),
        (
            settings.host_address is HostAddress.NODE_IP,
            "--host-address=node-ip is for address pools: the gateway of the pods is that of their subnet",
        ),
        (
            not settings.neutron_binding_dir.is_absolute(),
            f"--neutron-binding-dir={settings.neutron_binding_dir} must be an absolute path",
        ),
        (
            waits + _WIRING_SECONDS > PLUGIN_SECONDS,
            f"--acquire-timeout, --neutron-bind-timeout and --neutron-active-timeout are {waits:g} s together, and an "
            f"ADD has {PLUGIN_SECONDS:g} s: leave {_WIRING_SECONDS:g} s of these",
        ),
    ):
        yield is_wrong, f"--address-source=neutron: {why}"
