"""Connections as a node's conntrack knows them, and a segment that makes an end of one speak."""

import struct
from dataclasses import dataclass
from typing import Final

from coil.kernel.family import IPAddress

TCP: Final = 6
UDP: Final = 17

_ACK: Final = 0x10
_NO_FRAGMENTS: Final = 0x4000
_HOPS: Final = 64
_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")  # version and length, class, size, id, fragment, hops, protocol, checksum
_IPV6: Final = struct.Struct("!IHBB16s16s")  # version, class and label, size, protocol, hops
_SEGMENT: Final = struct.Struct("!HHIIBBHHH")  # ports, sequence, acknowledgement, length, flags, window, checksum
_SEGMENT_CHECKSUM: Final = 16
_IPV4_CHECKSUM: Final = 10


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address and a port; the port of a protocol without any is 0."""

    address: IPAddress
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A connection. `source` has begun it with a packet to `destination`; `target` answers it, and sees it come from
    `seen`: where nothing is translated, these are the former two.
    """

    protocol: int
    source: Endpoint
    destination: Endpoint
    target: Endpoint
    seen: Endpoint
    established: bool = False
    """TCP: both ends have agreed to it, and neither has ended it."""
    mark: int = 0
    handle: bytes = b""
    """What the kernel calls it by."""


def bare_acknowledgement(source: Endpoint, destination: Endpoint, *, sequence: int, acknowledged: int) -> bytes:
    """An IP packet with a TCP segment of nothing but an ACK (RFC 9293, section 3.1), checksums included. The numbers
    are of 32 bits.
    """
    words = (source.port, destination.port, sequence, acknowledged, _SEGMENT.size << 2, _ACK, 0, 0, 0)
    segment = bytearray(_SEGMENT.pack(*words))
    ends = source.address.packed + destination.address.packed
    struct.pack_into(
        "!H", segment, _SEGMENT_CHECKSUM, _checksum(ends + struct.pack("!II", len(segment), TCP) + segment)
    )
    if source.address.version == 6:
        return _IPV6.pack(6 << 28, len(segment), TCP, _HOPS, *_packed(source, destination)) + segment
    size = _IPV4.size + len(segment)
    header = bytearray(
        _IPV4.pack(4 << 4 | _IPV4.size >> 2, 0, size, 0, _NO_FRAGMENTS, _HOPS, TCP, 0, *_packed(source, destination))
    )
    struct.pack_into("!H", header, _IPV4_CHECKSUM, _checksum(header))
    return bytes(header + segment)


def _packed(source: Endpoint, destination: Endpoint) -> tuple[bytes, bytes]:
    return source.address.packed, destination.address.packed


def _checksum(data: bytes | bytearray) -> int:
    """RFC 1071, for an even number of octets: the sum of 16-bit words with end-around carry is the remainder modulo
    0xFFFF, as 0x10000 is 1 there.
    """
    return -int.from_bytes(data, "big") % 0xFFFF
