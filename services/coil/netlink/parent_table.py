"""The links by which the node is reached, read. Runs in a worker's thread, in their namespace."""

from collections.abc import Collection

from coil.kernel.family import Family, IPAddress, IPInterface
from coil.kernel.link import LinkName, LinkState
from coil.kernel.parent import ParentLink
from coil.netlink.address_message import dump_addresses, parse_address
from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.link_table import read_links

_MAC_LENGTH = len("00:00:00:00:00:00")


def read_parents(connection: Connection, *, without: Collection[LinkName] = ()) -> list[ParentLink]:
    """All links that are up, speak Ethernet and have an address, but for those named."""
    links = read_links(connection)
    names = {link.index: link.name for link in links}
    interfaces: dict[LinkName, list[IPInterface]] = {}
    for family in Family:
        for body in connection.dump(dump_addresses(family)):
            if (address := parse_address(body, names)) is not None:
                interfaces.setdefault(address.device, []).append(address.interface)
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
    """The link that carries the node's address. Raises NetlinkError where no Ethernet link that is up does."""
    for link in read_parents(connection, without=without):
        if link.has(address):
            return link
    raise NetlinkError(f"no Ethernet link that is up has the node's address {address}")
