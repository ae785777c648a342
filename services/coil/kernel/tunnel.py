"""Foo-over-UDP tunnels: one link for each peer, the flow-based links that receive from anybody, and the UDP ports that
unpack (linux/if_tunnel.h, linux/fou.h).

Place in the flow: `coil.egress` plans these for both ends of the tunnels, `coil.netlink` makes them. Invariant: the
name of a tunnel follows from its peer's address, so the kernel itself keeps a peer from having two, and what a killed
process left is met again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha1
from types import MappingProxyType
from typing import Final

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName

FALLBACK_NAMES: Final[Mapping[LinkName, LinkName]] = MappingProxyType(
    {LinkName("tunl0"): LinkName("coil_tunl"), LinkName("ip6tnl0"): LinkName("coil_ip6tnl")}
)
"""What the kernel calls the devices that it puts into every namespace on its own, and what they are renamed to."""

FOU_DUMMY: Final = LinkName("fou-dummy")
"""By a link that is found by this name, Coil in Go knows that a namespace has its ports. It would open them once more
and fail, so that a node could not go back to it.
"""

MAX_PORT: Final = 0xFFFF

ENCAP_LIMIT_BYTES: Final = 8


class TunnelKind(StrEnum):
    """The kernel's name for the kind of link that a tunnel of one family is."""

    IPIP = "ipip"
    IP6TNL = "ip6tnl"

    @classmethod
    def of(cls, family: Family) -> "TunnelKind":
        return cls.IPIP if family is Family.IPV4 else cls.IP6TNL


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """A link that wraps what it sends into UDP to one peer. The packets in it are of the family around it.

    `port` is the peer's; with `source_port` 0 the kernel derives one from each flow. `mtu` is what fits inside. With
    `encap_limit`, as Coil v2 makes them, an IPv6 tunnel sends an encapsulation limit of 0 (RFC 2473, section 4.1.1),
    which takes ENCAP_LIMIT_BYTES of each packet.
    """

    name: LinkName
    local: IPAddress
    remote: IPAddress
    port: int
    source_port: int
    mtu: int
    ttl: int = 225
    encap_limit: bool = False

    def __post_init__(self) -> None:
        if self.local.version != self.remote.version:
            raise ValueError(f"a tunnel from {self.local} to {self.remote}: not of one family")
        if not 0 < self.port <= MAX_PORT or not 0 <= self.source_port <= MAX_PORT:
            raise ValueError(f"a tunnel from port {self.source_port} to port {self.port}: no such port")

    @property
    def family(self) -> Family:
        return Family.of(self.remote)

    @property
    def kind(self) -> TunnelKind:
        return TunnelKind.of(self.family)

    def __str__(self) -> str:
        return f"tunnel {self.name} from {self.local} port {self.source_port} to {self.remote} port {self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchAll:
    """A flow-based ("external") link: receives what comes from peers without a tunnel of their own. The kernel has room
    for one of each family in a namespace.
    """

    name: LinkName
    family: Family

    @property
    def kind(self) -> TunnelKind:
        return TunnelKind.of(self.family)

    def __str__(self) -> str:
        return f"flow-based {self.kind} link {self.name}"


@dataclass(frozen=True, slots=True)
class FouPort:
    """A UDP port whose packets are unwrapped and received anew as what is in them."""

    family: Family
    port: int

    @property
    def protocol(self) -> int:
        """The IP protocol number of what is inside: IPPROTO_IPIP or IPPROTO_IPV6."""
        return 4 if self.family is Family.IPV4 else 41

    def __str__(self) -> str:
        return f"FOU port {self.port} ({self.family.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelChanges:
    """What leads from one set of tunnels to another; all sorted by name.

    `changes` are made in place: the link keeps its index, its state and its routes. What a tunnel that is deleted
    carried is lost unless its routes have gone elsewhere before.
    """

    creates: tuple[Tunnel, ...] = ()
    changes: tuple[Tunnel, ...] = ()
    deletes: tuple[Tunnel, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.creates or self.changes or self.deletes)


def tunnel_name(peer: IPAddress) -> LinkName:
    """The name of the tunnel to `peer`: the whole address in IPv4, 32 bits of its SHA-1 in IPv6, where two peers can
    therefore have one name.
    """
    if peer.version == 4:
        return LinkName(f"fou4_{peer.packed.hex()}")
    return LinkName(f"fou6_{sha1(peer.packed, usedforsecurity=False).hexdigest()[:8]}")


def catch_all(family: Family) -> CatchAll:
    """The flow-based link of a family, under its usual name."""
    return CatchAll(name=LinkName("coil_ipip4" if family is Family.IPV4 else "coil_ipip6"), family=family)


def diff_tunnels(actual: Collection[Tunnel], wanted: Collection[Tunnel]) -> TunnelChanges:
    """The changes that turn `actual`, which are all ours, into `wanted`. Duplicates in either count once.

    Tunnels of one name are one link, which is changed in place whatever differs, except for an encapsulation limit and
    the room it takes: the kernel takes an IPv6 tunnel out of its table while it changes it (ip6_tnl_update), and what
    arrives meanwhile is lost, for eight bytes. Raises ValueError if two that are wanted share a name.
    """
    have = {tunnel.name: tunnel for tunnel in actual}
    want: dict[LinkName, Tunnel] = {}
    for tunnel in wanted:
        if want.setdefault(tunnel.name, tunnel) != tunnel:
            raise ValueError(f"two tunnels want the name {tunnel.name}: to {want[tunnel.name].remote}, {tunnel.remote}")
    return TunnelChanges(
        creates=tuple(want[name] for name in sorted(want.keys() - have.keys())),
        changes=tuple(want[name] for name in sorted(want.keys() & have.keys()) if not _serves(have[name], want[name])),
        deletes=tuple(have[name] for name in sorted(have.keys() - want.keys())),
    )


def _serves(actual: Tunnel, wanted: Tunnel) -> bool:
    limited = replace(wanted, encap_limit=True, mtu=wanted.mtu - ENCAP_LIMIT_BYTES)
    return actual in (wanted, limited)
