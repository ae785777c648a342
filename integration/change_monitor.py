"""Every change of a namespace's links, addresses, routes and rules, as `ip monitor` tells them: the oracle for what
must stay as it is, even for an instant.
"""

import itertools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from integration.patience import wait_until

_SECONDS = 60
_TABLE = "251"  # nobody's; a route in it tells how far the monitor has come


class ChangeMonitor:
    """A context manager. `kinds` are those of `ip monitor`, routes among them."""

    def __init__(self, netns: str, *kinds: str) -> None:
        self._inside = ["nsenter", f"--net={netns}", "--"]
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            [*self._inside, "ip", "-details", "-oneline", "monitor", *kinds],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._markers = (f"203.0.113.{number}" for number in itertools.count(1))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        try:
            self._catch_up()
        except BaseException:
            self._stop()
            raise
        self._lines.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def lines(self) -> list[str]:
        """All changes up to now, one line each."""
        self._catch_up()
        return [line.strip() for line in list(self._lines) if f" table {_TABLE} " not in f"{line} "]

    def _catch_up(self) -> None:
        """Make a change, again and again, until the monitor tells of it: it has told all that was before."""
        marker = next(self._markers)

        def told() -> bool:
            for verb in ("replace", "delete"):
                route = ["ip", "route", verb, "blackhole", marker, "table", _TABLE]
                subprocess.run([*self._inside, *route], check=True, timeout=_SECONDS)
            return any(f" {marker} " in line for line in list(self._lines))

        wait_until(told, what="the monitor tells of a route")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            self._lines.extend(stdout)

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait(_SECONDS)
        self._reader.join(_SECONDS)


@contextmanager
def watch_changes(netns: str) -> Iterator[ChangeMonitor]:
    """Monitor the namespace at that path, from the beginning of the block."""
    with ChangeMonitor(netns, "link", "address", "route", "rule") as monitor:
        yield monitor
