"""VXLAN: the codec (IFLA_VXLAN_*, linux/if_link.h), the tunnel's link, and what it knows of its peers.

    ensure_vxlan(vxlan, connection) -> bool               True if it was made anew, without peers and routes
    sync_peers(name, peers, connection) -> PeerChanges

Both begin with what the kernel says, so they repair whatever somebody else has changed. A change names only what is to
change: the kernel keeps the rest (vxlan_nl2conf). Runs in a worker's thread, in the namespace of the link.
"""

import errno
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from coil.kernel.family import Family
from coil.kernel.link import Link, LinkName, LinkState, Sysctl
from coil.kernel.vxlan import (
    VXLAN_KIND,
    OverlayPeer,
    PeerChanges,
    PeerTable,
    Vxlan,
    VxlanChange,
    VxlanState,
    diff_peers,
    diff_vxlan,
    plan_peers,
)
from coil.netlink.address import new_address, sync_addresses
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.ethtool import disable_tx_checksum
from coil.netlink.link import (
    change_virtual_link,
    find_link,
    get_link,
    new_virtual_link,
    parse_link,
    parse_link_data,
    set_mac,
    set_master,
    set_mtu,
    set_up,
)
from coil.netlink.neighbour import (
    delete_forwarding,
    delete_neighbour,
    dump_forwarding,
    dump_neighbours,
    parse_forwarding,
    parse_neighbour,
    put_forwarding,
    put_neighbour,
)
from coil.netlink.removal import remove_links
from coil.netlink.sysctl import ensure_sysctls
from coil.netlink.wire import (
    Request,
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
    return attribute(local, vxlan.local.packed) + attribute_u8(_LEARNING, int(vxlan.learning))


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
        bound=_LINK in data,
    )


_ABSENT: Final = {errno.ENOENT, errno.ESRCH}


def ensure_vxlan(vxlan: Vxlan, connection: Connection, *, master: int = 0) -> bool:
    """Have the link there, as described, up, and with exactly those addresses; a port of the link `master` before it
    comes up, of none with 0. Idempotent.

    Changed in place, with peers and routes, wherever the kernel allows; otherwise it is deleted and made anew: then
    this returns True, and peers and marks have to be synchronised. Raises NetlinkError where a link of another kind has
    the name, where another VXLAN link has the identifier and port, or where the kernel lacks the module.
    """
    link, change = _inspect(vxlan, connection)
    if link is not None and change is VxlanChange.RECREATE:
        remove_links((vxlan.name,))
        link = None
    created = link is None
    if link is None:
        _create(vxlan, connection)
        link = parse_link(connection.get(get_link(vxlan.name)))
    elif change is VxlanChange.IN_PLACE:
        connection.apply((set_vxlan(vxlan),))
    ensure_sysctls(_sysctls(vxlan))
    if not vxlan.checksum_offload:
        disable_tx_checksum(vxlan.name)
    if link.mac != vxlan.mac:
        connection.apply((set_mac(link.index, vxlan.mac),))
    if link.mtu != vxlan.mtu:
        connection.apply((set_mtu(link.index, vxlan.mtu),))
    if link.master != master:
        connection.apply((set_master(link.index, master),))
    if link.state is not LinkState.UP:
        connection.apply((set_up(link.index),))
    sync_addresses(link, vxlan.addresses, add=new_address, connection=connection)
    return created


def _inspect(vxlan: Vxlan, connection: Connection) -> tuple[Link | None, VxlanChange]:
    try:
        body = connection.get(get_link(vxlan.name))
    except KernelError as error:
        if error.errno != errno.ENODEV:
            raise
        return None, VxlanChange.NONE
    link = parse_link(body)
    state = parse_vxlan(body, link)
    if state is None:
        raise NetlinkError(
            f"there is a link {link.name} already, and it is no VXLAN ({link.kind or 'no virtual link'}); "
            f"if nobody needs it, run `ip link delete {link.name}` on the node"
        )
    return link, diff_vxlan(state, vxlan)


def _create(vxlan: Vxlan, connection: Connection) -> None:
    try:
        connection.apply((new_vxlan(vxlan),))
    except KernelError as error:
        if error.errno == errno.EEXIST:
            raise NetlinkError(
                f"{error}: another link has VNI {vxlan.vni} on port {vxlan.port}; choose another one"
            ) from error
        if error.errno == errno.EADDRINUSE:
            raise NetlinkError(f"{error}: UDP port {vxlan.port} is taken; choose another one") from error
        if error.errno == errno.EOPNOTSUPP:
            raise NetlinkError(f"{error}; is the module there? On the node, run `modprobe {VXLAN_KIND}`") from error
        raise


def _sysctls(vxlan: Vxlan) -> list[Sysctl]:
    """What has to be written before the link comes up.

    Replies come back through another link than the packets left by, so the reverse path filter must be loose (RFC 3704,
    section 2.4); the kernel takes the larger of this and what is set for all links.
    """
    ipv4 = f"net/ipv4/conf/{vxlan.name}"
    sysctls = [Sysctl(f"{ipv4}/rp_filter", "2"), Sysctl(f"{ipv4}/forwarding", "1")]
    if any(interface.version == 6 for interface in vxlan.addresses):
        sysctls.append(Sysctl(f"net/ipv6/conf/{vxlan.name}/disable_ipv6", "0"))
    # No address that it was not given (IN6_ADDR_GEN_MODE_NONE), and so no router solicitations to nobody.
    sysctls.append(Sysctl(f"net/ipv6/conf/{vxlan.name}/addr_gen_mode", "1"))
    return sysctls


def sync_peers(name: LinkName, peers: Iterable[OverlayPeer], connection: Connection) -> PeerChanges:
    """Make `peers` all that the link knows. Idempotent; one peer that changes is a few messages, whatever their number.

    Raises ValueError where two peers share an address, NetlinkError where there is no such link, or for the first entry
    that the kernel refused, after having tried the others.
    """
    wanted = plan_peers(name, peers)
    link = find_link(name, connection)
    if link is None:
        raise NetlinkError(f"there is no link {name}")
    changes = diff_peers(_read_peers(link, connection), wanted)
    errors = connection.submit(
        [
            *(delete_neighbour(neighbour, link.index) for neighbour in changes.neighbour_deletes),
            *(delete_forwarding(entry, link.index) for entry in changes.entry_deletes),
        ],
        tolerate=_ABSENT,
    )
    errors += connection.submit(
        [
            *(put_forwarding(entry, link.index) for entry in changes.entry_puts),
            *(put_neighbour(neighbour, link.index) for neighbour in changes.neighbour_puts),
        ]
    )
    for error in errors:
        raise error
    return changes


def _read_peers(link: Link, connection: Connection) -> PeerTable:
    names = {link.index: link.name}
    entries = (parse_forwarding(body, names) for body in connection.dump(dump_forwarding(link.index)))
    neighbours = (
        parse_neighbour(body, names)
        for family in Family
        for body in connection.dump(dump_neighbours(family, link.index))
    )
    return PeerTable(
        entries=frozenset(entry for entry in entries if entry is not None),
        neighbours=frozenset(neighbour for neighbour in neighbours if neighbour is not None),
    )
