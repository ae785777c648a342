"""Tells the hosts on a link that an address has moved here. Runs in a worker's thread, in the namespace of the links.

    announce(addresses, links, parent=..., is_held=...)

IPv4: an ARP announcement (RFC 5227, section 2.3: a request whose sender and target are the address), which makes every
host that knows the address replace its entry (RFC 826). IPv6: an unsolicited neighbour advertisement to all nodes with
the override flag (RFC 4861, section 7.2.6), from the link's own link-local address.

The advertisement takes the kernel's way out, so filters for output see it; the announcement is a frame of its own,
which only an egress hook of the link would see. Therefore `is_held` is asked right before each one is sent: a thread
that was stopped for long must not speak of what its node has lost meanwhile.
"""

import errno
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from coil.kernel.family import IPAddress
from coil.kernel.link import LinkName, MacAddress, ParentLink, select_announcers
from coil.netlink.error import NetlinkError

_TIMEOUT: Final = 1.0  # seconds; a link whose queue is full for that long has no use for more
_BROADCAST: Final = b"\xff" * 6
_ETH_P_ARP: Final = 0x0806
_ARP: Final = struct.Struct("!HHBBH6s4s6s4s")  # hardware, protocol, their lengths, operation, sender, target
_REQUEST: Final = 1
_ADVERTISEMENT: Final = struct.Struct("!BBHI16sBB6s")  # type, code, checksum, flags, target, option, its length, MAC
_OVERRIDE: Final = 0x20000000
_ND_NEIGHBOR_ADVERT: Final = 136
_TARGET_LINK_LAYER_ADDRESS: Final = 2
_ALL_NODES: Final = "ff02::1"
_ICMPV6_FILTER: Final = 1  # linux/icmpv6.h
_ND_HOP_LIMIT: Final = 255  # what was forwarded is not believed


def arp_announcement(address: IPv4Address, mac: MacAddress) -> bytes:
    """The Ethernet frame."""
    octets = _octets(mac)
    body = _ARP.pack(1, 0x0800, 6, 4, _REQUEST, octets, address.packed, bytes(6), address.packed)
    return _BROADCAST + octets + struct.pack("!H", _ETH_P_ARP) + body


def neighbour_advertisement(address: IPv6Address, mac: MacAddress) -> bytes:
    """The ICMPv6 message, without the checksum: the kernel knows between which addresses it is sent."""
    return _ADVERTISEMENT.pack(
        _ND_NEIGHBOR_ADVERT, 0, 0, _OVERRIDE, address.packed, _TARGET_LINK_LAYER_ADDRESS, 1, _octets(mac)
    )


def announce(
    addresses: Iterable[IPAddress],
    links: Iterable[ParentLink],
    *,
    parent: LinkName | None,
    is_held: Callable[[IPAddress], bool],
) -> None:
    """Send one announcement of each address that is held on each link where hosts look for it, else on the parent.

    Raises NetlinkError for the first that could not be sent, after having tried the others.
    """
    links = tuple(links)
    errors: list[str] = []
    with ExitStack() as stack:
        speakers = _Speakers(stack)
        for address in addresses:
            for link in select_announcers(address, links, parent=parent):
                if not is_held(address):
                    continue
                try:
                    speakers.send(address, link)
                except OSError as error:
                    errors.append(f"cannot announce {address} on {link.name}: {_problem(error)}")
    if errors:
        others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise NetlinkError(errors[0] + others)


class _Speakers:
    """The sockets, each opened when it is first needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._frames: socket.socket | None = None
        self._advertisements: socket.socket | None = None

    def send(self, address: IPAddress, link: ParentLink) -> None:
        if isinstance(address, IPv4Address):
            if self._frames is None:
                # Protocol 0: nothing is received.
                self._frames = self._open(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._frames.sendto(arp_announcement(address, link.mac), (link.name, _ETH_P_ARP))
        else:
            if self._advertisements is None:
                self._advertisements = self._open_advertisements()
            message = neighbour_advertisement(address, link.mac)
            self._advertisements.sendto(message, (_ALL_NODES, 0, 0, link.index))

    def _open_advertisements(self) -> socket.socket:
        opened = self._open(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, _ND_HOP_LIMIT)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        # Nobody reads it: a filter that blocks all types (RFC 3542, section 3.2) keeps its queue empty.
        opened.setsockopt(socket.IPPROTO_ICMPV6, _ICMPV6_FILTER, b"\xff" * 32)
        return opened

    def _open(self, family: int, kind: int, protocol: int) -> socket.socket:
        opened = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        self._stack.enter_context(opened)
        opened.settimeout(_TIMEOUT)
        return opened


def _problem(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return f"{error.strerror}; this process needs CAP_NET_RAW, and no filter may be in the way"
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENETUNREACH):
        return f"{error.strerror}; the link has no link-local address"
    return error.strerror or str(error)


def _octets(mac: MacAddress) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
