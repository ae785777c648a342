"""The whole document of a node, part by part. A part that cannot be read is a sentence in it, and the rest is told.

Bounded: each list and the ruleset have a limit, and what has not been begun when the time is over is left out. Nothing
is written to the kernel.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from coil.netlink.error import NamespaceError
from coil.netlink.namespace import Namespace
from coil.netlink.peer_namespace import namespace_mounts
from coil.nft.netfilter import NftError
from coil.nft.table_sync import run
from coil.page.frame import PATH
from coil.page.node_dump import VERSION, FouPortDump, NamespaceDump, NodeDump, Part
from coil.runtime.flag import Endpoint
from coil_node_dump.limits import KernelReadError, Limits
from coil_node_dump.settings import Settings

if TYPE_CHECKING:
    from coil_node_dump.kernel_reader import NamespaceReader

_MOUNTS: Final = Path("/proc/self/mountinfo")
_PAGE_SECONDS: Final = 5.0
_PAGE_BYTES: Final = 32 << 20
_COMPLAINT: Final = 200

T = TypeVar("T")


@dataclass(slots=True)
class _Draft:
    """What is known of the document's making so far. `deadline` is of the monotonic clock."""

    settings: Settings
    deadline: float
    truncated: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def read(self, what: str, part: Callable[[], T], otherwise: T) -> T:
        """The part, or what stands for it where it cannot be read."""
        if time.monotonic() > self.deadline:
            self.troubles.append(f"{what}: no time was left")
            return otherwise
        try:
            return part()
        except (OSError, HTTPException, ValueError, NamespaceError, NftError, KernelReadError) as error:
            self.troubles.append(f"{what}: {error}")
            return otherwise

    def reader(self) -> "NamespaceReader":
        from coil_node_dump.kernel_reader import NamespaceReader

        return NamespaceReader(Limits(self.settings.entries), self.truncated.append)


def dump_node(settings: Settings) -> NodeDump:
    """Read what the settings ask for. The calling thread stays in its namespace."""
    draft = _Draft(settings, time.monotonic() + settings.time_limit)
    at, system = datetime.now(UTC), os.uname()
    wanted = settings.parts
    node = NamespaceDump(path="")
    pods: tuple[NamespaceDump, ...] = ()
    fou_ports: tuple[FouPortDump, ...] = ()
    inspection = tables = metrics = None
    # What is small and most asked for comes first.
    if Part.INSPECTION in wanted:
        inspection = draft.read("coild's page", lambda: _fetch_page(settings.inspect_page_addr), None)
    if Part.METRICS in wanted:
        metrics = draft.read("metrics", lambda: _fetch(settings.metrics_addr, "/metrics").decode(), None)
    if Part.NODE in wanted:
        node = draft.read("the node", lambda: draft.reader().read(""), node)
    if Part.FOU in wanted:
        fou_ports = draft.read("Foo-over-UDP", _read_fou_ports, fou_ports)
    if Part.TABLES in wanted:
        tables = draft.read("nftables", lambda: _read_tables(draft), None)
    if Part.PODS in wanted:
        pods = tuple(_read_pods(draft))
    return NodeDump(
        version=VERSION,
        at=at,
        host=system.nodename,
        kernel=system.release,
        node=node,
        pods=pods,
        fou_ports=fou_ports,
        tables=tables,
        inspection=inspection,
        truncated=tuple(draft.truncated),
        troubles=tuple(draft.troubles),
        metrics=metrics,
    )


def _read_fou_ports() -> tuple[FouPortDump, ...]:
    from coil_node_dump.kernel_reader import read_fou_ports

    return read_fou_ports()


def _read_tables(draft: _Draft) -> list[dict[str, Any]]:
    listing = [{"list": {"ruleset": None}}]
    found = run(listing, doing="list the ruleset")
    if len(msgspec.json.encode(found)) <= draft.settings.table_bytes:
        return found
    draft.truncated.append("nftables: elements of sets")
    return run(listing, doing="list the ruleset", terse=True)


def _fetch_page(endpoint: Endpoint | None) -> Any:
    """The document of the page; None without one. Raises OSError, HTTPException and ValueError."""
    if endpoint is None:
        return None
    try:
        return json.loads(_fetch(endpoint, PATH))
    except ConnectionRefusedError:
        return None  # there is no coild in this pod's network


def _fetch(endpoint: Endpoint, path: str) -> bytes:
    """Raises OSError, HTTPException and ValueError."""
    connection = HTTPConnection(endpoint.host or "127.0.0.1", endpoint.port, timeout=_PAGE_SECONDS)
    try:
        connection.request("GET", path, headers={"Accept": "application/json, text/plain", "Host": "localhost"})
        response = connection.getresponse()
        body = response.read(_PAGE_BYTES + 1)
    finally:
        connection.close()
    if response.status != HTTPStatus.OK:
        raise ValueError(f"{response.status} {response.reason}: {body[:_COMPLAINT].decode(errors='replace').strip()}")
    if len(body) > _PAGE_BYTES:
        raise ValueError(f"{path} has more than {_PAGE_BYTES} bytes")
    return body


def _read_pods(draft: _Draft) -> Iterator[NamespaceDump]:
    """The namespaces that are mounted somewhere, each once, but for the node's own."""
    seen: set[tuple[int, int]] = set()
    own = os.stat("/proc/thread-self/ns/net")  # noqa: PTH116 - it is no path to a file
    seen.add((own.st_dev, own.st_ino))
    nowhere: list[Path] = []
    paths = draft.read("mounts", _list_mounts, nowhere)
    for path in paths:
        found = draft.read(str(path), lambda path=path: _read_pod(path, seen, draft), None)  # type: ignore[misc]
        if found is not None:
            yield found


def _list_mounts() -> list[Path]:
    return sorted(namespace_mounts(_MOUNTS.read_text()))


def _read_pod(path: Path, seen: set[tuple[int, int]], draft: _Draft) -> NamespaceDump | None:
    """None if it has been read already, as runtimes mount a namespace in several places, or if it is gone."""
    try:
        with Namespace(path) as namespace:
            identity = os.fstat(namespace.fileno())
            if (key := (identity.st_dev, identity.st_ino)) in seen:
                return None
            seen.add(key)
            return _in_thread(namespace, lambda: draft.reader().read(str(path)))
    except NamespaceError:
        if path in _list_mounts():
            raise
        return None  # the pod has ended since the mounts were listed


def _in_thread(namespace: Namespace, read: Callable[[], NamespaceDump]) -> NamespaceDump:
    """A thread of its own enters the namespace and ends there. Raises what `read` raises."""
    outcome: list[NamespaceDump | BaseException] = []

    def work() -> None:
        try:
            namespace.enter()
            outcome.append(read())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name="namespace")
    thread.start()
    thread.join()
    [found] = outcome
    if isinstance(found, BaseException):
        raise found
    return found
