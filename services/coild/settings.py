"""What a node's admin may set. The names and defaults are those of Coil v2; a few are new."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coil.crd.names import NodeName
from coil.podnet.plan import RoutePolicy
from coil.runtime.duration import parse_duration, parse_period
from coil.runtime.endpoint import Endpoint, parse_optional_endpoint
from coil.runtime.flag import flag, parse_boolean, parse_integer, parse_optional_path, parse_path, parse_text, variable
from coil.runtime.settings import FrameSettings, health_flag, metrics_flag
from coild.addresses.supply import SupplyOptions

_TABLES = parse_integer(1, 2**32 - 1)
_PROTOCOLS = parse_integer(5, 255)
_PRIORITIES = parse_integer(1, 32765)


class HostAddress(StrEnum):
    """What the host end of each veth carries, which is the pods' gateway."""

    LINK_LOCAL = "link-local"
    NODE_IP = "node-ip"


def _parse_host_address(text: str) -> HostAddress:
    try:
        return HostAddress(text)
    except ValueError:
        raise ValueError("link-local or node-ip") from None


def _parse_node_name(text: str) -> NodeName:
    return NodeName(parse_text(text))


@dataclass(frozen=True, kw_only=True)
class Settings(FrameSettings):
    """coild's settings; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag(":9384")
    health_addr: Endpoint = health_flag(":9385")
    inspect_addr: Endpoint | None = flag(
        ":6666", parse=parse_optional_endpoint, help="address of /ip-manager; without a host, 127.0.0.1; off for none"
    )
    inspect_page_addr: Endpoint | None = flag(
        ":9383", parse=parse_optional_endpoint, help="the same for browsers, which refuse port 6666; off for none"
    )
    node_name: NodeName = variable("COIL_NODE_NAME", parse=_parse_node_name, help="the Node this process runs on")
    kubeconfig: Path | None = flag(
        "", parse=parse_optional_path, env="KUBECONFIG", help="how to reach the API server; in-cluster if not given"
    )
    socket: Path = flag("/run/coild.sock", parse=parse_path, help="the Unix socket that the plugin calls")
    pod_table_id: int = flag("116", parse=_TABLES, help="routing table of the routes to this node's pods")
    pod_rule_prio: int = flag("2000", parse=_PRIORITIES, help="priority of the rule that looks up the pod table")
    export_table_id: int = flag("119", parse=_TABLES, help="routing table that a routing daemon announces")
    protocol_id: int = flag("30", parse=_PROTOCOLS, help="protocol of the routes that coild makes")
    enable_ipam: bool = flag(
        "true",
        parse=parse_boolean,
        help="give pods their addresses and wire them; without, this serves egress NAT only, chained after another "
        "plugin that does so",
    )
    enable_egress: bool = flag(
        "true",
        parse=parse_boolean,
        help="give pods that name an Egress in an annotation their tunnels; needs the kernel modules fou and fou6 on "
        "nodes where there are such pods, which are told if they lack",
    )
    enable_originating_only: bool = flag(
        "false",
        parse=parse_boolean,
        help="pods with an Egress answer connections from outside where these came in, not through a tunnel",
    )
    egress_port: int = flag("5555", parse=parse_integer(1, 65535), help="UDP port of the tunnels, the same everywhere")
    compat_calico: bool = flag("false", parse=parse_boolean, help="name host ends of veths as Calico does")
    host_address: HostAddress = flag(
        "link-local",
        parse=_parse_host_address,
        help="the pods' gateway: link-local (169.254.1.1 and fe80::1) or node-ip (the Node's InternalIPs)",
    )
    mtu: int = flag(
        "0", parse=parse_integer(0, 65535), help="MTU of the pods in bytes; 0 for that of the node's uplink"
    )
    addressblock_gc_interval: float = flag(
        "5m", parse=parse_period, help="how often addresses and blocks that nobody uses are looked for"
    )
    cooling: float = flag(
        "30s", parse=parse_duration, help="how long a freed address, and a block without a pod, rests before it is used"
    )
    warm_addresses: int = flag(
        "0",
        parse=parse_integer(0, 4096),
        help="how many free addresses are kept of each pool that a pod here uses, so that the next pods need not wait",
    )
    journal: Path | None = flag(
        "/run/coild.journal",
        parse=parse_optional_path,
        help="a file that tells the next process which addresses still rest, and whose they are; none if empty",
    )
    acquire_timeout: float = flag("10s", parse=parse_period, help="how long an ADD may wait for an address")
    clear_routes_on_shutdown: bool = flag(
        "false",
        parse=parse_boolean,
        help="withdraw the exported routes, and those of --route-sync, when this process is stopped",
    )
    route_sync: bool = flag(
        "false",
        parse=parse_boolean,
        help="route the other nodes' blocks via these nodes' InternalIPs: for a flat layer 2 network without a "
        "routing daemon",
    )
    route_sync_protocol_id: int = flag(
        "31", parse=_PROTOCOLS, help="protocol of the routes that --route-sync makes in the main table"
    )
    route_sync_interval: float = flag(
        "1m", parse=parse_period, help="how often the routes of --route-sync are compared with the kernel's"
    )

    def supply_options(self, node_uid: str) -> SupplyOptions:
        """How addresses are supplied to the pods of the Node with this UID."""
        return SupplyOptions(
            node=self.node_name,
            node_uid=node_uid,
            cooling=self.cooling,
            warm_addresses=self.warm_addresses,
            acquire_timeout=self.acquire_timeout,
            journal=self.journal,
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
