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
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Final

from coil.kernel.link import LinkName, MacAddress


@dataclass(frozen=True, slots=True)
class LinkAnswers:
    """Of a link: its index, its hardware address, and the addresses that are answered for there."""

    index: int
    mac: MacAddress
    addresses: frozenset[IPv4Address]


Answers = Mapping[LinkName, LinkAnswers]

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
_WHOLE: Final = 0x40000
"""Octets of a frame that are let through: all."""
_LOAD_HALF: Final = 0x28
_LOAD_WORD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_OPERATION: Final = 20
"""Offset in the frame."""
_INTERFACE: Final = 0xFFFFF008
"""SKF_AD_OFF + SKF_AD_IFINDEX (linux/filter.h)."""
_MOST_LINKS: Final = 250
"""A jump has eight bits."""

Instruction = tuple[int, int, int, int]
"""struct sock_filter (linux/filter.h): code, jump if true, jump if false, operand."""


class ArpResponder:
    """`opened` is of `open_arp_socket`, and closed by `close`."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._answers: Answers = {}

    def set_answers(self, answers: Answers) -> None:
        """Answer for these from now on. From any thread. Raises OSError where the kernel takes no filter; then the
        process may not hear of all requests.
        """
        self._answers = answers
        _attach(self._socket, plan_filter(sorted(each.index for each in answers.values() if each.addresses)))

    def keep(self, addresses: Container[object]) -> None:
        """Answer for no others from now on. From any thread."""
        self._answers = {
            link: replace(each, addresses=frozenset(one for one in each.addresses if one in addresses))
            for link, each in self._answers.items()
        }

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
        found = self._answers.get(link)
        if found is None or (asked := parse_request(frame)) is None:
            return
        _, sender, target = asked
        # Who announces an address does not ask for it.
        if sender != target and target in found.addresses and is_held(target):
            # Full queues and links that went: whoever asked asks again.
            with suppress(OSError):
                self._socket.sendto(render_reply(asked, bytes.fromhex(found.mac.replace(":", ""))), (link, _ETH_P_ARP))


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


def plan_filter(indices: Sequence[int]) -> list[Instruction]:
    """What lets through ARP requests that come by these links, and nothing else: pods, which may send what they like,
    come by others, and no request wakes a process that answers none. Of too many links, it does not tell them apart.
    """
    if not indices:
        return [(_RETURN, 0, 0, 0)]
    links = indices if len(indices) <= _MOST_LINKS else ()
    count = len(links)
    is_link = [(_JUMP_EQUAL, count - position, 0, index) for position, index in enumerate(links)]
    return [
        (_LOAD_HALF, 0, 0, _OPERATION),
        (_JUMP_EQUAL, 0, count + 1, _REQUEST) if links else (_JUMP_EQUAL, 1, 0, _REQUEST),
        *([(_LOAD_WORD, 0, 0, _INTERFACE)] if links else ()),
        *is_link,
        (_RETURN, 0, 0, 0),
        (_RETURN, 0, 0, _WHOLE),
    ]


def _attach(to: socket.socket, instructions: Sequence[Instruction]) -> None:
    buffer = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in instructions))
    program = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))  # struct sock_fprog
    to.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def open_arp_socket() -> socket.socket:
    """Of the namespace of the calling thread; it hears nothing yet. Raises OSError, PermissionError without
    CAP_NET_RAW.
    """
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    opened = socket.socket(socket.AF_PACKET, kind, socket.htons(_ETH_P_ARP))
    try:
        _attach(opened, plan_filter(()))
    except BaseException:
        opened.close()
        raise
    return opened
