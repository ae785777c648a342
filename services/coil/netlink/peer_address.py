"""What addresses the pods' ends of veth have, read from the host's side. Runs in a worker's thread, in the host's
namespace, and enters no other: the kernel has a number for every namespace that a link of this one leads to.

Numbers of namespaces and indices of links in them are used again when a pod has gone. So an answer counts only if the
host's end is still the same afterwards: as long as it is, its other end is where it was.
"""

import errno
from collections.abc import Collection
from typing import Final

from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import Link, LinkName
from coil.netlink.address_message import dump_addresses_of, parse_address
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link_table import read_links

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
