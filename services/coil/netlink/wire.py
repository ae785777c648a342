"""Netlink's framing (RFC 3549, linux/netlink.h): headers, attributes, and a request before it has a sequence number."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
ATTRIBUTE = struct.Struct("=HH")  # length, type
U16 = struct.Struct("=H")
BE16 = struct.Struct(">H")
U32 = struct.Struct("=I")
S32 = struct.Struct("=i")

NLMSG_ERROR = 2
NLMSG_DONE = 3

NLM_F_REQUEST = 0x001
NLM_F_ACK = 0x004
NLM_F_DUMP_INTR = 0x010
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800
NLM_F_DUMP = 0x300

NLM_F_ACK_TLVS = 0x200  # in an answer: attributes follow the error
NLMSGERR_ATTR_MSG = 1

_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")
_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded."""
    return ATTRIBUTE.pack(4 + len(payload), kind) + payload + _PADDING[len(payload) % 4]


def attribute_u8(kind: int, number: int) -> bytes:
    """One attribute that holds an 8-bit number."""
    return attribute(kind, bytes((number,)))


def attribute_u16(kind: int, number: int) -> bytes:
    """One attribute that holds a 16-bit number."""
    return attribute(kind, U16.pack(number))


def attribute_be16(kind: int, number: int) -> bytes:
    """One attribute that holds a 16-bit number in network byte order, as ports are."""
    return attribute(kind, BE16.pack(number))


def attribute_u32(kind: int, number: int) -> bytes:
    """One attribute that holds a 32-bit number."""
    return attribute(kind, U32.pack(number))


def attribute_s32(kind: int, number: int) -> bytes:
    """One attribute that holds a signed 32-bit number."""
    return attribute(kind, S32.pack(number))


def attribute_text(kind: int, text: str) -> bytes:
    """One attribute that holds a string with its final zero."""
    return attribute(kind, text.encode() + b"\0")


def parse_attributes(data: bytes, offset: int) -> dict[int, bytes]:
    """The attributes from `offset` to the end of `data`, by type. Raises ValueError on a truncated one."""
    attributes: dict[int, bytes] = {}
    end = len(data)
    while offset + 4 <= end:
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or offset + length > end:
            raise ValueError("truncated netlink attribute")
        attributes[kind & _TYPE_MASK] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return attributes


def parse_u8(payload: bytes) -> int:
    """The number that `attribute_u8` wrote."""
    return payload[0]


def parse_u16(payload: bytes) -> int:
    """The number that `attribute_u16` wrote."""
    return int(U16.unpack(payload)[0])


def parse_be16(payload: bytes) -> int:
    """The number that `attribute_be16` wrote."""
    return int(BE16.unpack(payload)[0])


def parse_u32(payload: bytes) -> int:
    """The number that `attribute_u32` wrote."""
    return int(U32.unpack(payload)[0])


def parse_s32(payload: bytes) -> int:
    """The number that `attribute_s32` wrote."""
    return int(S32.unpack(payload)[0])


def parse_text(payload: bytes) -> str:
    """The string that `attribute_text` wrote. Bytes that are not UTF-8 (the kernel allows any) are replaced."""
    return payload.rstrip(b"\0").decode(errors="replace")


def split_messages(datagram: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """The messages of one datagram: type, flags, sequence number and what follows the header."""
    offset = 0
    while offset + HEADER.size <= len(datagram):
        length, kind, flags, sequence, _port = HEADER.unpack_from(datagram, offset)
        if length < HEADER.size or offset + length > len(datagram):
            raise ValueError("truncated netlink message")
        yield kind, flags, sequence, datagram[offset + HEADER.size : offset + length]
        offset += (length + 3) & ~3


@dataclass(frozen=True, slots=True)
class Request:
    """One message. `doing` says what it is for, in an error's words; it is put into text only when there is
    an error.
    """

    type: int
    flags: int
    body: bytes
    doing: tuple[object, ...]
