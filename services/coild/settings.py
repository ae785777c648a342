"""What a node's admin may set. The names and defaults are those of Coil v2; a few are new."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coil.crd.names import NodeName
from coil.podnet.plan import RoutePolicy
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
    parse_path,
    parse_period,
    parse_text,
    variable,
)
from coil.runtime.settings import ApiSettings, FrameSettings, health_flag, metrics_flag

_TABLES = parse_integer(1, 2**32 - 1)
_PROTOCOLS = parse_integer(5, 255)
_PRIORITIES = parse_integer(1, 32765)


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


@kind("NODE")
def _parse_node_name(text: str) -> NodeName:
    return NodeName(parse_text(text))


@dataclass(frozen=True, kw_only=True)
class Settings(ApiSettings, FrameSettings):
    """coild's settings; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag(":9384")
    health_addr: Endpoint = health_flag(":9385")
    inspect_addr: Endpoint | None = flag(
        ":6666",
        parse=parse_optional_endpoint,
        group=Group.INSPECTION,
        help="address of /ip-manager; without a host, 127.0.0.1; off for none",
    )
    inspect_page_addr: Endpoint | None = flag(
        ":9383",
        parse=parse_optional_endpoint,
        group=Group.INSPECTION,
        help="another address of the same page, for browsers, which refuse port 6666; off for none",
    )
    node_name: NodeName = variable("COIL_NODE_NAME", parse=_parse_node_name, help="the Node this process runs on")
    socket: Path = flag(
        "/run/coild.sock", parse=parse_path, group=Group.PODS, help="the Unix socket that the plugin calls"
    )
    pod_table_id: int = flag(
        "116", parse=_TABLES, group=Group.PODS, help="routing table of the routes to this node's pods"
    )
    pod_rule_prio: int = flag(
        "2000", parse=_PRIORITIES, group=Group.PODS, help="priority of the rule that looks up the pod table"
    )
    export_table_id: int = flag(
        "119", parse=_TABLES, group=Group.ROUTES, help="routing table that a routing daemon announces"
    )
    protocol_id: int = flag("30", parse=_PROTOCOLS, group=Group.ROUTES, help="protocol of the routes that coild makes")
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
    egress_port: int = flag(
        "5555", parse=parse_integer(1, 65535), group=Group.EGRESS, help="UDP port of the tunnels, the same everywhere"
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
        "/run/coild.journal",
        parse=parse_optional_path,
        group=Group.POOLS,
        help="file that keeps cooldowns and owners of addresses across restarts; none if empty",
    )
    acquire_timeout: float = flag(
        "10s", parse=parse_period, group=Group.POOLS, help="how long an ADD may wait for an address"
    )
    clear_routes_on_shutdown: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.ROUTES,
        help="withdraw the exported routes, and those of --route-sync, when this process is stopped",
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

    @property
    def route_policy(self) -> RoutePolicy:
        """The numbers by which the kernel's side knows this process."""
        return RoutePolicy(
            pod_table=self.pod_table_id,
            rule_priority=self.pod_rule_prio,
            export_table=self.export_table_id,
            protocol=self.protocol_id,
        )
