"""Every change of a namespace's routes, in its order, as `ip monitor` tells them: the oracle for what must never happen
even for an instant.
"""

import itertools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network

from integration.patience import wait_until

_SECONDS = 20
_TABLE = "251"  # nobody's; a route in it tells how far the monitor has come


@dataclass(frozen=True, slots=True)
class RouteEvent:
    """One line. `gateway` is empty for a route without one; `withdrawn` when the kernel deleted it."""

    destination: str
    gateway: str
    protocol: str
    table: str
    withdrawn: bool


class RouteMonitor:
    """Made by `watch_routes`."""

    def __init__(self, netns: str) -> None:
        self._inside = ["nsenter", f"--net={netns}", "--"]
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            [*self._inside, "ip", "-details", "monitor", "route"], stdout=subprocess.PIPE, text=True
        )
        self._markers = (f"203.0.113.{number}" for number in itertools.count(1))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def events(self) -> list[RouteEvent]:
        """All changes up to now."""
        self._catch_up()
        found = [_parse(line) for line in list(self._lines)]
        return [event for event in found if event is not None and event.table != _TABLE]

    def withdrawn(self) -> list[str]:
        """The destinations of all routes that were deleted, in this order."""
        return [event.destination for event in self.events() if event.withdrawn]

    def _start(self) -> None:
        self._catch_up()
        self._lines.clear()

    def _catch_up(self) -> None:
        """Make a change, again and again, until the monitor tells of it: it has told all that was before."""
        marker = next(self._markers)

        def told() -> bool:
            for verb in ("replace", "delete"):
                route = ["ip", "route", verb, marker, "dev", "lo", "table", _TABLE]
                subprocess.run([*self._inside, *route], check=True, timeout=_SECONDS)
            return any(f" {marker} " in line for line in list(self._lines))

        wait_until(told, what="the route monitor tells of a route")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            self._lines.extend(stdout)

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait(_SECONDS)
        self._reader.join(_SECONDS)


@contextmanager
def watch_routes(netns: str) -> Iterator[RouteMonitor]:
    """Monitor the namespace at that path, from the beginning of the block."""
    monitor = RouteMonitor(netns)
    try:
        monitor._start()
        yield monitor
    finally:
        monitor._stop()


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
