"""FOU ports of the namespace that the calling thread is in: UDP ports whose packets the kernel unwraps (linux/fou.h).

    ensure_fou_port(port: FouPort) -> bool         True if it was not there
    remove_fou_port(port: FouPort) -> bool         True if it was there
    list_fou_ports() -> frozenset[FouPort]

FOU is a family of generic netlink, so each call opens a socket of its own. A kernel without the module `fou` has no
ports and gets none: whoever may load modules calls `kernel_module.ensure_modules(("fou", "fou6"))` before.
"""

import errno
from typing import Final

from coil.kernel.family import Family
from coil.kernel.tunnel import FouPort
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.generic import NETLINK_GENERIC, find_family, generic_body, parse_generic
from coil.netlink.wire import NLM_F_DUMP, Request, attribute_be16, attribute_u8, parse_be16, parse_u8

FAMILY_NAME: Final = "fou"
_VERSION: Final = 1

_ADD: Final = 1
_DELETE: Final = 2
_GET: Final = 3
_ATTR_PORT: Final = 1
_ATTR_AF: Final = 2
_ATTR_IPPROTO: Final = 3
_ATTR_TYPE: Final = 4
_ENCAP_DIRECT: Final = 1

_TAKEN: Final = {errno.EADDRINUSE, errno.EALREADY}
_GONE: Final = {errno.EINVAL, errno.ENOENT}
"""What the kernel answers to the deletion of a port that is not there, depending on its version."""


def ensure_fou_port(port: FouPort) -> bool:
    """Have the kernel unwrap what comes to `port`. Idempotent; returns whether there was anything to do.

    Raises NetlinkError that says what to do: the module is missing, or the UDP port belongs to something else.
    """
    with Connection(NETLINK_GENERIC) as connection:
        family = find_family(FAMILY_NAME, connection)
        if family is None:
            raise NetlinkError(f"{port}: the kernel's module fou is not loaded; on the node, run `modprobe fou`")
        try:
            connection.apply((add_port(port, family),))
        except KernelError as error:
            if error.errno not in _TAKEN:
                raise
            if port in _list(connection, family):
                return False
            raise NetlinkError(
                f"{port}: UDP port {port.port} is in use by something else in this namespace; "
                f"end that, or choose another port for all tunnels"
            ) from error
    return True


def remove_fou_port(port: FouPort) -> bool:
    """Give the UDP port back. Idempotent; returns whether it was there. Raises NetlinkError."""
    with Connection(NETLINK_GENERIC) as connection:
        family = find_family(FAMILY_NAME, connection)
        if family is None or port not in _list(connection, family):
            return False
        connection.apply((delete_port(port, family),), tolerate=_GONE)
    return True


def list_fou_ports() -> frozenset[FouPort]:
    """The ports that unwrap IPIP in IPv4 or IPv6 in IPv6, whoever asked for them. Raises NetlinkError."""
    with Connection(NETLINK_GENERIC) as connection:
        family = find_family(FAMILY_NAME, connection)
        return _list(connection, family) if family is not None else frozenset()


def _list(connection: Connection, family: int) -> frozenset[FouPort]:
    ports = (parse_port(body) for body in connection.dump(dump_ports(family)))
    return frozenset(port for port in ports if port is not None)


def add_port(port: FouPort, family: int) -> Request:
    """Open the port. EADDRINUSE where the UDP port is taken, be it by the same."""
    attributes = (
        attribute_be16(_ATTR_PORT, port.port)
        + attribute_u8(_ATTR_AF, port.family)
        + attribute_u8(_ATTR_IPPROTO, port.protocol)
        + attribute_u8(_ATTR_TYPE, _ENCAP_DIRECT)
    )
    return Request(family, 0, generic_body(_ADD, _VERSION, attributes), ("open", port))


def delete_port(port: FouPort, family: int) -> Request:
    """Close the port."""
    attributes = attribute_be16(_ATTR_PORT, port.port) + attribute_u8(_ATTR_AF, port.family)
    return Request(family, 0, generic_body(_DELETE, _VERSION, attributes), ("close", port))


def dump_ports(family: int) -> Request:
    """Ask for all ports of the namespace."""
    return Request(family, NLM_F_DUMP, generic_body(_GET, _VERSION), ("list the FOU ports",))


def parse_port(body: bytes) -> FouPort | None:
    """Read one port; None for one that unwraps something else (GUE, another protocol)."""
    attributes = parse_generic(body)
    number = parse_u8(attributes[_ATTR_AF])
    if number not in tuple(Family) or parse_u8(attributes[_ATTR_TYPE]) != _ENCAP_DIRECT:
        return None
    port = FouPort(Family(number), parse_be16(attributes[_ATTR_PORT]))
    return port if parse_u8(attributes[_ATTR_IPPROTO]) == port.protocol else None
