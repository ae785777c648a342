"""Who says on the link that an address is his: every ARP packet and neighbour advertisement, by the port it came in at.

The capture sits in the bridge's namespace, so that a port tells the node better than any hardware address, and what one
node says to another is seen as well. Kernel order is the order of the list.
"""

import ctypes
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from integration.netns.netns import call_inside
from integration.patience import TIMEOUT, wait_until
from integration.side_thread import SideThread

_ETH_P_ALL: Final = 3
_ARP, _IPV6 = 0x0806, 0x86DD
_OUTGOING: Final = 4  # linux/if_packet.h, PACKET_OUTGOING
_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h
_LOOK: Final = 0.05
_SNAPSHOT: Final = 256
_BUFFER: Final = 8 << 20
_ADVERTISEMENT, _SOLICITATION = 136, 135  # RFC 4861
_REPLY: Final = 2

# Classic BPF (linux/filter.h): ARP, and of IPv6 what is ICMPv6; everything else never leaves the kernel.
_PROGRAM: Final = (
    (0x28, 0, 0, 12),  # ldh [12]
    (0x15, 3, 0, _ARP),  # jeq: accept
    (0x15, 0, 3, _IPV6),  # jeq, or drop
    (0x30, 0, 0, 20),  # ldb [20], the next header
    (0x15, 0, 1, 58),  # jeq ICMPv6
    (0x06, 0, 0, 0xFFFF),  # ret: accept
    (0x06, 0, 0, 0),  # ret: drop
)


@dataclass(frozen=True, slots=True)
class Announcement:
    """`port` is the node; `reply` tells an answer from what was said unasked."""

    port: str
    address: str
    reply: bool


class Announcements(SideThread):
    """A context manager: what is said at those ports while it is open."""

    def __init__(self, fabric: Path, ports: Collection[str]) -> None:
        super().__init__("announcements")
        self._ports = frozenset(ports)
        self._socket = call_inside(fabric, _open)
        self._heard: list[Announcement] = []

    def __exit__(self, *how: object) -> None:
        super().__exit__(*how)
        self._socket.close()

    def of(self, address: str) -> list[Announcement]:
        """What was said of an address until now."""
        return [said for said in list(self._heard) if said.address == address]

    def ports(self, address: str) -> list[str]:
        """The nodes that have spoken for it, each as often as it took turns with another."""
        announcers: list[str] = []
        for said in self.of(address):
            if announcers[-1:] != [said.port]:
                announcers.append(said.port)
        return announcers

    def await_last(self, address: str, *ports: str, timeout: float = TIMEOUT) -> None:
        """Until one of those ports was the last to speak for it."""
        what = f"{address} is announced by {' or '.join(ports)}"
        wait_until(lambda: set(self.ports(address)[-1:]) & set(ports), what=what, timeout=timeout)

    def work(self) -> None:
        while True:
            try:
                frame, (port, _, kind, *_) = self._socket.recvfrom(_SNAPSHOT)
            except TimeoutError:
                # Nothing is left in the queue; only then may it end.
                if self.stopped.is_set():
                    return
                continue
            if port in self._ports and kind != _OUTGOING and (said := parse_announcement(frame)) is not None:
                self._heard.append(Announcement(port, *said))


def parse_announcement(frame: bytes) -> tuple[str, bool] | None:
    """The address that the sender of an Ethernet frame claims, and whether as an answer; None where it claims none.

    An ARP packet of any kind teaches its hearers the sender's address (RFC 826); so does a solicitation its source's.
    """
    kind = int.from_bytes(frame[12:14])
    if kind == _ARP:
        operation, sender, target = int.from_bytes(frame[20:22]), frame[28:32], frame[38:42]
        answer = operation == _REPLY and sender != target
        return (str(ip_address(sender)), answer) if any(sender) else None
    if kind != _IPV6 or len(frame) < 78:
        return None
    match frame[54]:
        case 136:
            solicited = bool(frame[58] & 0x40)
            return str(ip_address(frame[62:78])), solicited
        case 135 if any(frame[22:38]):
            return str(ip_address(frame[22:38])), False
    return None


def _open() -> socket.socket:
    # Never bound, it hears every link of the namespace.
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    program = b"".join(struct.pack("=HBBI", *step) for step in _PROGRAM)
    kept = ctypes.create_string_buffer(program)
    made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(_PROGRAM), ctypes.addressof(kept)))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    made.settimeout(_LOOK)
    return made
