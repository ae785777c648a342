"""What one end of the tunnels is to serve: the input of the plans, in the words of addresses."""

from dataclasses import dataclass, field
from enum import Enum

from coil.egress.policy import SourcePort, TunnelPolicy
from coil.kernel.family import Family, IPAddress, IPNetwork


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

    `blocked` are destinations that must not be reached by the uplink though no gateway serves them: they are
    unreachable from the namespace. With `block_unclaimed` so is every destination that the namespace has a route of
    ours for and that no gateway serves any more. With `fail_open` a destination whose tunnel cannot be made is left to
    the uplink instead of being blocked.
    """

    addresses: tuple[IPAddress, ...]
    gateways: tuple[Gateway, ...]
    replies: Replies = Replies.BY_ROUTE
    policy: TunnelPolicy = field(default_factory=TunnelPolicy)
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
