"""Answers ARP requests for floating addresses where the kernel does not.

For an address of any link, the kernel answers on every link, as long as net.ipv4.conf.all.arp_ignore is 0. Others set
it on purpose: kube-proxy in IPVS mode (`strictARP`), and with it MetalLB. Then this process answers (RFC 826), by
frames of its own, which no filter for ARP sees. So `is_held` is asked right before each answer: a process that was
stopped for long must not speak of what its node has lost meanwhile.
"""

import asyncio
import ctypes
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Final

from coil.kernel.link import LinkName, MacAddress

Answers = Mapping[LinkName, tuple[MacAddress, frozenset[IPv4Address]]]
"""The hardware address of each link, and the addresses that are answered for there."""

_ETH_P_ARP: Final = 0x0806
_HEADER: Final = struct.Struct("!6s6sH")
_ARP: Final = struct.Struct("!HHBBH6s4s6s4s")  # hardware, protocol, their lengths, operation, sender, target
_FRAME: Final = _HEADER.size + _ARP.size
_ETHERNET: Final = (1, 0x0800, 6, 4)
_REQUEST: Final = 1
_REPLY: Final = 2
_TURN: Final = 64
"""Requests that are read before others of the event loop have their turn."""
_SO_ATTACH_FILTER: Final = 26
_FILTER: Final = (
    (0x28, 0, 0, 20),  # ldh [20]: the operation
    (0x15, 0, 1, _REQUEST),  # jeq #1
    (0x06, 0, 0, 0x40000),  # ret: the frame
    (0x06, 0, 0, 0),  # ret: nothing
)
"""struct sock_filter (linux/filter.h): of a busy segment's ARP, only requests wake the process."""


class ArpResponder:
    """`opened` is of `open_arp_socket`, and closed by `close`. `answers` may be set from any thread."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self.answers: Answers = {}

    def close(self) -> None:
        self._socket.close()

    async def run(self, is_held: Callable[[IPv4Address], bool]) -> None:
        """Answer until cancelled, for those addresses of which `is_held` is true at the moment."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._read, is_held)
        try:
            await asyncio.Event().wait()
        finally:
            loop.remove_reader(self._socket)

    def _read(self, is_held: Callable[[IPv4Address], bool]) -> None:
        for _ in range(_TURN):
            try:
                frame, (link, _, kind, *_) = self._socket.recvfrom(_FRAME)
            except OSError:  # nothing more; or a link went down, which the next look at the links finds
                return
            if kind in (socket.PACKET_HOST, socket.PACKET_BROADCAST):
                self._answer(frame, LinkName(link), is_held)

    def _answer(self, frame: bytes, link: LinkName, is_held: Callable[[IPv4Address], bool]) -> None:
        found = self.answers.get(link)
        if found is None or (asked := parse_request(frame)) is None:
            return
        mac, addresses = found
        _, sender, target = asked
        # Who announces an address does not ask for it.
        if sender != target and target in addresses and is_held(target):
            # Full queues and links that went: whoever asked asks again.
            with suppress(OSError):
                self._socket.sendto(render_reply(asked, bytes.fromhex(mac.replace(":", ""))), (link, _ETH_P_ARP))


Request = tuple[bytes, IPv4Address, IPv4Address]
"""Who asks: hardware and IPv4 address, 0.0.0.0 for a probe (RFC 5227); and for which address."""


def parse_request(frame: bytes) -> Request | None:
    """What an Ethernet frame asks for; None if it is no ARP request."""
    if len(frame) < _FRAME:
        return None
    *kind, operation, hardware, sender, _, target = _ARP.unpack_from(frame, _HEADER.size)
    if tuple(kind) != _ETHERNET or operation != _REQUEST:
        return None
    return hardware, IPv4Address(sender), IPv4Address(target)


def render_reply(request: Request, mac: bytes) -> bytes:
    """The frame that answers, from a link with that hardware address."""
    hardware, sender, target = request
    body = _ARP.pack(*_ETHERNET, _REPLY, mac, target.packed, hardware, sender.packed)
    return _HEADER.pack(hardware, mac, _ETH_P_ARP) + body


def open_arp_socket() -> socket.socket:
    """Of the namespace of the calling thread. Raises OSError, PermissionError without CAP_NET_RAW."""
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    opened = socket.socket(socket.AF_PACKET, kind, socket.htons(_ETH_P_ARP))
    try:
        code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _FILTER)
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("@HP", len(_FILTER), ctypes.addressof(buffer))  # struct sock_fprog
        opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except BaseException:
        opened.close()
        raise
    return opened
