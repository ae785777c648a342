"""EgressTunnel: one node's end of the mesh that carries policy traffic to gateway nodes, as the API server stores it.

Its name is the Node's. The controller writes addresses, hardware address and mark, and what it knows of the node; the
agent on the node writes `parent`, `publicKey`, `phase` and the time. All of it is status: nobody configures a tunnel.
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from coil.crd.meta import Condition, ObjectMeta, Struct
from coil.crd.names import EIP_GROUP, EIP_VERSION
from coil.crd.resource import Resource


class TunnelPhase(StrEnum):
    PENDING = "Pending"
    """Made, without what the controller gives it."""
    INIT = "Init"
    """The controller has given all; the agent has still to set it up."""
    FAILED = "Failed"
    READY = "Ready"
    HEARTBEAT_TIMEOUT = "HeartbeatTimeout"
    """A gateway whose agent has not renewed its lease."""
    NODE_NOT_READY = "NodeNotReady"


class TunnelParent(Struct, frozen=True, kw_only=True):
    """The link that carries the tunnel, with its addresses and their prefix lengths."""

    name: str = ""
    ipv4: str = ""
    ipv6: str = ""


class TunnelEnd(Struct, frozen=True, kw_only=True):
    """`public_key` is the node's own, of WireGuard, where the mesh is encrypted."""

    ipv4: str = ""
    ipv6: str = ""
    mac: str = ""
    public_key: str = ""
    parent: TunnelParent = TunnelParent()


class EgressTunnelStatus(Struct, frozen=True, kw_only=True):
    """`mark` is written as `0x26000100`. `phase` stays text: an unknown one is not Ready.

    `node_addresses` and `pod_cidrs` are the Node's: what belongs to the cluster is nobody's egress traffic.
    """

    tunnel: TunnelEnd = TunnelEnd()
    phase: str = ""
    mark: str = ""
    last_heartbeat_time: datetime | None = None
    node_addresses: tuple[str, ...] = ()
    # The API's names of such fields write "CIDRs".
    pod_cidrs: tuple[str, ...] = msgspec.field(name="podCIDRs", default=())
    conditions: tuple[Condition, ...] = ()


class EgressTunnel(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    status: EgressTunnelStatus = EgressTunnelStatus()


EGRESS_TUNNELS: Resource[EgressTunnel] = Resource(
    EIP_GROUP, EIP_VERSION, "egresstunnels", "EgressTunnel", namespaced=False, type=EgressTunnel
)
