"""The numbers of the tunnels: the same at both ends, and a contract with what is running already."""

from dataclasses import dataclass
from enum import Enum

from coil.kernel.link import LinkName

UPLINK = LinkName("eth0")


class SourcePort(Enum):
    """The UDP source port of what is sent through a tunnel."""

    FIXED = "fixed"
    """The tunnel's own port, which lets a proxy that tracks flows find the way back."""
    AUTO = "auto"
    """The kernel derives one from each inner flow, which lets a proxy spread the flows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelPolicy:
    """`port` is where both ends receive. `uplink` is the link that the pod had before."""

    port: int = 5555
    private_table: int = 117
    """Destinations inside private networks; looked up before those networks' own routes."""
    public_table: int = 118
    """All other destinations at a client; the clients at a router."""
    protocol: int = 30
    uplink: LinkName = UPLINK


DEFAULT_TUNNEL_POLICY = TunnelPolicy()
