"""Tunnels on the wire: the IFLA_IPTUN_* attributes of links of the kinds ipip and ip6tnl (linux/if_tunnel.h,
linux/ip6_tunnel.h).

A change has to name everything: the kernel takes what is left out for zero (ipip_netlink_parms, ip6_tnl_netlink_parms).
"""

from ipaddress import ip_address

from coil.kernel.family import Family
from coil.kernel.link import Link
from coil.kernel.tunnel import CatchAll, Tunnel, TunnelKind
from coil.netlink.link_message import change_virtual_link, new_virtual_link, parse_link_data
from coil.netlink.request import Request
from coil.netlink.wire import (
    attribute,
    attribute_be16,
    attribute_u8,
    attribute_u16,
    attribute_u32,
    parse_attributes,
    parse_be16,
    parse_u8,
    parse_u16,
)

_LOCAL = 2
_REMOTE = 3
_TTL = 4
_ENCAP_LIMIT = 6
_FLAGS = 8
_PROTO = 9
_ENCAP_TYPE = 15
_ENCAP_FLAGS = 16
_ENCAP_SPORT = 17
_ENCAP_DPORT = 18
_COLLECT_METADATA = 19
_TUNNEL_ENCAP_FOU = 1
_IP6_TNL_F_IGN_ENCAP_LIMIT = 1
_IPPROTO_IPIP = 4
_IPPROTO_IPV6 = 41


def new_tunnel(tunnel: Tunnel) -> Request:
    """Make the tunnel's link, down. EEXIST where there is a link of its name, or a tunnel between its ends."""
    return new_virtual_link(tunnel.name, tunnel.kind, _tunnel_data(tunnel), mtu=tunnel.mtu)


def set_tunnel(tunnel: Tunnel) -> Request:
    """Make the link of that name be the tunnel, in place. ENODEV where there is none."""
    return change_virtual_link(tunnel.name, tunnel.kind, _tunnel_data(tunnel), mtu=tunnel.mtu)


def new_catch_all(link: CatchAll) -> Request:
    """Make the flow-based link, down. EEXIST where its name is taken or the namespace has another one."""
    return new_virtual_link(link.name, link.kind, _protocol(link.family) + attribute(_COLLECT_METADATA, b""), mtu=0)


def _tunnel_data(tunnel: Tunnel) -> bytes:
    data = (
        attribute(_LOCAL, tunnel.local.packed)
        + attribute(_REMOTE, tunnel.remote.packed)
        + attribute_u8(_TTL, tunnel.ttl)
        + _protocol(tunnel.family)
        + attribute_u16(_ENCAP_TYPE, _TUNNEL_ENCAP_FOU)
        + attribute_u16(_ENCAP_FLAGS, 0)
        + attribute_be16(_ENCAP_SPORT, tunnel.source_port)
        + attribute_be16(_ENCAP_DPORT, tunnel.port)
    )
    if tunnel.family is Family.IPV6:
        data += attribute_u8(_ENCAP_LIMIT, 0) + attribute_u32(_FLAGS, _IP6_TNL_F_IGN_ENCAP_LIMIT)
    return data


def _protocol(family: Family) -> bytes:
    return attribute_u8(_PROTO, _IPPROTO_IPIP if family is Family.IPV4 else _IPPROTO_IPV6)


def parse_tunnel(body: bytes, link: Link) -> Tunnel | CatchAll | None:
    """Read an RTM_NEWLINK message whose link is `link`. None for all that is neither a tunnel in Foo-over-UDP nor
    flow-based.
    """
    if link.kind not in tuple(TunnelKind):
        return None
    data = parse_attributes(parse_link_data(body), 0)
    if _COLLECT_METADATA in data:
        return CatchAll(name=link.name, family=Family.IPV4 if link.kind == TunnelKind.IPIP else Family.IPV6)
    if parse_u16(data.get(_ENCAP_TYPE, b"\0\0")) != _TUNNEL_ENCAP_FOU or not any(data[_ENCAP_DPORT]):
        return None
    return Tunnel(
        name=link.name,
        local=ip_address(data[_LOCAL]),
        remote=ip_address(data[_REMOTE]),
        port=parse_be16(data[_ENCAP_DPORT]),
        source_port=parse_be16(data[_ENCAP_SPORT]),
        mtu=link.mtu,
        ttl=parse_u8(data[_TTL]),
    )
