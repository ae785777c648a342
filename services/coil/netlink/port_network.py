"""A node's side of a Neutron network: its links, the node's addresses on the bridge, and its ways to the pods. Runs in
a worker's thread, in the node's namespace.

    sync_network(plan, peers, connection)          all of one network made what is planned
    plug_port(bridge, port, connection)            one port more, in a network that is there
    unplug_port(network, port, connection)         one port less
    release_ports(network, keep, connection)       links that are none of its ports any more leave its bridge
    remove_network(network, connection)            both links go, and with them all that hangs on them
    read_networks(connection)                      the networks of which the node has a link
    read_node_links(connection)                    the node's links with addresses, but for those of such networks

Whose a link is, its alias says. Everything is idempotent and raises NetlinkError.
"""

import errno
from collections.abc import Collection, Iterable

from coil.kernel.bridge import BRIDGE_KIND, Bridge
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import Address, Link, LinkName, Neighbour, ParentLink
from coil.kernel.route import diff_routes
from coil.kernel.vxlan import VXLAN_KIND
from coil.netlink.address import new_host_address, sync_addresses
from coil.netlink.bridge import ensure_bridge, ensure_port, ensure_uplink, release_port, sync_flood
from coil.netlink.connection import Connection
from coil.netlink.eip_link import find_parent, read_parents
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link import find_link, read_links
from coil.netlink.neighbour import delete_neighbour, dump_neighbours, parse_neighbour, put_neighbour
from coil.netlink.readiness import await_carrier, await_local
from coil.netlink.removal import remove_links
from coil.netlink.route import delete_route, dump_link_routes, parse_route, replace_route
from coil.neutron.node_bridge import PROTOCOL, BridgedPort, NodeBridge, bridge_name, parse_network_alias, uplink_name
from coil.neutron.resource import NetworkId


def sync_network(plan: NodeBridge, peers: Collection[IPAddress], connection: Connection) -> tuple[LinkName, ...]:
    """Make the network's links, its ports, and the node's ways to them what is planned; `peers` are the other nodes.

    Returns the ports whose links are not there: their pods have gone. Raises the first NetlinkError; what is made by
    then stays, and no port of the plan is plugged in before the bridge and its uplink are right.
    """
    bridge = ensure_bridge(plan.bridge, connection)
    ensure_uplink(plan.uplink, plan.bridge.alias, bridge, connection)
    # Its first port has given it a carrier. Without this the kubelet's first packet to a pod may be dropped.
    await_carrier(bridge.name, connection)
    sync_flood(plan.uplink.name, peers, connection)
    changes = sync_addresses(bridge, plan.addresses, add=new_host_address, connection=connection)
    # Without this a pod's first answer to the kubelet may be dropped.
    for interface in changes.added:
        await_local(Address(bridge.name, interface), bridge.index, connection)
    _sync_neighbours(bridge, plan.neighbours, connection)
    _sync_routes(bridge, plan, connection)
    missing = []
    for port in plan.ports:
        if find_link(port.ifname, connection) is None:
            missing.append(port.ifname)
        else:
            ensure_port(port.ifname, port.mac, bridge, connection)
    return tuple(missing)


def plug_port(bridge: Bridge, port: BridgedPort, connection: Connection) -> None:
    """Have the port plugged into that bridge, and the node know the ways to it; other ports stay as they are.

    Raises NetlinkError where bridge or port is not there: then `sync_network` tells more.
    """
    found = find_link(bridge.name, connection)
    if found is None or found.alias != bridge.alias:
        raise NetlinkError(f"there is no bridge {bridge.name}")
    connection.apply(
        [
            *(put_neighbour(neighbour, found.index) for neighbour in port.neighbours(bridge.name)),
            *(replace_route(route, found.index) for route in port.routes(bridge.name)),
        ]
    )
    ensure_port(port.ifname, port.mac, found, connection)


def unplug_port(network: NetworkId, port: BridgedPort, connection: Connection) -> None:
    """Have the port, and the node's ways to it, be there no more; other ports stay as they are."""
    bridge = _find(network, connection)
    if bridge is None:
        return
    release_port(port.ifname, bridge, connection)
    connection.apply(
        [delete_route(route, bridge.index) for route in port.routes(bridge.name)], tolerate={errno.ESRCH, errno.ENOENT}
    )
    connection.apply(
        [delete_neighbour(neighbour, bridge.index) for neighbour in port.neighbours(bridge.name)],
        tolerate={errno.ENOENT},
    )


def release_ports(network: NetworkId, keep: Collection[LinkName], connection: Connection) -> tuple[LinkName, ...]:
    """Have no links but `keep` and the uplink be ports of the network's bridge; returns those that were."""
    bridge = _find(network, connection)
    if bridge is None:
        return ()
    strangers = [
        link.name
        for link in read_links(connection)
        if link.master == bridge.index and link.name != uplink_name(network) and link.name not in keep
    ]
    for name in strangers:
        release_port(name, bridge, connection)
    return tuple(strangers)


def remove_network(network: NetworkId, connection: Connection) -> None:
    """Delete both links of the network, and with them routes, addresses and entries. Ports stay, each by itself."""
    found = [
        link.name
        for link in read_links(connection)
        if link.kind in (BRIDGE_KIND, VXLAN_KIND)
        and (
            parse_network_alias(link.alias) == network
            # A process that was killed between the two steps has left it without an alias.
            or (link.alias == "" and link.name in (bridge_name(network), uplink_name(network)))
        )
    ]
    if found:
        remove_links(found)


def read_networks(connection: Connection) -> frozenset[NetworkId]:
    """The networks of which the node has a bridge or an uplink."""
    found = (
        parse_network_alias(link.alias) for link in read_links(connection) if link.kind in (BRIDGE_KIND, VXLAN_KIND)
    )
    return frozenset(network for network in found if network is not None)


def read_node_links(connection: Connection, local: IPAddress | None = None) -> list[ParentLink]:
    """The node's own links: all that are up and have an address, but for bridges of networks of ports.

    Where a link by which nothing leaves has the address `local` (lo of a node that speaks BGP), the one by which its
    packets leave has it among its `interfaces`, as `find_parent` finds it. Raises NetlinkError.
    """
    bridges = {link.name for link in read_links(connection) if parse_network_alias(link.alias) is not None}
    links = read_parents(connection, without=bridges)
    if local is None or any(link.has(local) for link in links):
        return links
    try:
        parent = find_parent(local, connection, without=bridges)
    except KernelError:
        raise
    except NetlinkError:
        return links  # nobody has it, or nothing leaves
    return [parent if link.name == parent.name else link for link in links]


def _find(network: NetworkId, connection: Connection) -> Link | None:
    link = find_link(bridge_name(network), connection)
    return link if link is not None and parse_network_alias(link.alias) == network else None


def _sync_neighbours(bridge: Link, wanted: Iterable[Neighbour], connection: Connection) -> None:
    names = {bridge.index: bridge.name}
    bodies = (body for family in Family for body in connection.dump(dump_neighbours(family, bridge.index)))
    have = {found for body in bodies if (found := parse_neighbour(body, names)) is not None}
    want = frozenset(wanted)
    kept = {neighbour.address for neighbour in want}
    gone = sorted((neighbour for neighbour in have - want if neighbour.address not in kept), key=str)
    errors = connection.submit(
        [delete_neighbour(neighbour, bridge.index) for neighbour in gone], tolerate={errno.ENOENT}
    )
    errors += connection.submit([put_neighbour(neighbour, bridge.index) for neighbour in sorted(want - have, key=str)])
    for error in errors:
        raise error


def _sync_routes(bridge: Link, plan: NodeBridge, connection: Connection) -> None:
    names = {bridge.index: bridge.name}
    bodies = (
        body
        for family in Family
        for body in connection.dump(dump_link_routes(family, index=bridge.index, protocol=PROTOCOL))
    )
    have = [route for body in bodies if (route := parse_route(body, names)) is not None]
    changes = diff_routes(have, plan.routes)
    errors: list[NetlinkError] = []
    errors += connection.submit(
        [delete_route(route, bridge.index) for route in (*changes.clears, *changes.deletes)], tolerate={errno.ESRCH}
    )
    errors += connection.submit([replace_route(route, bridge.index) for route in (*changes.replaces, *changes.adds)])
    for error in errors:
        raise error
