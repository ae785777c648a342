"""That the kernel tells of no change: neither rtnetlink nor nftables, as `ip monitor` and `nft monitor` hear them."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from integration.netns.netns import Netns
from integration.patience import wait_until

_SECONDS = 60.0
_TABLE = "251"
_MARK = "coil_mark"


class _Monitor:
    """Everything that a monitor says; `mark` makes a change that it tells of, of which `is_mark` knows the lines."""

    def __init__(self, netns: Netns, *argv: str, mark: Callable[[], None], is_mark: Callable[[str], bool]) -> None:
        self._process = subprocess.Popen(
            ["nsenter", f"--net={netns.path}", "--", *argv], stdout=subprocess.PIPE, text=True
        )
        self._mark = mark
        self._is_mark = is_mark
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def lines(self) -> list[str]:
        """All that was said until now, and since the last time."""
        before = len(self._lines)

        def told() -> bool:
            self._mark()
            return any(self._is_mark(line) for line in self._lines[before:])

        wait_until(told, what="the monitor tells of a change")
        said, self._lines = self._lines, []
        return [line for line in said if not self._is_mark(line)]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                self._lines.append(line.strip())

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(_SECONDS)
        self._reader.join(_SECONDS)


@contextmanager
def silence(netns: Netns) -> Iterator[None]:
    """Fails at its end if anything changed in the namespace meanwhile."""

    def mark_route() -> None:
        for verb in ("replace", "delete"):
            netns.ip("route", verb, "203.0.113.251", "dev", "lo", "table", _TABLE)

    def mark_table() -> None:
        inside = ["nsenter", f"--net={netns.path}", "--", "nft"]
        for verb in ("add", "delete"):
            subprocess.run([*inside, verb, "table", "ip", _MARK], check=True, timeout=_SECONDS)

    what = ("link", "address", "route", "rule")
    with ExitStack() as stack:
        routing = _Monitor(
            netns, "ip", "monitor", *what, mark=mark_route, is_mark=lambda line: f"table {_TABLE}" in line
        )
        stack.callback(routing.stop)
        # Each transaction is told of by a line that does not say whose it was, besides those that do.
        tables = _Monitor(
            netns, "nft", "monitor", mark=mark_table, is_mark=lambda line: _MARK in line or line.startswith("#")
        )
        stack.callback(tables.stop)
        for monitor in (routing, tables):
            monitor.lines()
        yield
        heard = [line for monitor in (routing, tables) for line in monitor.lines()]
        assert heard == [], heard
