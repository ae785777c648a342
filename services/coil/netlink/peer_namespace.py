"""The namespace at the other end of a link, opened: how a pod is reached of which only the host's veth is known.

    find_namespace(link: LinkName, connection) -> Namespace         an open one, the caller closes it

Runs in a worker's thread; `connection` is in the namespace of the link. It needs to see where namespaces can be found:
the mounts below /run/netns, where container runtimes keep them, and otherwise the processes of the node below /proc.

Invariant: never a wrong one. The kernel has a number for each namespace that a link leads to, and gives it to another
only when that namespace is gone. So the namespace that has the number of a link's other end is the one, if the link is
still the same after that was asked.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from coil.kernel.link import Link, LinkName
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NamespaceError, NetlinkError
from coil.netlink.link_table import find_link
from coil.netlink.namespace import Namespace
from coil.netlink.nsid_message import get_netns_number, parse_netns_number

_MOUNTS: Final = (Path("/run/netns"), Path("/var/run/docker/netns"))
_PROCESSES: Final = Path("/proc")


def find_namespace(name: LinkName, connection: Connection) -> Namespace:
    """The namespace that the other end of the link is in. The caller closes it.

    Raises NetlinkError if there is no such link, it has no end elsewhere, it changed meanwhile, or if neither a mount
    nor a process shows where its other end is.
    """
    link = _find(name, connection)
    seen: set[tuple[int, int]] = set()
    for path in chain(*map(_mounts, _MOUNTS), _processes(_PROCESSES)):
        namespace = _open_new(path, seen)
        if namespace is None:
            continue
        try:
            if _number(namespace, connection) == link.peer_netns and _is_same(link, _find(name, connection)):
                return namespace
        except BaseException:
            namespace.close()
            raise
        namespace.close()
    raise NetlinkError(
        f"the namespace at the other end of {name} is neither mounted below "
        f"{' or '.join(map(str, _MOUNTS))} nor that of a process below {_PROCESSES}"
    )


def _find(name: LinkName, connection: Connection) -> Link:
    link = find_link(name, connection)
    if link is None:
        raise NetlinkError(f"there is no link {name}")
    if link.peer_netns is None:
        raise NetlinkError(f"link {name} has no other end in another namespace")
    return link


def _is_same(before: Link, after: Link) -> bool:
    if (before.index, before.peer_index, before.peer_netns) != (after.index, after.peer_index, after.peer_netns):
        raise NetlinkError(f"link {before.name} was replaced while its other end was looked for")
    return True


def _number(namespace: Namespace, connection: Connection) -> int | None:
    try:
        return parse_netns_number(connection.get(get_netns_number(namespace.fileno())))
    except KernelError:
        return None  # a file below /run/netns that is no network namespace (yet, or any more)


def _open_new(path: Path, seen: set[tuple[int, int]]) -> Namespace | None:
    """The namespace at `path`, unless it has been there before, or has just gone, or may not be looked at."""
    try:
        status = path.stat()
        if (status.st_dev, status.st_ino) in seen:
            return None
        seen.add((status.st_dev, status.st_ino))
        return Namespace(path)
    except (OSError, NamespaceError):
        return None


def _mounts(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return ()  # no runtime has put any there


def _processes(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.isdigit():
            yield path / "ns/net"
