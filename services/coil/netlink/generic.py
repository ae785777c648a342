"""Generic netlink (linux/genetlink.h): one protocol for many families, each of which has a number that the kernel gives
it when its module is loaded.
"""

import errno
import struct
from typing import Final

from coil.netlink.connection import Connection
from coil.netlink.error import KernelError
from coil.netlink.wire import Request, attribute_text, parse_attributes, parse_u16

NETLINK_GENERIC: Final = 16  # linux/netlink.h; the socket module has it from Python 3.12 on

_HEADER: Final = struct.Struct("=BBxx")  # command, version
_CONTROLLER: Final = 16  # the family that knows the others
_CONTROLLER_VERSION: Final = 2
_GET_FAMILY: Final = 3
_ATTR_FAMILY_ID: Final = 1
_ATTR_FAMILY_NAME: Final = 2


def find_family(name: str, connection: Connection) -> int | None:
    """The number of the family `name`, for the `type` of its requests; None where no module of the kernel has it.

    `connection` speaks NETLINK_GENERIC. The number is good until the module is unloaded.
    """
    try:
        answer = connection.get(get_family(name))
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return parse_u16(parse_generic(answer)[_ATTR_FAMILY_ID])


def get_family(name: str) -> Request:
    """Ask for a family."""
    body = generic_body(_GET_FAMILY, _CONTROLLER_VERSION, attribute_text(_ATTR_FAMILY_NAME, name))
    return Request(_CONTROLLER, 0, body, ("find the netlink family", name))


def generic_body(command: int, version: int, attributes: bytes = b"") -> bytes:
    """What follows the netlink header in a message of any family."""
    return _HEADER.pack(command, version) + attributes


def parse_generic(body: bytes) -> dict[int, bytes]:
    """The attributes of a message of any family."""
    return parse_attributes(body, _HEADER.size)
