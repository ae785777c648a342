"""All addresses of a link of ours, brought in line. Runs in a worker's thread, in the link's namespace."""

import errno
from collections.abc import Callable, Collection
from dataclasses import dataclass

from coil.kernel.address import Address
from coil.kernel.family import Family, IPInterface
from coil.kernel.link import Link
from coil.netlink.address_message import delete_address, dump_addresses_of, parse_address
from coil.netlink.connection import Connection
from coil.netlink.request import Request


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
