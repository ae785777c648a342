"""What the DaemonSet tells the agent of a node."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from coil.crd.names import is_object_name
from coil.eip.gateway_lease import LONGEST_FENCE
from coil.kernel.family import IPNetwork
from coil.runtime.flag import (
    Endpoint,
    Group,
    flag,
    kind,
    parse_boolean,
    parse_duration,
    parse_integer,
    parse_networks,
    parse_optional_path,
    parse_patterns,
    parse_period,
    parse_word,
)
from coil.runtime.settings import (
    ApiSettings,
    ClusterNetworksSettings,
    EipLeaseSettings,
    EipLimitSettings,
    FrameSettings,
    NodeSysctlSettings,
    health_flag,
    metrics_flag,
)

SHORTEST_FENCE: Final = 0.3
"""Below it a renewal would have less than a tenth of a second for its way to the API server's store and back."""


@kind("NODE")
def parse_node_name(text: str) -> str:
    """The name of a Node."""
    if not is_object_name(text):
        raise ValueError("the name of a Node")
    return text


@kind("DURATION")
def parse_fence(text: str) -> float:
    """How long a renewal is good for."""
    seconds = parse_duration(text)
    if not SHORTEST_FENCE <= seconds <= LONGEST_FENCE:
        raise ValueError(f'a length of time from "{SHORTEST_FENCE * 1000:g}ms" to "{LONGEST_FENCE:g}s"')
    return seconds


class Encryption(StrEnum):
    """Of the mesh."""

    NONE = "none"
    WIREGUARD = "wireguard"


@kind("none|wireguard")
def parse_encryption(text: str) -> Encryption:
    """What carries the mesh."""
    return Encryption(parse_word(*Encryption)(text))


@dataclass(frozen=True, kw_only=True)
class Settings(
    ClusterNetworksSettings, EipLeaseSettings, EipLimitSettings, NodeSysctlSettings, ApiSettings, FrameSettings
):
    """The settings of coil-egress-agent on a node; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag("127.0.0.1:9398")
    health_addr: Endpoint = health_flag("127.0.0.1:9399")
    node_name: str = flag(
        None, parse=parse_node_name, env="COIL_NODE_NAME", group=Group.PROCESS, help="the Node that this runs on"
    )
    eip_lease: float = flag(
        "600ms",
        parse=parse_fence,
        group=Group.EIP,
        help="how long a gateway carries its addresses after the last renewal of its Lease that was acknowledged; it "
        "is renewed three times as often",
    )
    tunnel_port: int = flag(
        "7789", parse=parse_integer(1, 65535), group=Group.EIP, help="UDP port of the mesh; the same on all nodes"
    )
    tunnel_vni: int = flag(
        "100", parse=parse_integer(1, 2**24 - 1), group=Group.EIP, help="VNI of the mesh; the same on all nodes"
    )
    tunnel_encryption: Encryption = flag(
        "none",
        parse=parse_encryption,
        group=Group.EIP,
        help="what carries the mesh: none, or wireguard; the same on all nodes, as nodes that differ in it do not "
        "reach each other",
    )
    wireguard_port: int = flag(
        "7790",
        parse=parse_integer(1, 65535),
        group=Group.EIP,
        help="UDP port of the encrypted mesh; the same on all nodes",
    )
    tunnel_checksum_offload: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.EIP,
        help="leave checksums of packets in the mesh to the node's network interface; if false, the kernel computes "
        "them, for interfaces that get them wrong",
    )
    cluster_cidr: tuple[IPNetwork, ...] = flag(
        "",
        parse=parse_networks,
        group=Group.EIP,
        help="networks of the cluster beside its nodes and pods, between commas: the Services', and others that "
        "policies without destinations are not about",
    )
    announced_interfaces_to_exclude: tuple[re.Pattern[str], ...] = flag(
        "",
        parse=parse_patterns,
        group=Group.EIP,
        help="network interfaces on which no floating address is announced: regular expressions, between commas, each "
        "of which matches any part of a name",
    )
    keep_source: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.EIP,
        help="keep what enters the mesh from being masqueraded by the CNI plugin",
    )
    verify_source: bool = flag(
        "true",
        parse=parse_boolean,
        group=Group.EIP,
        help="drop and count what policies are about and has not come by the link to which the node routes its "
        "source; false where somebody else does, as coild",
    )
    forward_shim: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.EIP,
        help="have iptables' chain FORWARD accept policy traffic where its policy is DROP",
    )
    pod_start_socket: Path | None = flag(
        "",
        parse=parse_optional_path,
        group=Group.EIP,
        help="the Unix socket at which coild tells of pods that are about to start",
    )
    resync_interval: float = flag(
        "5m", parse=parse_period, group=Group.PROCESS, help="how often the kernel is compared with what it should hold"
    )
    cleanup: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.PROCESS,
        help="undo all that the agent has made on this node, and exit",
    )
