"""The link that floating addresses hang on, the addresses, who answers for them, and the links on which they are looked
for. Runs in a worker's thread.

    ensure_eip_link(name, connection)                                          a dummy, or a bridge without ports
    sync_eips(name, eips, parent=..., connection=...) -> AddressChanges        exactly these, none before it may
    read_parents(connection, without=..., excluded=...)                        the links by which the node is reached
    find_parent(address, connection, without=...)                              the one that carries the mesh

IPv4: the kernel answers ARP for an address of any link on every link (as long as arp_ignore is 0). IPv6: it answers
solicitations for addresses of the link that asks only (ndisc_recv_ns), and the groups that solicitations are sent to
are joined there only; so each address is a proxy entry of the links where it is looked for, which does both.
"""

import errno
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_interface
from typing import Final

from coil.kernel.family import Family, IPAddress, IPInterface
from coil.kernel.link import Address, Link, LinkName, LinkState, NeighbourProxy, ParentLink, Sysctl, select_announcers
from coil.kernel.mark import MARK_PROTOCOL
from coil.netlink.address import AddressChanges, dump_addresses, new_host_address, parse_address, sync_addresses
from coil.netlink.arp_responder import Answers, LinkAnswers
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link import find_link, get_link, new_virtual_link, parse_link, read_links, set_up
from coil.netlink.neighbour import delete_proxy, dump_proxies, parse_proxy, put_proxy
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.readiness import await_local
from coil.netlink.route import find_uplink
from coil.netlink.sysctl import ensure_sysctls

_MAC_LENGTH = len("00:00:00:00:00:00")


def read_parents(
    connection: Connection, *, without: Collection[LinkName] = (), excluded: Iterable[re.Pattern[str]] = ()
) -> list[ParentLink]:
    """All links that are up, speak Ethernet and have an address, but for those named and those whose name has a part
    that one of `excluded` matches.
    """
    links = read_links(connection)
    unwanted = {link.name for link in links if any(pattern.search(link.name) for pattern in excluded)}
    return _select_parents(links, _read_interfaces(links, connection), unwanted.union(without))


def _read_interfaces(links: Iterable[Link], connection: Connection) -> Mapping[LinkName, Sequence[IPInterface]]:
    """The addresses of each link that has any."""
    names = {link.index: link.name for link in links}
    interfaces: dict[LinkName, list[IPInterface]] = {}
    for family in Family:
        for body in connection.dump(dump_addresses(family)):
            if (address := parse_address(body, names)) is not None:
                interfaces.setdefault(address.device, []).append(address.interface)
    return interfaces


def _select_parents(
    links: Iterable[Link], interfaces: Mapping[LinkName, Sequence[IPInterface]], without: Collection[LinkName]
) -> list[ParentLink]:
    return [
        ParentLink(
            name=link.name, index=link.index, mac=link.mac, mtu=link.mtu, interfaces=tuple(interfaces[link.name])
        )
        for link in links
        if link.name in interfaces
        and link.name not in without
        and link.state is LinkState.UP
        and link.mac is not None
        and len(link.mac) == _MAC_LENGTH
        and any(octet not in "0:" for octet in link.mac)  # the loopback's is zero
    ]


def find_parent(address: IPAddress, connection: Connection, *, without: Collection[LinkName] = ()) -> ParentLink:
    """The link by which packets of the node's address leave, as `find_uplink` finds it.

    The address is always one of its `interfaces`, and the first of its family where a link by which nothing leaves
    has it (lo of a node that speaks BGP). Raises NetlinkError where no link has the address, and where the link by
    which packets leave does not speak Ethernet or is down.
    """
    links = read_links(connection)
    interfaces = _read_interfaces(links, connection)
    own = [
        [each for each in found if not each.is_loopback] for link, found in interfaces.items() if link not in without
    ]
    held = next((found for found in own if any(each.ip == address for each in found)), None)
    if held is None:
        raise NetlinkError(f"no Ethernet link that is up has the node's address {address}")
    uplink = find_uplink([address], connection)
    for parent in _select_parents(links, interfaces, without):
        if parent.name == uplink.name:
            return parent if parent.has(address) else replace(parent, interfaces=(*held, *parent.interfaces))
    raise NetlinkError(
        f"{uplink.name}, by which packets of the node's address {address} leave, is no Ethernet link that is up"
    )


EIP_KINDS: Final = ("dummy", "bridge")
"""What the link may be, in the order of preference. Not every kernel has dummies."""


def ensure_eip_link(name: LinkName, connection: Connection) -> None:
    """Have the link there and up. Idempotent. Raises NetlinkError where another kind of link has the name, and where
    the kernel has neither kind.
    """
    link = find_link(name, connection)
    if link is None:
        _create(name, connection)
        link = parse_link(connection.get(get_link(name)))
    if link.kind not in EIP_KINDS:
        raise NetlinkError(
            f"there is a link {name} already, and it is neither of {' and '.join(EIP_KINDS)}; "
            f"if nobody needs it, run `ip link delete {name}` on the node"
        )
    # No address that it was not given (IN6_ADDR_GEN_MODE_NONE), and each that it was.
    ipv6 = f"net/ipv6/conf/{name}"
    ensure_sysctls((Sysctl(f"{ipv6}/disable_ipv6", "0"), Sysctl(f"{ipv6}/addr_gen_mode", "1")))
    if link.state is not LinkState.UP:
        connection.apply((set_up(link.index),))


def _create(name: LinkName, connection: Connection) -> None:
    for kind in EIP_KINDS:
        try:
            return connection.apply((new_virtual_link(name, kind, b"", mtu=0),))
        except KernelError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
    raise NetlinkError(f"the kernel has no {' and no '.join(EIP_KINDS)}; on the node, run `modprobe {EIP_KINDS[0]}`")


def sync_eips(
    name: LinkName,
    eips: Iterable[IPAddress],
    *,
    parent: LinkName | None,
    connection: Connection,
    sysctls: NodeSysctls,
    excluded: Iterable[re.Pattern[str]] = (),
) -> AddressChanges:
    """Make `eips` all addresses of the link, and have them answered for where they are looked for, on links that
    `excluded` does not match; see `read_parents`. Idempotent.

    An address that leaves is answered for no more before anything else is done; one that comes is answered for last.
    Raises NetlinkError where there is no such link, or for the first step that was refused; what leaves has left
    even then, unless that was what the kernel refused.
    """
    wanted = set(eips)
    link = find_link(name, connection)
    if link is None:
        raise NetlinkError(f"there is no link {name}")
    refused: NetlinkError | None = None
    try:
        _keep_proxies(wanted, connection)
    except NetlinkError as error:
        refused = error  # all the more has the address to go
    changes = _sync_addresses(link, wanted, connection)
    links = read_parents(connection, without=(name,), excluded=excluded)
    announcers = _announcers(wanted, links, parent=parent)
    sysctls.ensure(_sysctls(announcers))
    _sync_proxies(announcers, connection)
    if refused is not None:
        raise refused
    return changes


def _sync_addresses(link: Link, eips: Collection[IPAddress], connection: Connection) -> AddressChanges:
    interfaces = [ip_interface(address) for address in eips]
    changes = sync_addresses(link, interfaces, add=new_host_address, connection=connection)
    for interface in changes.added:
        if interface.version == 6:
            await_local(Address(link.name, interface), link.index, connection)
    return changes


def find_answers(eips: Iterable[IPAddress], links: Iterable[ParentLink], *, parent: LinkName | None) -> Answers:
    """Which IPv4 addresses are to be answered for on which link, by whoever does it."""
    found = list(links)
    by_name = {link.name: link for link in found}
    return {
        name: LinkAnswers(
            index=by_name[name].index,
            mac=by_name[name].mac,
            addresses=frozenset(address for address in addresses if isinstance(address, IPv4Address)),
        )
        for name, addresses in _announcers(eips, found, parent=parent).items()
    }


def _announcers(
    eips: Iterable[IPAddress], links: Collection[ParentLink], *, parent: LinkName | None
) -> dict[LinkName, list[IPAddress]]:
    found: dict[LinkName, list[IPAddress]] = {}
    for address in eips:
        for link in select_announcers(address, links, parent=parent):
            found.setdefault(link.name, []).append(address)
    return found


def _sysctls(announcers: dict[LinkName, list[IPAddress]]) -> Iterable[Sysctl]:
    for device, addresses in sorted(announcers.items()):
        families = {Family.of(address) for address in addresses}
        if Family.IPV4 in families:
            yield Sysctl(f"net/ipv4/conf/{device}/arp_ignore", "0")
        if Family.IPV6 in families:
            yield Sysctl(f"net/ipv6/conf/{device}/proxy_ndp", "1")
            # Else an answer to a multicast solicitation takes up to 0.8 s (RFC 4861, section 7.2.8: a proxy waits).
            yield Sysctl(f"net/ipv6/neigh/{device}/proxy_delay", "0")


def _sync_proxies(announcers: dict[LinkName, list[IPAddress]], connection: Connection) -> None:
    wanted = {
        NeighbourProxy(device, address)
        for device, addresses in announcers.items()
        for address in addresses
        if isinstance(address, IPv6Address)
    }
    present, indices = _read_proxies(connection)
    deletes = [delete_proxy(proxy, indices[proxy.device]) for proxy in present - wanted]
    puts = [put_proxy(proxy, indices[proxy.device], protocol=MARK_PROTOCOL) for proxy in wanted - present]
    connection.apply([*deletes, *puts], tolerate={errno.ENOENT})


def _keep_proxies(eips: Collection[IPAddress], connection: Connection) -> None:
    """Answer no more for what is not among these."""
    present, indices = _read_proxies(connection)
    deletes = [delete_proxy(proxy, indices[proxy.device]) for proxy in present if proxy.address not in eips]
    connection.apply(deletes, tolerate={errno.ENOENT})


def remove_proxies(connection: Connection) -> None:
    """Answer for nothing any more. Idempotent. Raises KernelError."""
    _keep_proxies((), connection)


def _read_proxies(connection: Connection) -> tuple[set[NeighbourProxy], dict[LinkName, int]]:
    """Our proxy entries, of all links, and the links' indices."""
    names = {link.index: link.name for link in read_links(connection)}
    proxies = (parse_proxy(body, names, protocol=MARK_PROTOCOL) for body in connection.dump(dump_proxies()))
    return {proxy for proxy in proxies if proxy is not None}, {name: index for index, name in names.items()}
