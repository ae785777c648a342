"""Addresses and neighbour entries on the wire: `struct ifaddrmsg` (linux/if_addr.h), `struct ndmsg`
(linux/neighbour.h).
"""

import struct
from collections.abc import Mapping
from ipaddress import ip_address, ip_interface

from coil.kernel.address import Address, Neighbour
from coil.kernel.family import Family
from coil.kernel.link import LinkName, MacAddress
from coil.netlink.request import Request
from coil.netlink.wire import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    attribute,
    attribute_s32,
    parse_attributes,
)

RTM_NEWADDR = 20
RTM_GETADDR = 22
RTM_NEWNEIGH = 28
RTM_GETNEIGH = 30

_IFADDR = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, link index
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_TARGET_NETNSID = 10
_IFA_F_NODAD = 0x02
_IFA_F_PERMANENT = 0x80
_RT_SCOPE_LINK = 253
_RT_SCOPE_UNIVERSE = 0

_ND = struct.Struct("=BxHiHBB")  # family, link index, state, flags, type
_NDA_DST = 1
_NDA_LLADDR = 2
_NUD_PERMANENT = 0x80


def new_address(address: Address, index: int) -> Request:
    """Add an address to the link `index`, in IPv6 without duplicate address detection.

    The scope of a link-local IPv4 address is LINK, as `ip address` would not choose by itself but RFC 3927
    says: it must never be the source of a packet that leaves by another link. IPv6 scopes follow from the
    address.
    """
    interface = address.interface
    link_local = interface.version == 4 and interface.ip.is_link_local
    body = _IFADDR.pack(
        address.family,
        interface.network.prefixlen,
        _IFA_F_PERMANENT | (_IFA_F_NODAD if interface.version == 6 else 0),
        _RT_SCOPE_LINK if link_local else _RT_SCOPE_UNIVERSE,
        index,
    )
    packed = interface.ip.packed
    attributes = attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
    return Request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body + attributes, ("add", address))


def dump_addresses(family: Family) -> Request:
    """Ask for the addresses of all links."""
    return Request(RTM_GETADDR, NLM_F_DUMP, _IFADDR.pack(family, 0, 0, 0, 0), ("list addresses",))


def dump_addresses_of(family: Family, index: int, netns: int | None) -> Request:
    """Ask for the addresses of the link `index` in the namespace of the number `netns`, or in the socket's.

    The kernel filters (a socket with strict checking). ENODEV where there is no such link, EINVAL where there is no
    such namespace.
    """
    body = _IFADDR.pack(family, 0, 0, 0, index)
    if netns is not None:
        body += attribute_s32(_IFA_TARGET_NETNSID, netns)
    return Request(RTM_GETADDR, NLM_F_DUMP, body, ("list addresses of link", index, "in namespace", netns))


def parse_address(body: bytes, names: Mapping[int, LinkName]) -> Address | None:
    """Read an RTM_NEWADDR message; None if its link is not in `names`, which is to say that it is gone."""
    _family, prefix_length, _flags, _scope, index = _IFADDR.unpack_from(body)
    attributes = parse_attributes(body, _IFADDR.size)
    packed = attributes.get(_IFA_LOCAL) or attributes[_IFA_ADDRESS]
    name = names.get(index)
    return Address(name, ip_interface((packed, prefix_length))) if name is not None else None


def new_neighbour(neighbour: Neighbour, index: int) -> Request:
    """Add a permanent entry to the neighbour table of the link `index`."""
    body = _ND.pack(neighbour.family, 0, index, _NUD_PERMANENT, 0, 0)
    attributes = attribute(_NDA_DST, neighbour.address.packed)
    attributes += attribute(_NDA_LLADDR, bytes.fromhex(neighbour.mac.replace(":", "")))
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_EXCL, body + attributes, ("add", neighbour))


def dump_neighbours(family: Family) -> Request:
    """Ask for the neighbour entries of all links."""
    return Request(RTM_GETNEIGH, NLM_F_DUMP, _ND.pack(family, 0, 0, 0, 0, 0), ("list neighbours",))


def parse_neighbour(body: bytes, names: Mapping[int, LinkName]) -> Neighbour | None:
    """Read an RTM_NEWNEIGH message; None for entries that are not permanent and for links that are gone."""
    _family, _pad, index, state, _flags, _type = _ND.unpack_from(body)
    attributes = parse_attributes(body, _ND.size)
    name = names.get(index)
    if not state & _NUD_PERMANENT or name is None or _NDA_LLADDR not in attributes:
        return None
    mac = MacAddress(attributes[_NDA_LLADDR].hex(":"))
    return Neighbour(name, ip_address(attributes[_NDA_DST]), mac)
