"""Links: the codec (`struct ifinfomsg` and IFLA_*, linux/if_link.h, linux/veth.h), and reading them."""

import errno
import struct

from coil.kernel.link import Link, LinkGroup, LinkName, LinkState, MacAddress
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError
from coil.netlink.wire import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    Request,
    attribute,
    attribute_s32,
    attribute_text,
    attribute_u32,
    parse_attributes,
    parse_s32,
    parse_text,
    parse_u32,
)

RTM_NEWLINK = 16
RTM_DELLINK = 17
RTM_GETLINK = 18
RTM_SETLINK = 19
RTM_NEWLINKPROP = 108
RTNLGRP_LINK = 1

_IFINFO = struct.Struct("=BxHiII")  # family, device type, index, flags, mask of the flags to change
_IFF_UP = 1
_IF_OPER_UP = b"\x06"

_IFLA_ADDRESS = 1
_IFLA_IFNAME = 3
_IFLA_MTU = 4
_IFLA_LINK = 5
_IFLA_MASTER = 10
_IFLA_OPERSTATE = 16
_IFLA_LINKINFO = 18
_IFLA_IFALIAS = 20
_IFLA_GROUP = 27
_IFLA_NET_NS_FD = 28
_IFLA_EXT_MASK = 29
_IFLA_LINK_NETNSID = 37
_IFLA_TARGET_NETNSID = 46
_IFLA_PROP_LIST = 52
_IFLA_ALT_IFNAME = 53
_NESTED = 0x8000
_IFLA_INFO_KIND = 1
_IFLA_INFO_DATA = 2
_IFLA_INFO_SLAVE_KIND = 4
_IFLA_INFO_SLAVE_DATA = 5
_VETH_INFO_PEER = 1
_RTEXT_FILTER_SKIP_STATS = 1 << 3


def new_veth(
    name: LinkName,
    mac: MacAddress,
    *,
    mtu: int,
    peer: LinkName,
    peer_mac: MacAddress,
    peer_group: LinkGroup,
    peer_netns: int,
) -> Request:
    """Make a veth, both ends down: `name` in the socket's namespace, `peer` in that of the open file
    `peer_netns`.

    One message, so there is no moment at which only one end exists or one end is in the wrong namespace.
    """
    peer_end = (
        _IFINFO.pack(0, 0, 0, 0, 0)
        + _veth_end(peer, peer_mac, mtu)
        + attribute_u32(_IFLA_GROUP, peer_group)
        + attribute_u32(_IFLA_NET_NS_FD, peer_netns)
    )
    data = attribute(_VETH_INFO_PEER, peer_end)
    info = attribute_text(_IFLA_INFO_KIND, "veth") + attribute(_IFLA_INFO_DATA, data)
    body = _IFINFO.pack(0, 0, 0, 0, 0) + _veth_end(name, mac, mtu) + attribute(_IFLA_LINKINFO, info)
    return Request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, ("create veth", name, "with peer", peer))


def _veth_end(name: LinkName, mac: MacAddress, mtu: int) -> bytes:
    return (
        attribute_text(_IFLA_IFNAME, name)
        + attribute(_IFLA_ADDRESS, bytes.fromhex(mac.replace(":", "")))
        + attribute_u32(_IFLA_MTU, mtu)
    )


def new_virtual_link(name: LinkName, kind: str, data: bytes, *, mtu: int) -> Request:
    """Make a link of a kind that its module describes by the attributes `data`, down; `mtu` 0 is the kind's own."""
    return Request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, _virtual_link(name, kind, data, mtu), ("create", kind, name))


def change_virtual_link(name: LinkName, kind: str, data: bytes, *, mtu: int) -> Request:
    """Change what `data` says of the link that is there, and its MTU; everything else stays."""
    return Request(RTM_NEWLINK, 0, _virtual_link(name, kind, data, mtu), ("change", kind, name))


def _virtual_link(name: LinkName, kind: str, data: bytes, mtu: int) -> bytes:
    info = attribute_text(_IFLA_INFO_KIND, kind) + attribute(_IFLA_INFO_DATA, data)
    body = _IFINFO.pack(0, 0, 0, 0, 0) + attribute_text(_IFLA_IFNAME, name) + attribute(_IFLA_LINKINFO, info)
    return body + attribute_u32(_IFLA_MTU, mtu) if mtu else body


def parse_link_data(body: bytes) -> bytes:
    """What the kind of the link of an RTM_NEWLINK message says about it: attributes, of whose meaning the kind is."""
    attributes = parse_attributes(body, _IFINFO.size)
    return parse_attributes(attributes.get(_IFLA_LINKINFO, b""), 0).get(_IFLA_INFO_DATA, b"")


def set_alias(index: int, alias: str) -> Request:
    """Write the link's alias (`ip link set alias`)."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + attribute(_IFLA_IFALIAS, alias.encode())
    return Request(RTM_SETLINK, 0, body, ("set the alias", alias))


def set_up(index: int) -> Request:
    """Bring the link up."""
    return Request(RTM_SETLINK, 0, _IFINFO.pack(0, 0, index, _IFF_UP, _IFF_UP), ("set up link", index))


def set_mac(index: int, mac: MacAddress) -> Request:
    """Give the link that hardware address. EBUSY where it is of a kind that has to be down for that."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + attribute(_IFLA_ADDRESS, bytes.fromhex(mac.replace(":", "")))
    return Request(RTM_SETLINK, 0, body, ("set the hardware address", mac))


def set_mtu(index: int, mtu: int) -> Request:
    """Set the link's MTU. EINVAL where it is more than the link can have."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + attribute_u32(_IFLA_MTU, mtu)
    return Request(RTM_SETLINK, 0, body, ("set the MTU to", mtu))


def set_master(index: int, master: int) -> Request:
    """Make the link a port of the bridge `master`; 0: of none."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + attribute_u32(_IFLA_MASTER, master)
    return Request(RTM_SETLINK, 0, body, ("make link", index, "a port of link", master))


def change_port(index: int, kind: str, data: bytes) -> Request:
    """Change what `data` says of a port of a link of that kind. EINVAL where it is a port of none."""
    info = attribute_text(_IFLA_INFO_SLAVE_KIND, kind) + attribute(_IFLA_INFO_SLAVE_DATA, data)
    body = _IFINFO.pack(0, 0, index, 0, 0) + attribute(_IFLA_LINKINFO, info)
    return Request(RTM_NEWLINK, 0, body, ("change the port", index))


def rename_link(index: int, name: LinkName) -> Request:
    """Give the link another name. EBUSY where it is up (before Linux 6.3), EEXIST where the name is taken."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + attribute_text(_IFLA_IFNAME, name)
    return Request(RTM_SETLINK, 0, body, ("rename link to", name))


def add_alternative_name(index: int, name: str) -> Request:
    """Have the link found by another name as well. EEXIST where the name is taken, EOPNOTSUPP before Linux 5.5."""
    names = attribute(_IFLA_PROP_LIST | _NESTED, attribute_text(_IFLA_ALT_IFNAME, name))
    body = _IFINFO.pack(0, 0, index, 0, 0) + names
    return Request(RTM_NEWLINKPROP, NLM_F_CREATE | NLM_F_EXCL, body, ("name the link", name))


def delete_link(name: LinkName) -> Request:
    """Delete the link, and with a veth its peer."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + attribute_text(_IFLA_IFNAME, name)
    return Request(RTM_DELLINK, 0, body, ("delete link", name))


def set_group(name: LinkName, group: LinkGroup) -> Request:
    """Put the link into a group."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + attribute_text(_IFLA_IFNAME, name) + attribute_u32(_IFLA_GROUP, group)
    return Request(RTM_SETLINK, 0, body, ("mark link", name))


def delete_group(group: LinkGroup) -> Request:
    """Delete all links of the group. ESRCH where it is empty."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + attribute_u32(_IFLA_GROUP, group)
    return Request(RTM_DELLINK, 0, body, ("delete the marked links",))


def get_link(name: LinkName, netns: int | None = None) -> Request:
    """Ask for one link by name, in the namespace that has the number `netns` here, or in the socket's.

    ENODEV where there is no such link, EINVAL where there is no such namespace.
    """
    mask = attribute_u32(_IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
    body = _IFINFO.pack(0, 0, 0, 0, 0) + attribute_text(_IFLA_IFNAME, name) + mask
    if netns is not None:
        body += attribute_s32(_IFLA_TARGET_NETNSID, netns)
    return Request(RTM_GETLINK, 0, body, ("read link", name))


def dump_links() -> Request:
    """Ask for all links, without their counters."""
    mask = attribute_u32(_IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
    return Request(RTM_GETLINK, NLM_F_DUMP, _IFINFO.pack(0, 0, 0, 0, 0) + mask, ("list links",))


def parse_link(body: bytes) -> Link:
    """Read an RTM_NEWLINK or RTM_DELLINK message."""
    _family, _type, index, flags, _change = _IFINFO.unpack_from(body)
    attributes = parse_attributes(body, _IFINFO.size)
    mac = attributes.get(_IFLA_ADDRESS, b"")
    info = parse_attributes(attributes.get(_IFLA_LINKINFO, b""), 0)
    return Link(
        name=LinkName(parse_text(attributes[_IFLA_IFNAME])),
        index=index,
        mtu=parse_u32(attributes[_IFLA_MTU]) if _IFLA_MTU in attributes else 0,
        state=LinkState.UP if flags & _IFF_UP else LinkState.DOWN,
        mac=MacAddress(mac.hex(":")) if mac else None,
        alias=parse_text(attributes.get(_IFLA_IFALIAS, b"")),
        kind=parse_text(info.get(_IFLA_INFO_KIND, b"")),
        carrier=attributes.get(_IFLA_OPERSTATE) == _IF_OPER_UP,
        peer_index=parse_u32(attributes[_IFLA_LINK]) if _IFLA_LINK in attributes else 0,
        peer_netns=parse_s32(attributes[_IFLA_LINK_NETNSID]) if _IFLA_LINK_NETNSID in attributes else None,
        master=parse_u32(attributes[_IFLA_MASTER]) if _IFLA_MASTER in attributes else 0,
        group=parse_u32(attributes[_IFLA_GROUP]) if _IFLA_GROUP in attributes else LinkGroup.NONE,
    )


def find_link(name: LinkName, connection: Connection) -> Link | None:
    """The link of that name, or None."""
    try:
        return parse_link(connection.get(get_link(name)))
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return None
        raise


def read_links(connection: Connection) -> list[Link]:
    """All links of the namespace."""
    return [parse_link(body) for body in connection.dump(dump_links())]
