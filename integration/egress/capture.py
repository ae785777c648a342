"""Every packet of a link, as the kernel shows it to packet(7): the oracle for what was on the wire, and as whose."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Self

from integration.netns.netns import call_inside
from integration.patience import wait_until

_ETH_P_ALL = 3
_FRAME = 14
_TYPES = {0x0800: 4, 0x86DD: 6}
UDP, TCP, IPIP, IPV6, ICMPV6 = 17, 6, 4, 41, 58
_DESTINATION_OPTIONS = 60
_ND_TTL = 255  # RFC 4861: neighbour discovery has never been forwarded
_SNAPSHOT = 256
_BUFFER = 64 << 20


@dataclass(frozen=True, slots=True)
class Packet:
    """An IP packet: its ends, TTL (or hop limit), protocol; ports where it is TCP or UDP, otherwise 0."""

    source: str
    destination: str
    ttl: int
    protocol: int
    source_port: int
    port: int
    payload: bytes

    @property
    def inner(self) -> "Packet | None":
        """What a tunnel's UDP packet carries, if that is IP."""
        return parse_packet(self.payload) if self.protocol == UDP else None


class Capture:
    """All IP packets on a link of a namespace while the context is open, both directions, or those to `keep`."""

    def __init__(
        self, netns: Path, link: str = "eth0", *, keep: Callable[[Packet], bool] = lambda _packet: True
    ) -> None:
        self._keep = keep
        self._socket = call_inside(netns, lambda: _open(link))
        self._packets: list[Packet] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="capture")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._socket.close()

    def packets(self) -> list[Packet]:
        """Those up to now; what was sent a moment ago may still be missing. What the ends of a tunnel say among
        themselves, such as router solicitations of a new one, is left out.
        """
        return [packet for packet in list(self._packets) if not (packet.inner and is_of_the_link(packet.inner))]

    def wait_for(self, wanted: Callable[[Packet], bool], *, what: str) -> Packet:
        """The first such packet. Raises AssertionError when none comes."""
        wait_until(lambda: any(map(wanted, self.packets())), what=f"a packet is seen: {what}")
        return next(packet for packet in self.packets() if wanted(packet))

    def select(self, wanted: Callable[[Packet], bool]) -> list[Packet]:
        """All such packets up to now."""
        return [packet for packet in self.packets() if wanted(packet)]

    def _read(self) -> None:
        while not self._stopped.is_set():
            try:
                frame = self._socket.recv(_SNAPSHOT)
            except TimeoutError:
                continue
            except OSError:
                return  # the namespace has gone, and its link
            if (packet := parse_frame(frame)) is not None and self._keep(packet):
                self._packets.append(packet)


def is_of_the_link(packet: Packet) -> bool:
    """Whether no router would have forwarded it; see `integration.packet_capture`."""
    source = ip_address(packet.source)
    return (packet.protocol, packet.ttl) == (ICMPV6, _ND_TTL) or source.is_link_local or source.is_unspecified


def parse_frame(frame: bytes) -> Packet | None:
    """The IP packet in an Ethernet frame."""
    return parse_packet(frame[_FRAME:]) if int.from_bytes(frame[12:14]) in _TYPES else None


def parse_packet(data: bytes) -> Packet | None:
    """An IP packet, from its header on (RFC 791, RFC 8200); None for anything else. It may be cut off."""
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= 20:
        size, ttl, protocol = (data[0] & 0xF) * 4, data[8], data[9]
        source, destination = str(IPv4Address(data[12:16])), str(IPv4Address(data[16:20]))
    elif version == 6 and len(data) >= 40:
        size, ttl, protocol = 40, data[7], data[6]
        source, destination = str(IPv6Address(data[8:24])), str(IPv6Address(data[24:40]))
    else:
        return None
    if protocol == _DESTINATION_OPTIONS and len(data) >= size + 8:
        # A tunnel's encapsulation limit (RFC 2473, 4.1.1), which stands before what the packet is of.
        protocol, size = data[size], size + 8 * (data[size + 1] + 1)
    rest = data[size:]
    ports = (int.from_bytes(rest[:2]), int.from_bytes(rest[2:4])) if protocol in (TCP, UDP) else (0, 0)
    return Packet(source, destination, ttl, protocol, *ports, payload=rest[8:] if protocol == UDP else b"")


def _open(link: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    made.bind((link, _ETH_P_ALL))
    made.settimeout(0.2)
    return made
