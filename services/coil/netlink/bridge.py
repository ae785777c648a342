"""Bridges on the wire (IFLA_BR_*, IFLA_BRPORT_*, linux/if_link.h), their ports, and what VXLAN ports flood to.

    ensure_bridge(bridge, connection) -> Link          there, as described, up
    ensure_uplink(vxlan, alias, bridge, connection)    a VXLAN link, which is the bridge's port before it comes up
    sync_flood(name, peers, connection)                exactly these peers get copies of what the link floods
    ensure_port(name, mac, bridge, connection)         a pod's link, a port to which its hardware address is tied
    release_port(name, bridge, connection)             a port no more

All begin with what the kernel says, so they repair whatever somebody else has changed, and are idempotent. Each runs in
a worker's thread, in the namespace of the links, and raises NetlinkError.
"""

import errno
from collections.abc import Collection
from typing import Final

from coil.kernel.bridge import BRIDGE_KIND, POD_FLAGS, UPLINK_FLAGS, Bridge, FloodChanges, PortFlags, diff_flood
from coil.kernel.family import IPAddress
from coil.kernel.link import Link, LinkName, LinkState, MacAddress, Sysctl
from coil.kernel.vxlan import VXLAN_KIND, Vxlan
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link import (
    change_port,
    change_virtual_link,
    find_link,
    get_link,
    new_virtual_link,
    parse_link,
    set_alias,
    set_mac,
    set_master,
    set_mtu,
    set_up,
)
from coil.netlink.neighbour import (
    append_forwarding,
    delete_forwarding,
    dump_forwarding,
    parse_any_forwarding,
    put_port_mac,
)
from coil.netlink.sysctl import ensure_sysctls
from coil.netlink.vxlan import ensure_vxlan
from coil.netlink.wire import Request, attribute_u8, attribute_u32

_STP_STATE = 5
_MCAST_SNOOPING = 23
_NF_CALL_IPTABLES, _NF_CALL_IP6TABLES, _NF_CALL_ARPTABLES = 36, 37, 38
_PORT_LEARNING = 8
_PORT_UNICAST_FLOOD = 9

_SETTINGS: Final = (
    attribute_u32(_STP_STATE, 0)
    + attribute_u8(_MCAST_SNOOPING, 0)
    + attribute_u8(_NF_CALL_IPTABLES, 0)
    + attribute_u8(_NF_CALL_IP6TABLES, 0)
    + attribute_u8(_NF_CALL_ARPTABLES, 0)
)
"""The last three: what is bridged passes no rules for the node's own packets, unless the node has that for all bridges
(net.bridge.bridge-nf-call-iptables). A kernel without br_netfilter skips them (br_changelink).
"""


def new_bridge(bridge: Bridge) -> Request:
    """Make the bridge, down. EEXIST where its name is taken."""
    return new_virtual_link(bridge.name, BRIDGE_KIND, _SETTINGS, mtu=bridge.mtu)


def set_bridge(bridge: Bridge) -> Request:
    """Give the bridge of that name the settings; ports and entries stay."""
    return change_virtual_link(bridge.name, BRIDGE_KIND, _SETTINGS, mtu=0)


def set_port_flags(index: int, flags: PortFlags) -> Request:
    """Change what its bridge does at the port `index`. EINVAL where it is a port of no bridge."""
    data = attribute_u8(_PORT_LEARNING, flags.learning) + attribute_u8(_PORT_UNICAST_FLOOD, flags.flood)
    return change_port(index, BRIDGE_KIND, data)


def ensure_bridge(bridge: Bridge, connection: Connection) -> Link:
    """Have the bridge there as described, and up; what hangs on it stays.

    Raises NetlinkError where another kind of link has the name, or one with another alias: it is somebody else's.
    """
    link = find_link(bridge.name, connection)
    if link is None:
        try:
            connection.apply((new_bridge(bridge),))
        except KernelError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise NetlinkError(f"{error}; is the module there? On the node, run `modprobe bridge`") from error
            raise
        link = parse_link(connection.get(get_link(bridge.name)))
    else:
        _refuse_strangers(link, BRIDGE_KIND, bridge.alias)
        connection.apply((set_bridge(bridge),))
    ipv6 = f"net/ipv6/conf/{bridge.name}"
    # No address that it was not given (IN6_ADDR_GEN_MODE_NONE), and nothing that a router on it advertises.
    ensure_sysctls(
        (
            Sysctl(f"{ipv6}/disable_ipv6", "0"),
            Sysctl(f"{ipv6}/addr_gen_mode", "1"),
            Sysctl(f"{ipv6}/accept_ra", "0"),
            Sysctl(f"{ipv6}/accept_dad", "0"),
        )
    )
    connection.apply(_alias_requests(link, bridge.alias))
    if link.mac != bridge.mac:
        connection.apply((set_mac(link.index, bridge.mac),))
    if link.mtu != bridge.mtu:
        connection.apply((set_mtu(link.index, bridge.mtu),))
    if link.state is not LinkState.UP:
        connection.apply((set_up(link.index),))
    return link


def ensure_uplink(vxlan: Vxlan, alias: str, bridge: Link, connection: Connection) -> bool:
    """Have the VXLAN link there as described, a port of `bridge`, and up. True if it was made, and floods to nobody.

    It comes up as a port: by itself it would hand the frames of others to the node.
    """
    link = find_link(vxlan.name, connection)
    if link is not None:
        _refuse_strangers(link, VXLAN_KIND, alias)
    created = ensure_vxlan(vxlan, connection, master=bridge.index)
    link = parse_link(connection.get(get_link(vxlan.name)))
    connection.apply([*_alias_requests(link, alias), set_port_flags(link.index, UPLINK_FLAGS)])
    return created


def sync_flood(name: LinkName, peers: Collection[IPAddress], connection: Connection) -> FloodChanges:
    """Make `peers` all to whom the VXLAN link sends anything, and forget what was learnt from others."""
    link = find_link(name, connection)
    if link is None:
        raise NetlinkError(f"there is no link {name}")
    names = {link.index: link.name}
    entries = (parse_any_forwarding(body, names) for body in connection.dump(dump_forwarding(link.index)))
    changes = diff_flood(link.name, {entry for entry in entries if entry is not None}, peers)
    errors = connection.submit(
        [delete_forwarding(entry, link.index) for entry in changes.deletes], tolerate={errno.ENOENT, errno.ESRCH}
    )
    errors += connection.submit(
        [append_forwarding(entry, link.index) for entry in changes.adds], tolerate={errno.EEXIST}
    )
    for error in errors:
        raise error
    return changes


def ensure_port(name: LinkName, mac: MacAddress, bridge: Link, connection: Connection) -> Link:
    """Have the pod's link a port of the bridge, with the pod's hardware address tied to it, and up.

    Raises NetlinkError where there is no such link, or where it is another bridge's port.
    """
    link = find_link(name, connection)
    if link is None:
        raise NetlinkError(f"there is no link {name}")
    if link.master not in (0, bridge.index):
        raise NetlinkError(f"the link {name} is a port of another link (index {link.master}) already")
    if link.master == 0:
        connection.apply((set_master(link.index, bridge.index),))
    requests = [set_port_flags(link.index, POD_FLAGS), put_port_mac(mac, link.index)]
    if link.state is not LinkState.UP:
        requests.append(set_up(link.index))
    connection.apply(requests)
    return link


def release_port(name: LinkName, bridge: Link, connection: Connection) -> None:
    """The link, if it is there, is no port of the bridge any more. A port of another one stays that."""
    link = find_link(name, connection)
    if link is not None and link.master == bridge.index:
        connection.apply((set_master(link.index, 0),), tolerate={errno.ENODEV})


def _refuse_strangers(link: Link, kind: str, alias: str) -> None:
    """An empty alias is what a process that was killed right after it made the link has left."""
    if link.kind != kind or link.alias not in ("", alias):
        raise NetlinkError(
            f"there is a link {link.name} already ({link.kind or 'no virtual link'}, alias {link.alias!r}), and it is "
            f"not the one for {alias}; if nobody needs it, run `ip link delete {link.name}` on the node"
        )


def _alias_requests(link: Link, alias: str) -> tuple[Request, ...]:
    return (set_alias(link.index, alias),) if link.alias != alias else ()
