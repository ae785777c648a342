"""What really went over a link: its packets, captured and taken apart, tunnels within them included."""

import socket
import struct
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from coil.kernel.family import IPAddress
from integration.netns.netns import Netns
from integration.side_thread import SideThread

TUNNEL_PORT: Final = 5555

_ETH_P_ALL: Final = 3
_ICMPV6, _ND_TTL = 58, 255  # RFC 4861: neighbour discovery has never been forwarded
_FRAME: Final = 1 << 17  # segments that were not cut yet are larger than the link's MTU
_LOOK: Final = 0.05
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23  # linux/if_packet.h
_ETHER_TYPES: Final = {0x0800, 0x86DD}
_PORTS: Final = {6: "TCP", 17: "UDP"}
_OTHERS: Final = {1: "ICMP", 4: "IPIP", 41: "IPv6", 58: "ICMPv6"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """An IP packet. The ports are 0 where the protocol has none; `inner` is what UDP to the tunnels' port wraps."""

    source: IPAddress
    destination: IPAddress
    protocol: int
    ttl: int
    length: int
    source_port: int = 0
    port: int = 0
    inner: "Packet | None" = None

    def __str__(self) -> str:
        name = _PORTS.get(self.protocol) or _OTHERS.get(self.protocol) or f"protocol {self.protocol}"
        ends = f"{self.source} > {self.destination}"
        if self.protocol in _PORTS:
            ends = f"{self.source} port {self.source_port} > {self.destination} port {self.port}"
        text = f"{ends} {name}, {self.length} bytes, TTL {self.ttl}"
        return f"{text} [{self.inner}]" if self.inner is not None else text


class Capture(SideThread):
    """A context manager: all packets that a link receives or sends while it is open, in their order."""

    def __init__(self, netns: Netns, link: str = "eth0") -> None:
        super().__init__(f"capture {link}")
        self._socket = netns.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)))
        self._socket.bind((link, _ETH_P_ALL))
        self._socket.settimeout(_LOOK)
        self._packets: list[Packet] = []

    def __exit__(self, *how: object) -> None:
        super().__exit__(*how)
        self._socket.close()

    def packets(self) -> list[Packet]:
        """What was seen until now, but for what hosts say among themselves on a link, or on a tunnel, which is one."""
        return [packet for packet in list(self._packets) if not is_of_the_link(packet.inner or packet)]

    def work(self) -> None:
        while True:
            try:
                frame = self._socket.recv(_FRAME)
            except TimeoutError:
                # Nothing is left in the queue; only then may it end.
                if self.stopped.is_set():
                    return
                continue
            if struct.unpack_from("!H", frame, 12)[0] in _ETHER_TYPES:
                self._packets.append(parse_packet(frame[14:]))


def is_of_the_link(packet: Packet) -> bool:
    """Whether no router would have forwarded it: neighbour discovery, and what comes from a link's own address, or
    from none yet, as the reports of who listens to which group do while a link is new (RFC 3810).
    """
    if (packet.protocol, packet.ttl) == (_ICMPV6, _ND_TTL):
        return True
    return packet.source.is_link_local or packet.source.is_unspecified


def parse_packet(data: bytes) -> Packet:
    """Take an IP packet apart, and the one in it where a tunnel wraps it."""
    if data[0] >> 4 == 4:
        header = (data[0] & 15) * 4
        source, destination, protocol, ttl = data[12:16], data[16:20], data[9], data[8]
    else:
        header = 40
        source, destination, protocol, ttl = data[8:24], data[24:40], data[6], data[7]
    body = data[header:]
    ports = struct.unpack_from("!HH", body) if protocol in _PORTS and len(body) >= 8 else (0, 0)
    wraps = protocol == 17 and TUNNEL_PORT in ports and len(body) >= 28 and body[8] >> 4 in (4, 6)
    return Packet(
        source=ip_address(source),
        destination=ip_address(destination),
        protocol=protocol,
        ttl=ttl,
        # Not the header's word: who unwraps a packet shortens that, in memory that the capture shares (fou_recv).
        length=len(data),
        source_port=ports[0],
        port=ports[1],
        inner=parse_packet(body[8:]) if wraps else None,
    )
