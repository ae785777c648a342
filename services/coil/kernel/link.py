"""Links (network interfaces), their names and hardware addresses, the sysctls that belong to one, and which of a node's
links have an address or are where it would be looked for.

Invariant: a `LinkName` has passed `parse_link_name`, so it may be part of a path below /proc/sys/net.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from hashlib import sha256
from ipaddress import IPv6Address
from typing import Final, NewType

from coil.kernel.family import Family, IPAddress, IPInterface

LinkName = NewType("LinkName", str)
MacAddress = NewType("MacAddress", str)
"""Lower-case hexadecimal octets joined by colons, as `ip link` prints them."""

LOOPBACK = LinkName("lo")

_FORWARDING = {Family.IPV4: "net/ipv4/ip_forward", Family.IPV6: "net/ipv6/conf/all/forwarding"}
_LINK_NAME = re.compile(r"[!-.0-9;-~]{1,15}")  # printable ASCII without blank, slash and colon


class LinkGroup(IntEnum):
    """Marks of the node's end of a pod's veth (`ip link set group`). They are part of the kernel's state, and so
    survive a crash; the numbers are such that nobody else uses them by accident.
    """

    NONE = 0
    UNFINISHED = int.from_bytes(b"coil")
    """Born so, and whatever is so when coild starts is the rest of an ADD that a crash cut off."""
    POD = int.from_bytes(b"Coil")
    """Everything on both ends is there, and the pod has addresses that the node routes to it."""
    DOOMED = int.from_bytes(b"COIL")
    """Being deleted."""


POD_LINK_BITS: Final = int.from_bytes(b"COIL")
POD_LINK_MASK: Final = 0xFFFFFFFF - int.from_bytes(b"    ")
"""What the groups of pods' links have in common: they differ in the bits that make letters small."""


class LinkState(StrEnum):
    """The administrative state: what was asked for, whether or not there is a carrier."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link of a namespace.

    `carrier` is the operational state: up, with a peer or a cable, and able to send. `peer_index` is the
    other end of a veth, counted in that end's namespace; 0 if there is none. `peer_netns` is the kernel's number for
    that namespace, None where it is the link's own; the number is good as long as the link is there. `master` is the
    bridge, or another such link, that it is a port of; 0 if of none. `group` is often a `LinkGroup`.
    """

    name: LinkName
    index: int
    mtu: int
    state: LinkState
    carrier: bool
    mac: MacAddress | None = None
    alias: str = ""
    kind: str = ""
    peer_index: int = 0
    peer_netns: int | None = None
    master: int = 0
    group: int = LinkGroup.NONE


@dataclass(frozen=True, slots=True)
class Sysctl:
    """One file below /proc/sys and what it should say: `Sysctl("net/ipv4/ip_forward", "1")`."""

    path: str
    value: str


def forwarding_sysctls(families: Collection[Family]) -> tuple[Sysctl, ...]:
    """What makes a router of a namespace. They hold for the links that exist and for those to come."""
    return tuple(Sysctl(_FORWARDING[family], "1") for family in Family if family in families)


def parse_link_name(text: str) -> LinkName:
    """Return `text` as a link name.

    Raises ValueError where the kernel would refuse the name (dev_valid_name: longer than 15 bytes, ".", "..",
    a slash, a colon or a blank), and for anything but ASCII, which no container runtime uses.
    """
    if _LINK_NAME.fullmatch(text) is None or text in {".", ".."}:
        raise ValueError(f"not a valid link name: {text!r}")
    return LinkName(text)


def derived_mac(text: str) -> MacAddress:
    """A locally administered unicast address that follows from the text."""
    octets = bytearray(sha256(text.encode()).digest()[:6])
    octets[0] = octets[0] & 0xFC | 0x02
    return MacAddress(":".join(f"{octet:02x}" for octet in octets))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentLink:
    """A link that is up and speaks Ethernet, with its addresses and their prefix lengths, in the kernel's order."""

    name: LinkName
    index: int
    mac: MacAddress
    mtu: int
    interfaces: tuple[IPInterface, ...]

    def has(self, address: IPAddress) -> bool:
        """Whether the address is one of its own."""
        return any(interface.ip == address for interface in self.interfaces)

    def reaches(self, address: IPAddress) -> bool:
        """Whether a network on the link contains the address, so that hosts there ask for it on the link."""
        return any(
            address in interface.network and interface.network.prefixlen < interface.max_prefixlen
            for interface in self.interfaces
            if interface.version == address.version
        )


def select_announcers(
    address: IPAddress, links: Iterable[ParentLink], *, parent: LinkName | None
) -> Collection[ParentLink]:
    """The links on which hosts are told of the address: those with a network that contains it, or else the parent.

    Empty where there is neither: a router has to know by other means.
    """
    links = tuple(links)
    reaching = tuple(link for link in links if link.reaches(address))
    return reaching or tuple(link for link in links if link.name == parent)


@dataclass(frozen=True, slots=True)
class Address:
    """An address on a link, with its prefix length. IPv6 addresses are always set without duplicate address
    detection.
    """

    device: LinkName
    interface: IPInterface

    @property
    def family(self) -> Family:
        return Family.of(self.interface)

    def __str__(self) -> str:
        return f"address {self.interface} on {self.device}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A permanent entry of the ARP or neighbour discovery table: `address` is at `mac` on `device`, without
    asking.
    """

    device: LinkName
    address: IPAddress
    mac: MacAddress

    @property
    def family(self) -> Family:
        return Family.of(self.address)

    def __str__(self) -> str:
        return f"neighbour {self.address} at {self.mac} on {self.device}"


@dataclass(frozen=True, slots=True)
class NeighbourProxy:
    """`device` answers neighbour solicitations for `address`, which is not its own. In IPv4 nothing of the kind is
    needed: a node answers ARP for all its addresses on every link.
    """

    device: LinkName
    address: IPv6Address

    def __str__(self) -> str:
        return f"neighbour proxy for {self.address} on {self.device}"
