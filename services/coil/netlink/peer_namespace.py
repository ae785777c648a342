"""The pod's end of a veth, found from the host's end, and the host's end found from the pod's.

    PeerNamespaces.open_pod(alias, connection)            the namespace of a pod, by the alias of its veth
    pods_with_link(names, connection)                     the pods that have a link of one of these names
    name_host_end(ifname, alias, pod_netns, home=...)     for an interface that another plugin has made

Runs in a worker's thread; `connection` is in the host's namespace. Namespaces are found as mounts, in whatever folder
a container runtime keeps them that this process sees, or else through the processes of the node below /proc.

Invariant: never a wrong one. Names of links and paths of namespaces are used again, so what is remembered here is only
where to look first. The kernel has a number for each namespace that a link leads to, and gives it to another only when
that namespace is gone. So the namespace that has the number of a link's other end is the one, if the link is still the
same after the number was asked for.

Cost: the links are dumped once and the namespaces scanned once for all pods that are there by then. After that opening
a pod's namespace takes a few requests, however many pods there are.
"""

import errno
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from coil.kernel.link import Link, LinkName
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NamespaceError, NetlinkError
from coil.netlink.link import find_link, get_link, read_links, set_alias
from coil.netlink.namespace import Namespace, get_netns_number, parse_netns_number
from coil.podnet.host_link import PodAlias, parse_alias, render_alias

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_PROCESSES: Final = Path("/proc")
_NO_SUCH_LINK: Final = {errno.ENODEV, errno.EINVAL}
"""No link of that name, or no namespace of that number any more."""


class PeerNamespaces:
    """Opens the namespaces at the other end of the links of one namespace, and remembers where they were.

    For one thread at a time. The namespaces that it returns are the caller's to close.
    """

    def __init__(self) -> None:
        self._names: dict[PodAlias, LinkName] = {}
        self._paths: dict[int, Path] = {}

    def open_pod(self, alias: PodAlias, connection: Connection) -> Namespace | None:
        """The namespace of the pod whose veth has this alias; None if there is no such veth.

        Raises NetlinkError where it cannot be found, or where several links have the alias.
        """
        link = self._find_pod(alias, connection)
        return self._open(link, connection) if link is not None else None

    def open_peer(self, name: LinkName, connection: Connection) -> Namespace:
        """The namespace that the other end of the link is in.

        Raises NetlinkError if there is no such link, it has no end elsewhere, it changed meanwhile, or if neither a
        mount nor a process shows where its other end is.
        """
        link = find_link(name, connection)
        if link is None:
            raise NetlinkError(f"there is no link {name}")
        return self._open(link, connection)

    def forget(self, alias: PodAlias) -> None:
        """Look at all links the next time: another one may have been given the alias."""
        self._names.pop(alias, None)

    def _find_pod(self, alias: PodAlias, connection: Connection) -> Link | None:
        known = self._names.get(alias)
        link = find_link(known, connection) if known is not None else None
        if link is not None and parse_alias(link.alias) == alias:
            return link
        links: dict[PodAlias, list[Link]] = {}
        for link in read_links(connection):
            if (found := parse_alias(link.alias)) is not None:
                links.setdefault(found, []).append(link)
        self._names = {found: same[0].name for found, same in links.items() if len(same) == 1}
        candidates = links.get(alias, [])
        if len(candidates) > 1:
            raise NetlinkError(f"{len(candidates)} links have the alias {render_alias(alias)}")
        return candidates[0] if candidates else None

    def _open(self, link: Link, connection: Connection) -> Namespace:
        if link.peer_netns is None:
            raise NetlinkError(f"link {link.name} has no other end in another namespace")
        namespace = _open_numbered(self._paths.get(link.peer_netns), link.peer_netns, connection)
        if namespace is None:
            self._paths = _scan(link.peer_netns, connection)
            namespace = _open_numbered(self._paths.get(link.peer_netns), link.peer_netns, connection)
        if namespace is None:
            raise NetlinkError(
                f"the namespace at the other end of {link.name} is neither mounted where this process sees it (the "
                f"chart's value coild.namespaceDirectories) nor that of a process below {_PROCESSES}"
            )
        try:
            after = find_link(link.name, connection)
            if after is None or _identity(after) != _identity(link):
                raise NetlinkError(f"link {link.name} was replaced while its other end was looked for")
        except BaseException:
            namespace.close()
            raise
        return namespace


def pods_with_link(names: Collection[LinkName], connection: Connection) -> frozenset[PodAlias]:
    """The pods in whose namespaces there is a link of one of the names; one dump of the host's links, and for each pod
    a question that enters no namespace.
    """
    found: set[PodAlias] = set()
    for link in read_links(connection):
        alias, netns = parse_alias(link.alias), link.peer_netns
        if alias is not None and netns is not None and any(_has_link(name, netns, connection) for name in names):
            found.add(alias)
    return frozenset(found)


def name_host_end(ifname: LinkName, alias: PodAlias, pod_netns: Namespace, *, home: Namespace) -> LinkName | None:
    """Give the host's end of the pod's interface the alias, in place of any other, and return its name.

    None where the interface has no other end on the host: a macvlan or ipvlan, for example. Idempotent. Raises
    NamespaceError, or NetlinkError where the pod has no such interface.
    """
    if pod_netns.is_same(home):
        raise NamespaceError(pod_netns.path, "is the node's own")
    with pod_netns.entered(home), Connection() as pod:
        inside = find_link(ifname, pod)
    if inside is None:
        raise NetlinkError(f"the pod has no interface {ifname}")
    with Connection() as host:
        # What the host knows of the veth is enough: it is the other end of that interface in that very namespace. Links
        # first: the kernel gives a namespace its number when it first has to tell of a link that leads there.
        links = read_links(host)
        number = parse_netns_number(host.get(get_netns_number(pod_netns.fileno())))
        for link in links if number is not None else ():
            if link.peer_netns == number and link.peer_index == inside.index and link.index == inside.peer_index:
                text = render_alias(alias)
                if link.alias != text:
                    host.apply((set_alias(link.index, text),))
                return link.name
    return None


def _identity(link: Link) -> tuple[object, ...]:
    """What is another's if the link was replaced, or given to another pod."""
    return link.index, link.peer_index, link.peer_netns, link.alias


def _has_link(name: LinkName, netns: int, connection: Connection) -> bool:
    try:
        connection.get(get_link(name, netns))
    except KernelError as error:
        if error.errno not in _NO_SUCH_LINK:
            raise
        return False
    return True


def _scan(wanted: int, connection: Connection) -> dict[int, Path]:
    """Where each namespace is that has a number here. Processes are asked only if no mount is the wanted one."""
    paths: dict[int, Path] = {}
    seen: set[tuple[int, int]] = set()
    for place in (_mounts, _processes):
        for path in place():
            namespace = _open_new(path, seen)
            if namespace is not None:
                with namespace:
                    number = _number(namespace, connection)
                if number is not None:
                    paths.setdefault(number, path)
        if wanted in paths:
            break
    return paths


def _open_numbered(path: Path | None, number: int, connection: Connection) -> Namespace | None:
    """The namespace at the path, if it is the one of that number."""
    namespace = _open_new(path, set()) if path is not None else None
    if namespace is None:
        return None
    try:
        if _number(namespace, connection) == number:
            return namespace
    except BaseException:
        namespace.close()
        raise
    namespace.close()
    return None


def _number(namespace: Namespace, connection: Connection) -> int | None:
    try:
        return parse_netns_number(connection.get(get_netns_number(namespace.fileno())))
    except KernelError:
        return None  # no network namespace any more


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


def _mounts() -> Iterator[Path]:
    try:
        text = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return
    yield from namespace_mounts(text)


def namespace_mounts(mountinfo: str) -> Iterator[Path]:
    """The mount points of network namespaces in a /proc/PID/mountinfo (proc_pid_mountinfo(5)). Pure."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        # The root of such a mount is the namespace: net:[4026532001].
        if after.startswith("nsfs ") and len(fields) > 4 and fields[3].startswith("net:"):
            yield Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]))


def _processes() -> Iterator[Path]:
    for path in _entries(_PROCESSES):
        if path.name.isdigit():
            yield path / "ns/net"


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return ()  # no runtime has put any there
