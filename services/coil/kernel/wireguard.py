"""WireGuard (https://www.wireguard.com/papers/wireguard.pdf): the link that carries the mesh where that is encrypted.

Place in the flow: an agent says what it wants in these words, `coil.netlink.overlay` brings it about. VXLAN packets
between two nodes go from tunnel address to tunnel address, and the routes of these lead into the link. The kernel lets
out of it only what was encrypted with the key of the peer that has the source address, so no packet comes in another
node's name. It is the IPv4 addresses in the tunnel network that are routed so, which every node has: IPv6 refuses a
route by mark (`coil.kernel.mark`) through a gateway that the main table has behind another link.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final, NewType

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName

WIREGUARD_KIND: Final = "wireguard"
WIREGUARD_LINK: Final = LinkName("egress.wg")
"""Of the EIP gateway's mesh."""
_KEY_BYTES: Final = 32

_OVERHEAD: Final = {Family.IPV4: 60, Family.IPV6: 80}
"""Bytes: IP (20 or 40), UDP (8), the message's header (16) and its authentication tag (16)."""

PublicKey = NewType("PublicKey", str)
"""Of Curve25519, in base64, as `wg` prints it."""


def parse_public_key(text: str) -> PublicKey | None:
    """None for what is no key."""
    try:
        key = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return None
    return PublicKey(text) if len(key) == _KEY_BYTES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuard:
    """The link, without its key, which the kernel of the node alone has. `port` is where it listens for UDP."""

    name: LinkName
    port: int
    mtu: int

    def __str__(self) -> str:
        return f"WireGuard {self.name} (port {self.port})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardPeer:
    """Another node: `address` is its tunnel address, from and to which packets go through the link; `endpoint` and
    `port` are where encrypted packets are sent.
    """

    key: PublicKey
    endpoint: IPAddress
    port: int
    address: IPv4Address


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardState:
    """What the kernel says of the link. `key` is None where it has none yet. A peer is None where something of it is
    not as Coil sets it.
    """

    key: PublicKey | None
    port: int
    peers: Mapping[PublicKey, WireGuardPeer | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardChanges:
    """First the deletes, then the puts. A peer that is put keeps its session with the node."""

    deletes: tuple[PublicKey, ...] = ()
    puts: tuple[WireGuardPeer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.puts)


def wireguard_mtu(parent_mtu: int, underlay: Family) -> int:
    """What fits into a packet of the parent link: 60 bytes less in IPv4, 80 in IPv6."""
    return parent_mtu - _OVERHEAD[underlay]


def diff_wireguard(
    actual: Mapping[PublicKey, WireGuardPeer | None], wanted: Iterable[WireGuardPeer]
) -> WireGuardChanges:
    """The changes that turn `actual` into `wanted`. Raises ValueError where two have a key or an address in common."""
    want = dict[PublicKey, WireGuardPeer]()
    owners = dict[IPv4Address, PublicKey]()
    for peer in wanted:
        if want.setdefault(peer.key, peer) != peer:
            raise ValueError(f"two peers have the key {peer.key}")
        if owners.setdefault(peer.address, peer.key) != peer.key:
            raise ValueError(f"two peers have the tunnel address {peer.address}")
    return WireGuardChanges(
        deletes=tuple(sorted(actual.keys() - want.keys())),
        puts=tuple(peer for key, peer in sorted(want.items()) if actual.get(key) != peer),
    )
