"""Addresses: the codec (`struct ifaddrmsg`, linux/if_addr.h), a link's addresses brought in line, pods' addresses read.

    sync_addresses(link, wanted, ...)             all addresses of a link of ours, in the link's namespace
    read_peer_addresses(names, connection)        what addresses the pods' ends of veths have, read from the host's side

Reading pods' addresses enters no other namespace: the kernel has a number for every namespace that a link of this one
leads to. Numbers of namespaces and indices of links in them are used again when a pod has gone. So an answer counts
only if the host's end is still the same afterwards: as long as it is, its other end is where it was.

Everything runs in a worker's thread.
"""

import errno
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from typing import Final

from coil.kernel.family import Family, IPAddress, IPInterface, IPNetwork
from coil.kernel.link import Address, Link, LinkName
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link import read_links
from coil.netlink.wire import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    Request,
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


def parse_address_place(body: bytes) -> tuple[int, IPAddress]:
    """The index of the link of an RTM_NEWADDR or RTM_DELADDR message, and the address."""
    attributes = parse_attributes(body, _IFADDR.size)
    return parse_address_index(body), ip_address(attributes.get(_IFA_LOCAL) or attributes[_IFA_ADDRESS])


def read_all_addresses(connection: Connection) -> frozenset[IPAddress]:
    """The addresses of all links of the socket's namespace, of both families."""
    bodies = (body for family in Family for body in connection.dump(dump_addresses(family)))
    return frozenset(parse_address_place(body)[1] for body in bodies)


def parse_address(body: bytes, names: Mapping[int, LinkName]) -> Address | None:
    """Read an RTM_NEWADDR message; None if its link is not in `names`, which is to say that it is gone."""
    _family, prefix_length, _flags, _scope, index = _IFADDR.unpack_from(body)
    attributes = parse_attributes(body, _IFADDR.size)
    packed = attributes.get(_IFA_LOCAL) or attributes[_IFA_ADDRESS]
    name = names.get(index)
    return Address(name, ip_interface((packed, prefix_length))) if name is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressChanges:
    """What was done to a link, sorted."""

    added: tuple[IPInterface, ...] = ()
    removed: tuple[IPInterface, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def read_addresses(link: Link, connection: Connection) -> set[IPInterface]:
    """The addresses of one link, of both families."""
    names = {link.index: link.name}
    bodies = (body for family in Family for body in connection.dump(dump_addresses_of(family, link.index, None)))
    return {address.interface for body in bodies if (address := parse_address(body, names)) is not None}


def sync_addresses(
    link: Link, wanted: Collection[IPInterface], *, add: Callable[[Address, int], Request], connection: Connection
) -> AddressChanges:
    """Make `wanted` the addresses of the link, and no others. First what leaves goes, then what comes is added with the
    request that `add` makes. Idempotent. Raises the first KernelError after having tried all.
    """
    want = set(wanted)
    have = read_addresses(link, connection)
    removed = sorted(have - want, key=_order)
    errors = connection.submit(
        [delete_address(Address(link.name, interface), link.index) for interface in removed],
        tolerate={errno.EADDRNOTAVAIL},
    )
    if removed:
        # In IPv4 the others of a network may go with its first address (promote_secondaries).
        have = read_addresses(link, connection)
    added = sorted(want - have, key=_order)
    errors += connection.submit(
        [add(Address(link.name, interface), link.index) for interface in added], tolerate={errno.EEXIST}
    )
    for error in errors:
        raise error
    return AddressChanges(added=tuple(added), removed=tuple(removed))


def _order(interface: IPInterface) -> tuple[int, int, int]:
    return interface.version, int(interface.ip), interface.network.prefixlen


_GONE: Final = {errno.ENODEV, errno.EINVAL}
"""No such link, no such namespace."""


def read_peer_addresses(names: Collection[LinkName], connection: Connection) -> dict[LinkName, tuple[IPAddress, ...]]:
    """The addresses at the other end of each link that stand alone (/32, /128), as pods' do; not those for the link.

    IPv4 comes first, and in each family what was added first. Empty for a link that has no other end; links that are
    gone are left out. Raises NetlinkError where the kernel would not tell: nothing follows from that about a pod.
    """
    answers: dict[LinkName, tuple[Link, tuple[IPAddress, ...] | None]] = {}
    for link in read_links(connection):
        if link.name in names:
            answers[link.name] = link, _addresses_at_peer(link, connection)
    found: dict[LinkName, tuple[IPAddress, ...]] = {}
    for link in read_links(connection):
        before, addresses = answers.get(link.name, (link, ()))
        if link.name not in answers or link.index != before.index:
            continue
        if addresses is None or _peer(link) != _peer(before):
            raise NetlinkError(f"the other end of {link.name} cannot be looked at")
        found[link.name] = addresses
    return found


def _addresses_at_peer(link: Link, connection: Connection) -> tuple[IPAddress, ...] | None:
    """None where the kernel knows of no such link or namespace."""
    if not link.peer_index:
        return ()
    names = {link.peer_index: link.name}
    found: list[IPAddress] = []
    try:
        for family in Family:
            bodies = connection.dump(dump_addresses_of(family, link.peer_index, link.peer_netns))
            if family is Family.IPV6:
                bodies.reverse()  # the kernel has the latest first (ipv6_link_dev_addr)
            found += (
                address.interface.ip
                for body in bodies
                if (address := parse_address(body, names)) is not None and _stands_alone(address.interface.network)
            )
    except KernelError as error:
        if error.errno not in _GONE:
            raise
        return None
    return tuple(found)


def _stands_alone(network: IPNetwork) -> bool:
    return network.prefixlen == network.max_prefixlen and not network.is_link_local


def _peer(link: Link) -> tuple[int, int | None]:
    return link.peer_index, link.peer_netns
