"""Every change of a namespace's routes, in its order, as `ip monitor` tells them: the oracle for what must never happen
even for an instant.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network

from integration.change_monitor import ChangeMonitor


@dataclass(frozen=True, slots=True)
class RouteEvent:
    """One line. `gateway` is empty for a route without one; `withdrawn` when the kernel deleted it."""

    destination: str
    gateway: str
    protocol: str
    table: str
    withdrawn: bool


class RouteMonitor(ChangeMonitor):
    """Made by `watch_routes`."""

    def events(self) -> list[RouteEvent]:
        """All changes up to now."""
        return [event for event in map(_parse, self.lines()) if event is not None]

    def withdrawn(self) -> list[str]:
        """The destinations of all routes that were deleted, in this order."""
        return [event.destination for event in self.events() if event.withdrawn]


@contextmanager
def watch_routes(netns: str) -> Iterator[RouteMonitor]:
    """Monitor the namespace at that path, from the beginning of the block."""
    with RouteMonitor(netns, "route") as monitor:
        yield monitor


def _parse(line: str) -> RouteEvent | None:
    """`[Deleted] [unicast] 10.0.0.0/27 via 192.0.2.1 dev eth0 table main proto 31 …`; None for lines of other kinds."""
    words = line.split()
    withdrawn = words[:1] == ["Deleted"]
    words = words[1:] if withdrawn else words
    if len(words) < 2 or words[0] not in {"unicast", "blackhole", "unreachable", "prohibit"}:
        return None
    options = dict(zip(words[2::2], words[3::2], strict=False))
    destination = words[1] if words[1] == "default" else str(ip_network(words[1]))
    return RouteEvent(
        destination, options.get("via", ""), options.get("proto", ""), options.get("table", "main"), withdrawn
    )
