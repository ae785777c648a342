"""A link's offloads (SIOCETHTOOL, linux/ethtool.h). Runs in a thread that is in the link's namespace."""

import array
import fcntl
import socket
import struct
from typing import Final

from coil.kernel.link import LinkName
from coil.netlink.error import NetlinkError

_SIOCETHTOOL: Final = 0x8946
_GTXCSUM: Final = 0x16
_STXCSUM: Final = 0x17
_IFREQ: Final = struct.Struct("16sP16x")  # ifr_name, ifr_data
_VALUE: Final = struct.Struct("II")  # ethtool_value: command, data


def has_tx_checksum(name: LinkName) -> bool:
    """Whether checksums of what the link sends are left to what comes after it. Raises NetlinkError."""
    return bool(_ask(name, _GTXCSUM, 0))


def disable_tx_checksum(name: LinkName) -> None:
    """Have the kernel compute the checksums of what the link sends, and cut segments before that. Idempotent.

    Raises NetlinkError.
    """
    if has_tx_checksum(name):
        _ask(name, _STXCSUM, 0)


def _ask(name: LinkName, command: int, data: int) -> int:
    value = array.array("B", _VALUE.pack(command, data))
    request = _IFREQ.pack(name.encode(), value.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
            fcntl.ioctl(opened, _SIOCETHTOOL, request)
    except OSError as error:
        raise NetlinkError(f"cannot switch the checksum offload of {name}: {error.strerror}") from error
    return int(_VALUE.unpack_from(value)[1])
