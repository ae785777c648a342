"""VXLAN links on the wire: the IFLA_VXLAN_* attributes (linux/if_link.h).

A change names only what is to change: the kernel keeps the rest (vxlan_nl2conf).
"""

from ipaddress import ip_address

from coil.kernel.link import Link
from coil.kernel.vxlan import VXLAN_KIND, Vxlan, VxlanState
from coil.netlink.link_message import change_virtual_link, new_virtual_link, parse_link_data
from coil.netlink.request import Request
from coil.netlink.wire import (
    attribute,
    attribute_be16,
    attribute_u8,
    attribute_u32,
    parse_attributes,
    parse_be16,
    parse_u8,
    parse_u32,
)

_ID = 1
_GROUP = 2
_LINK = 3
_LOCAL = 4
_LEARNING = 7
_PORT = 15
_GROUP6 = 16
_LOCAL6 = 17
_COLLECT_METADATA = 25
_NOT_PLAIN = (_GROUP, _LINK, _GROUP6)


def new_vxlan(vxlan: Vxlan) -> Request:
    """Make the link, down. EEXIST where its name is taken, or another link has its VNI on its port."""
    data = attribute_u32(_ID, vxlan.vni) + attribute_be16(_PORT, vxlan.port) + _changeable(vxlan)
    return new_virtual_link(vxlan.name, VXLAN_KIND, data, mtu=vxlan.mtu)


def set_vxlan(vxlan: Vxlan) -> Request:
    """Change what can be changed of the link of that name. EOPNOTSUPP where its family is another."""
    return change_virtual_link(vxlan.name, VXLAN_KIND, _changeable(vxlan), mtu=0)


def _changeable(vxlan: Vxlan) -> bytes:
    local = _LOCAL if vxlan.local.version == 4 else _LOCAL6
    return attribute(local, vxlan.local.packed) + attribute_u8(_LEARNING, 0)


def parse_vxlan(body: bytes, link: Link) -> VxlanState | None:
    """Read an RTM_NEWLINK message whose link is `link`; None if it is of another kind."""
    if link.kind != VXLAN_KIND:
        return None
    data = parse_attributes(parse_link_data(body), 0)
    local = data.get(_LOCAL) or data.get(_LOCAL6)
    # A number on the way out (vxlan_fill_info), though it is read as one, too.
    flow_based = _COLLECT_METADATA in data and data[_COLLECT_METADATA] != b"\0"
    return VxlanState(
        vni=parse_u32(data[_ID]) if _ID in data else 0,
        port=parse_be16(data[_PORT]) if _PORT in data else 0,
        local=ip_address(local) if local else None,
        learning=bool(parse_u8(data[_LEARNING])) if _LEARNING in data else False,
        plain=not flow_based and not any(kind in data for kind in _NOT_PLAIN),
    )
