"""IP sets (linux/netfilter/ipset/ip_set.h, ipset(8)): which there are in this namespace, and their end.

Coil has none; other programs leave some behind. Runs in a worker's thread, in the namespace.
"""

import errno
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coil.netlink.connection import Connection
from coil.netlink.monitor import NETLINK_NETFILTER
from coil.netlink.wire import NLM_F_DUMP, Request, attribute, attribute_text, attribute_u8, parse_attributes, parse_text

_IPSET: Final = 6  # NFNL_SUBSYS_IPSET
_DESTROY: Final = _IPSET << 8 | 3
_LIST: Final = _IPSET << 8 | 7
_GENERIC: Final = struct.Struct("!BBH")  # family, version, resource
_PROTOCOL: Final = 6
"""The version that kernels know since 2.6.39; newer ones know the next one as well."""
_ATTR_PROTOCOL, _ATTR_NAME, _ATTR_KIND, _ATTR_FLAGS = 1, 2, 3, 6
_NETWORK_ORDER: Final = 0x4000  # NLA_F_NET_BYTEORDER
_WITHOUT_ELEMENTS: Final = 1 << 2  # IPSET_FLAG_LIST_HEADER
_IN_USE: Final = 4096 + 4  # IPSET_ERR_BUSY

_LOADED: Final = Path("/sys/module/ip_set")
_ATTEMPTS: Final = 20
_PAUSE: Final = 0.05
"""Seconds. nf_tables lets go of the sets of deleted rules a moment after the transaction."""


@dataclass(frozen=True, slots=True)
class IpSet:
    """`kind` is the type as ipset(8) has it, such as "hash:net"."""

    name: str
    kind: str


def read_sets() -> list[IpSet]:
    """All sets, without what is in them; none where the kernel has not loaded the module, which to ask would load.

    Raises NetlinkError.
    """
    if not _LOADED.exists():
        return []
    with Connection(NETLINK_NETFILTER) as connection:
        return [parse_set(body) for body in connection.dump(dump_sets())]


def destroy_sets(names: Collection[str]) -> list[str]:
    """Have no such sets; those that rules still use stay, and are returned. Idempotent. Raises NetlinkError.

    Waits up to a second for rules that have just gone.
    """
    waiting = list(names)
    with Connection(NETLINK_NETFILTER) as connection:
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            waiting = [name for name in waiting if _is_in_use(name, connection)]
            if not waiting:
                break
    return waiting


def _is_in_use(name: str, connection: Connection) -> bool:
    for error in connection.submit([destroy_set(name)], tolerate={errno.ENOENT}):
        if error.errno != _IN_USE:
            raise error
        return True
    return False


def dump_sets() -> Request:
    """Ask for the names and kinds of all sets."""
    flags = attribute(_ATTR_FLAGS | _NETWORK_ORDER, struct.pack("!I", _WITHOUT_ELEMENTS))
    return Request(_LIST, NLM_F_DUMP, _head() + flags, ("list the IP sets",))


def destroy_set(name: str) -> Request:
    """Delete a set. ENOENT where there is none; see `_IN_USE`."""
    return Request(_DESTROY, 0, _head() + attribute_text(_ATTR_NAME, name), ("destroy the IP set", name))


def parse_set(body: bytes) -> IpSet:
    """Read an answer to `dump_sets`."""
    found = parse_attributes(body, _GENERIC.size)
    return IpSet(name=parse_text(found[_ATTR_NAME]), kind=parse_text(found[_ATTR_KIND]))


def _head() -> bytes:
    return _GENERIC.pack(0, 0, 0) + attribute_u8(_ATTR_PROTOCOL, _PROTOCOL)
