"""What one end of the tunnels is to serve: the input of the plans, in the words of addresses, with the numbers that are
the same at both ends and the link that the pod had before any tunnel.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LinkName
from coil.kernel.route import Route

UPLINK = LinkName("eth0")


class SourcePort(Enum):
    """The UDP source port of what is sent through a tunnel."""

    FIXED = "fixed"
    """The tunnel's own port, which lets a proxy that tracks flows find the way back."""
    AUTO = "auto"
    """The kernel derives one from each inner flow, which lets a proxy spread the flows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelPolicy:
    """The numbers of the tunnels: the same at both ends, and a contract with what is running already.

    `port` is where both ends receive. `uplink` is the link that the pod had before."""

    port: int = 5555
    private_table: int = 117
    """Destinations inside private networks; looked up before those networks' own routes."""
    public_table: int = 118
    """All other destinations at a client; the clients at a router."""
    protocol: int = 30
    uplink: LinkName = UPLINK


DEFAULT_TUNNEL_POLICY = TunnelPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """One Egress as a client sees it: what leaves for `destinations` goes through a tunnel to the Service's address.

    `name` is "namespace/name", and the order in which gateways have a destination that several of them name.
    `addresses` has at most one address of each family.
    """

    name: str
    addresses: tuple[IPAddress, ...]
    destinations: tuple[IPNetwork, ...]
    source_port: SourcePort = SourcePort.FIXED

    def address(self, family: Family) -> IPAddress | None:
        return next((address for address in self.addresses if Family.of(address) is family), None)


class Replies(Enum):
    """Where a client answers connections that others began."""

    BY_ROUTE = "by route"
    """As everything else: through a tunnel if the destination has one."""
    WHERE_THEY_CAME_FROM = "where they came from"
    """On the link that they came in by: tunnels are for what the pod itself originates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    """A client pod. With neither gateways nor anything blocked there is to be nothing of ours in its namespace.

    `cluster` are networks of the cluster beside the private ones: they are reached without a tunnel, unless a gateway
    has a destination within them. `blocked` are destinations that must not be reached by the uplink though no gateway
    serves them: they are unreachable from the namespace. With `block_unclaimed` so is every destination that the
    namespace has a route of ours for and that no gateway serves any more. With `fail_open` a destination whose tunnel
    cannot be made is left to the uplink instead of being blocked.
    """

    addresses: tuple[IPAddress, ...]
    gateways: tuple[Gateway, ...]
    replies: Replies = Replies.BY_ROUTE
    policy: TunnelPolicy = field(default_factory=TunnelPolicy)
    cluster: tuple[IPNetwork, ...] = ()
    blocked: tuple[IPNetwork, ...] = ()
    block_unclaimed: bool = False
    fail_open: bool = False

    @property
    def blocks(self) -> bool:
        """Whether anything is to be unreachable."""
        return bool(self.blocked) or self.block_unclaimed

    @property
    def is_empty(self) -> bool:
        """Whether there is to be nothing of ours in the namespace."""
        return not (self.gateways or self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """A router pod; its peers come and go and are no part of it."""

    addresses: tuple[IPAddress, ...]
    policy: TunnelPolicy = field(default_factory=TunnelPolicy)


TUNNEL_OVERHEAD: Final = {Family.IPV4: 20 + 8, Family.IPV6: 40 + 8}
"""Bytes that a tunnel adds to each packet: an IP header without options, and UDP (RFC 768)."""

LEAST_MTU: Final = {Family.IPV4: 68, Family.IPV6: 1280}
"""RFC 791, RFC 8200; on a link below its own the kernel silently turns IPv6 off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """As far as the plans depend on it. `routes` are those of the main table that leave by this link, both families."""

    name: LinkName
    index: int
    mtu: int
    routes: tuple[Route, ...] = ()

    def tunnel_mtu(self, family: Family) -> int:
        """What fits into a tunnel of the family. Raises ValueError where the family does not work with so little."""
        mtu = self.mtu - TUNNEL_OVERHEAD[family]
        if mtu < LEAST_MTU[family]:
            version = 4 if family is Family.IPV4 else 6
            raise ValueError(f"the MTU of {self.name} is {self.mtu}, too small for a tunnel of IPv{version}")
        return mtu
