"""Addresses on the wire: `struct ifaddrmsg` (linux/if_addr.h)."""

import struct
from collections.abc import Mapping
from ipaddress import ip_interface

from coil.kernel.address import Address
from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.netlink.request import Request
from coil.netlink.wire import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    attribute,
    attribute_s32,
    attribute_u32,
    parse_attributes,
)

RTM_NEWADDR = 20
RTM_DELADDR = 21
RTM_GETADDR = 22

_IFADDR = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, link index
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_FLAGS = 8
_IFA_TARGET_NETNSID = 10
_IFA_F_NODAD = 0x02
_IFA_F_PERMANENT = 0x80
_IFA_F_NOPREFIXROUTE = 0x200
_RT_SCOPE_LINK = 253
_RT_SCOPE_UNIVERSE = 0


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


def new_host_address(address: Address, index: int) -> Request:
    """The same for an address that is to have no other effect than that the node has it: no route to a network."""
    request = new_address(address, index)
    flags = _IFA_F_PERMANENT | _IFA_F_NOPREFIXROUTE | (_IFA_F_NODAD if address.family is Family.IPV6 else 0)
    # More than eight bits, so an attribute, which the kernel prefers to the byte in the struct.
    return Request(request.type, request.flags, request.body + attribute_u32(_IFA_FLAGS, flags), request.doing)


def delete_address(address: Address, index: int) -> Request:
    """Take an address of that prefix length off the link. EADDRNOTAVAIL where it is not there."""
    interface = address.interface
    body = _IFADDR.pack(address.family, interface.network.prefixlen, 0, 0, index)
    return Request(RTM_DELADDR, 0, body + attribute(_IFA_LOCAL, interface.ip.packed), ("delete", address))


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


def parse_address_index(body: bytes) -> int:
    """The index of the link of an RTM_NEWADDR or RTM_DELADDR message."""
    return int(_IFADDR.unpack_from(body)[4])


def parse_address(body: bytes, names: Mapping[int, LinkName]) -> Address | None:
    """Read an RTM_NEWADDR message; None if its link is not in `names`, which is to say that it is gone."""
    _family, prefix_length, _flags, _scope, index = _IFADDR.unpack_from(body)
    attributes = parse_attributes(body, _IFADDR.size)
    packed = attributes.get(_IFA_LOCAL) or attributes[_IFA_ADDRESS]
    name = names.get(index)
    return Address(name, ip_interface((packed, prefix_length))) if name is not None else None
