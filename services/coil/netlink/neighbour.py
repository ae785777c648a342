"""Neighbour tables and forwarding databases on the wire: `struct ndmsg` (linux/neighbour.h).

Three tables have one message: permanent neighbours (address to hardware address), proxy entries (addresses of other
links that a link answers for in neighbour discovery), and the forwarding database of a VXLAN link (hardware address to
underlay address, family AF_BRIDGE).
"""

import struct
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, MacAddress, Neighbour, NeighbourProxy
from coil.kernel.vxlan import ForwardingEntry
from coil.netlink.wire import (
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Request,
    attribute,
    attribute_u8,
    attribute_u32,
    parse_attributes,
)

RTM_NEWNEIGH = 28
RTM_DELNEIGH = 29
RTM_GETNEIGH = 30

_AF_BRIDGE = 7
_ND = struct.Struct("=BxHiHBB")  # family, link index, state, flags, type
_NDA_DST = 1
_NDA_LLADDR = 2
_NDA_IFINDEX = 8
_NDA_PROTOCOL = 12
_NUD_FAILED = 0x20
_NUD_NOARP = 0x40
_NUD_PERMANENT = 0x80
_NTF_SELF = 0x02
_NTF_MASTER = 0x04
_NTF_PROXY = 0x08
_NTF_STICKY = 0x40


def new_neighbour(neighbour: Neighbour, index: int) -> Request:
    """Add a permanent entry to the neighbour table of the link `index`."""
    body = _neighbour_body(neighbour, index)
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_EXCL, body, ("add", neighbour))


def put_neighbour(neighbour: Neighbour, index: int) -> Request:
    """The same in the place of what the table knows of that address."""
    body = _neighbour_body(neighbour, index)
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body, ("put", neighbour))


def _neighbour_body(neighbour: Neighbour, index: int) -> bytes:
    body = _ND.pack(neighbour.family, 0, index, _NUD_PERMANENT, 0, 0)
    return body + attribute(_NDA_DST, neighbour.address.packed) + attribute(_NDA_LLADDR, _octets(neighbour.mac))


def delete_neighbour(neighbour: Neighbour, index: int) -> Request:
    """Delete what the table knows of that address. ENOENT where that is nothing."""
    body = _ND.pack(neighbour.family, 0, index, 0, 0, 0) + attribute(_NDA_DST, neighbour.address.packed)
    return Request(RTM_DELNEIGH, 0, body, ("delete", neighbour))


def dump_neighbours(family: Family, index: int = 0) -> Request:
    """Ask for the neighbour entries of one link, or of all of them; the kernel filters."""
    body = _ND.pack(family, 0, 0, 0, 0, 0)
    if index:
        body += attribute_u32(_NDA_IFINDEX, index)
    return Request(RTM_GETNEIGH, NLM_F_DUMP, body, ("list neighbours",))


def get_neighbour(neighbour: Neighbour, index: int) -> Request:
    """Ask for the one entry of that address, on the link `index`. ENOENT where there is none."""
    body = _ND.pack(neighbour.family, 0, index, 0, 0, 0) + attribute(_NDA_DST, neighbour.address.packed)
    return Request(RTM_GETNEIGH, 0, body, ("look for", neighbour))


def parse_neighbour(body: bytes, names: Mapping[int, LinkName]) -> Neighbour | None:
    """Read an RTM_NEWNEIGH message; None for entries that are not permanent and for links that are gone."""
    _family, _pad, index, state, _flags, _type = _ND.unpack_from(body)
    attributes = parse_attributes(body, _ND.size)
    name = names.get(index)
    if not state & _NUD_PERMANENT or name is None or _NDA_LLADDR not in attributes:
        return None
    mac = MacAddress(attributes[_NDA_LLADDR].hex(":"))
    return Neighbour(name, ip_address(attributes[_NDA_DST]), mac)


def parse_deleted_neighbour(body: bytes) -> IPAddress | None:
    """The address of an RTM_DELNEIGH message; None where the entry has gone with its link, or by itself.

    The kernel turns an entry that is deleted into a failed one before it tells; one that goes with its link keeps its
    state (neigh_delete, neigh_flush_dev in net/core/neighbour.c).
    """
    family, _pad, _index, state, flags, _type = _ND.unpack_from(body)
    destination = parse_attributes(body, _ND.size).get(_NDA_DST)
    if family not in tuple(Family) or flags & _NTF_PROXY or state != _NUD_FAILED or destination is None:
        return None
    return ip_address(destination)


def put_proxy(proxy: NeighbourProxy, index: int, *, protocol: int) -> Request:
    """Let the link `index` answer for the address. `protocol` says whose entry it is, as with routes."""
    body = _proxy_body(proxy, index) + attribute_u8(_NDA_PROTOCOL, protocol)
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body, ("put", proxy))


def delete_proxy(proxy: NeighbourProxy, index: int) -> Request:
    """Let it answer no more. ENOENT where there is no such entry."""
    return Request(RTM_DELNEIGH, 0, _proxy_body(proxy, index), ("delete", proxy))


def _proxy_body(proxy: NeighbourProxy, index: int) -> bytes:
    return _ND.pack(Family.IPV6, 0, index, 0, _NTF_PROXY, 0) + attribute(_NDA_DST, proxy.address.packed)


def dump_proxies() -> Request:
    """Ask for the proxy entries of IPv6 of all links."""
    return Request(RTM_GETNEIGH, NLM_F_DUMP, _ND.pack(Family.IPV6, 0, 0, 0, _NTF_PROXY, 0), ("list proxy neighbours",))


def parse_proxy(body: bytes, names: Mapping[int, LinkName], *, protocol: int) -> NeighbourProxy | None:
    """Read an RTM_NEWNEIGH message; None for an entry of another protocol, and
    for links that are gone.
    """
    _family, _pad, index, _state, flags, _type = _ND.unpack_from(body)
    attributes = parse_attributes(body, _ND.size)
    name = names.get(index)
    if not flags & _NTF_PROXY or name is None or attributes.get(_NDA_PROTOCOL) != bytes((protocol,)):
        return None
    return NeighbourProxy(name, IPv6Address(attributes[_NDA_DST]))


def put_forwarding(entry: ForwardingEntry, index: int) -> Request:
    """Send frames to that hardware address to that peer, in the place of the one they are sent to now."""
    body = _forwarding_body(entry, index, state=_NUD_PERMANENT)
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body, ("put", entry))


def delete_forwarding(entry: ForwardingEntry, index: int) -> Request:
    """Delete that entry, and no other of the same hardware address. ENOENT where it is not there."""
    return Request(RTM_DELNEIGH, 0, _forwarding_body(entry, index, state=0), ("delete", entry))


def append_forwarding(entry: ForwardingEntry, index: int) -> Request:
    """Send copies of frames to that hardware address to that peer, too. EEXIST where that is so already."""
    body = _forwarding_body(entry, index, state=_NUD_PERMANENT)
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_APPEND, body, ("append", entry))


def put_port_mac(mac: MacAddress, index: int) -> Request:
    """Tie a hardware address to the bridge's port `index`: a frame with that source that comes in elsewhere does not
    move it there (NTF_STICKY, Linux 4.20).
    """
    body = _ND.pack(_AF_BRIDGE, 0, index, _NUD_NOARP, _NTF_MASTER | _NTF_STICKY, 0) + attribute(
        _NDA_LLADDR, _octets(mac)
    )
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body, ("tie", mac, "to port", index))


def _forwarding_body(entry: ForwardingEntry, index: int, *, state: int) -> bytes:
    body = _ND.pack(_AF_BRIDGE, 0, index, state, _NTF_SELF, 0)
    return body + attribute(_NDA_LLADDR, _octets(entry.mac)) + attribute(_NDA_DST, entry.remote.packed)


def dump_forwarding(index: int) -> Request:
    """Ask for the forwarding database of one link; the kernel filters."""
    body = _ND.pack(_AF_BRIDGE, 0, index, 0, 0, 0)
    return Request(RTM_GETNEIGH, NLM_F_DUMP, body, ("list the forwarding entries of link", index))


def parse_forwarding(body: bytes, names: Mapping[int, LinkName]) -> ForwardingEntry | None:
    """Read an RTM_NEWNEIGH message of the family AF_BRIDGE; None for entries that are not permanent (they go by
    themselves), that lead to no address, and of links that are gone.
    """
    _family, _pad, _index, state, _flags, _type = _ND.unpack_from(body)
    return parse_any_forwarding(body, names) if state & _NUD_PERMANENT else None


def parse_any_forwarding(body: bytes, names: Mapping[int, LinkName]) -> ForwardingEntry | None:
    """The same, whether or not the entry is permanent."""
    _family, _pad, index, _state, _flags, _type = _ND.unpack_from(body)
    attributes = parse_attributes(body, _ND.size)
    name = names.get(index)
    if name is None or _NDA_DST not in attributes:
        return None
    return ForwardingEntry(name, MacAddress(attributes[_NDA_LLADDR].hex(":")), ip_address(attributes[_NDA_DST]))


def _octets(mac: MacAddress) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
