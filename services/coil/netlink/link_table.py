"""The links of a namespace, read."""

import errno

from coil.kernel.link import Link, LinkName
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError
from coil.netlink.link_message import dump_links, get_link, parse_link


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
