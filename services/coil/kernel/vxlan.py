"""VXLAN (RFC 7348): the link, and the mesh of the EIP gateways: one link for all peers, told of each beforehand.

Place in the flow: an agent says what it wants in these words, `coil.netlink.overlay` brings it about. The uplinks of
bridges (`coil.kernel.bridge`) are described by the same `Vxlan`. In the mesh nothing is learnt from packets: a peer is
one entry of the forwarding database (hardware address to underlay address) and a permanent neighbour for each of its
tunnel addresses. Invariant of a plan: neither a hardware address nor a tunnel address leads to two peers.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeVar

from coil.kernel.family import Family, IPAddress, IPInterface
from coil.kernel.link import LinkName, MacAddress, Neighbour

T = TypeVar("T")

VXLAN_KIND: Final = "vxlan"
MAX_VNI: Final = (1 << 24) - 1

_OVERHEAD: Final = {Family.IPV4: 50, Family.IPV6: 70}
"""Bytes: Ethernet header inside (14), VXLAN (8), UDP (8), and IP around it (20 or 40)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vxlan:
    """The tunnel's link. `local` is the address it sends from, and so the family around it; `parent` is the link that
    has that address. `mtu` is what fits inside, see `vxlan_mtu`. `addresses` are all that it shall have. `learning`:
    the link remembers from packets behind which peer a hardware address is. `checksum_offload`: checksums inside are
    left to the link that sends the packet; some drivers get them wrong. It is only ever switched off.

    The link is not bound to its parent: the way to a peer is the node's routes', which may be several links.
    """

    name: LinkName
    vni: int
    port: int
    mac: MacAddress
    mtu: int
    local: IPAddress
    parent: LinkName
    addresses: tuple[IPInterface, ...] = ()
    learning: bool = False
    checksum_offload: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.vni <= MAX_VNI:
            raise ValueError(f"a VXLAN network identifier has 24 bits: {self.vni}")
        if not 0 < self.port <= 0xFFFF:
            raise ValueError(f"no such port: {self.port}")

    def __str__(self) -> str:
        return f"VXLAN {self.name} (VNI {self.vni}, port {self.port}) from {self.local}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VxlanState:
    """What the kernel says of a link of that kind. `local` is None where the link sends from any address; `plain` is
    False where it is flow-based, bound to another link (`bound`), or floods to a group or a default peer.
    """

    vni: int
    port: int
    local: IPAddress | None
    learning: bool
    plain: bool
    bound: bool = False


class VxlanChange(Enum):
    """What makes a wanted link of the one that is there."""

    NONE = auto()
    IN_PLACE = auto()
    """Local address, learning: peers and routes stay."""
    RECREATE = auto()
    """The kernel takes no change of network identifier, port or family (vxlan_changelink)."""


def vxlan_mtu(parent_mtu: int, underlay: Family) -> int:
    """What fits into a packet of the parent link: 50 bytes less in IPv4, 70 in IPv6."""
    return parent_mtu - _OVERHEAD[underlay]


def diff_vxlan(actual: VxlanState, wanted: Vxlan) -> VxlanChange:
    """What has to be done to the link's encapsulation; its MTU, addresses and state are changed in place anyway."""
    same_family = actual.local is not None and actual.local.version == wanted.local.version
    if (actual.vni, actual.port) != (wanted.vni, wanted.port) or not same_family or not actual.plain:
        return VxlanChange.RECREATE
    return (
        VxlanChange.IN_PLACE if actual.learning != wanted.learning or actual.local != wanted.local else VxlanChange.NONE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayPeer:
    """Another node's end of the mesh: hardware and IP addresses of its tunnel link, the node's address around it."""

    mac: MacAddress
    tunnel: tuple[IPAddress, ...]
    underlay: IPAddress


@dataclass(frozen=True, slots=True)
class ForwardingEntry:
    """A permanent entry of a VXLAN link's forwarding database: frames to `mac` are sent to `remote`."""

    device: LinkName
    mac: MacAddress
    remote: IPAddress

    def __str__(self) -> str:
        return f"forwarding entry {self.mac} to {self.remote} on {self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTable:
    """All that a VXLAN link knows of its peers."""

    entries: frozenset[ForwardingEntry]
    neighbours: frozenset[Neighbour]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerChanges:
    """First the deletes, then the puts, each of which replaces what is there for its hardware or tunnel address: a
    peer that moves is never unknown. All sorted, so that runs are alike.
    """

    entry_deletes: tuple[ForwardingEntry, ...] = ()
    entry_puts: tuple[ForwardingEntry, ...] = ()
    neighbour_deletes: tuple[Neighbour, ...] = ()
    neighbour_puts: tuple[Neighbour, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entry_deletes or self.entry_puts or self.neighbour_deletes or self.neighbour_puts)


def plan_peers(device: LinkName, peers: Iterable[OverlayPeer]) -> PeerTable:
    """What the link has to know to reach the peers. Equal peers count once.

    Raises ValueError where a hardware or tunnel address would lead to two.
    """
    remotes: dict[MacAddress, IPAddress] = {}
    macs: dict[IPAddress, MacAddress] = {}
    for peer in peers:
        if remotes.setdefault(peer.mac, peer.underlay) != peer.underlay:
            raise ValueError(f"two peers have the hardware address {peer.mac}: {remotes[peer.mac]}, {peer.underlay}")
        for address in peer.tunnel:
            if macs.setdefault(address, peer.mac) != peer.mac:
                raise ValueError(f"two peers have the tunnel address {address}: {macs[address]}, {peer.mac}")
    return PeerTable(
        entries=frozenset(ForwardingEntry(device, mac, remote) for mac, remote in remotes.items()),
        neighbours=frozenset(Neighbour(device, address, mac) for address, mac in macs.items()),
    )


def diff_peers(actual: PeerTable, wanted: PeerTable) -> PeerChanges:
    """The changes that turn `actual`, which is all of one link, into `wanted`."""
    have: dict[MacAddress, list[ForwardingEntry]] = {}
    for entry in actual.entries:
        have.setdefault(entry.mac, []).append(entry)
    keep = {entry.mac: entry for entry in wanted.entries}
    entry_deletes = [entry for mac, entries in have.items() for entry in _leaving(entries, keep.get(mac))]
    reachable = {neighbour.address for neighbour in wanted.neighbours}
    return PeerChanges(
        entry_deletes=_sorted(entry_deletes),
        entry_puts=_sorted(wanted.entries - actual.entries),
        neighbour_deletes=_sorted(neighbour for neighbour in actual.neighbours if neighbour.address not in reachable),
        neighbour_puts=_sorted(wanted.neighbours - actual.neighbours),
    )


def _leaving(entries: Collection[ForwardingEntry], wanted: ForwardingEntry | None) -> list[ForwardingEntry]:
    """Of the entries of one hardware address those to delete: a single one is replaced instead, if any is wanted. The
    kernel holds several where somebody appended one, and would replace only the first.
    """
    if wanted is not None and len(entries) == 1:
        return []
    return [entry for entry in entries if entry != wanted]


def _sorted(things: Iterable[T]) -> tuple[T, ...]:
    return tuple(sorted(things, key=str))
