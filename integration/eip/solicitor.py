"""The host outside asks without pause who has an address, by broadcast, whatever it knows already."""

import socket
import struct
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final

from integration.netns.netns import call_inside
from integration.side_thread import SideThread

_SPACING: Final = 0.02
_ARP: Final = 0x0806
_BROADCAST: Final = b"\xff" * 6
_LINK: Final = "eth0"
_SOLICITED_NODE: Final = int(IPv6Address("ff02::1:ff00:0"))  # RFC 4291


class Solicitor(SideThread):
    """A context manager: asks for each of the addresses every 20 ms while it is open. The answers are for a capture."""

    def __init__(self, netns: Path, own: dict[int, str], *addresses: str) -> None:
        super().__init__("solicitor")
        self._wanted = [ip_address(address) for address in addresses]
        self._own = ip_address(own[4]).packed if 4 in own else b""
        self._arp, self._icmp = call_inside(netns, _open)
        self._mac: bytes = self._arp.getsockname()[4]
        self.rounds = 0
        """How often all of them were asked for."""

    def __exit__(self, *how: object) -> None:
        super().__exit__(*how)
        self._arp.close()
        self._icmp.close()

    def work(self) -> None:
        while not self.stopped.wait(_SPACING):
            for address in self._wanted:
                if isinstance(address, IPv6Address):
                    self._solicit(address)
                else:
                    body = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, self._mac, self._own, b"", address.packed)
                    self._arp.send(_BROADCAST + self._mac + struct.pack("!H", _ARP) + body)
            self.rounds += 1

    def _solicit(self, address: IPv6Address) -> None:
        group = IPv6Address(_SOLICITED_NODE | int(address) & 0xFFFFFF)
        message = struct.pack("!BBHI16sBB6s", 135, 0, 0, 0, address.packed, 1, 1, self._mac)
        self._icmp.sendto(message, (str(group), 0))


def _open() -> tuple[socket.socket, socket.socket]:
    arp = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    arp.bind((_LINK, 0))
    icmp = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(_LINK))
    return arp, icmp
