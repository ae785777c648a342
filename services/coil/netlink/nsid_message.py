"""Numbers of namespaces on the wire (linux/net_namespace.h): each namespace counts those that its links lead to."""

import struct
from typing import Final

from coil.netlink.request import Request
from coil.netlink.wire import attribute_u32, parse_attributes, parse_s32

RTM_GETNSID: Final = 90

_RTGEN = struct.Struct("=Bxxx")  # family
_NETNSA_NSID = 1
_NETNSA_FD = 3
_NOT_ASSIGNED = -1


def get_netns_number(fd: int) -> Request:
    """Ask for the number that the socket's namespace has for the one that is open as `fd`."""
    return Request(RTM_GETNSID, 0, _RTGEN.pack(0) + attribute_u32(_NETNSA_FD, fd), ("find the number of a namespace",))


def parse_netns_number(body: bytes) -> int | None:
    """Read the answer; None where it has no number, so that no link leads there."""
    number = parse_s32(parse_attributes(body, _RTGEN.size)[_NETNSA_NSID])
    return None if number == _NOT_ASSIGNED else number
