"""What a person sees while a migration runs, on standard error: a bar on a terminal, lines everywhere else.

    [##########----------]  12/24  node-3: default/web-7c9

Lines that are told in between stay above the bar. Nothing here decides anything.
"""

from collections.abc import Callable
from typing import TextIO

BAR = 20
_ERASE = "\r\x1b[K"


class Progress:
    """`columns` is the width of the terminal; None where there is none."""

    def __init__(self, stream: TextIO, *, columns: Callable[[], int] | None) -> None:
        self._stream = stream
        self._columns = columns
        self._total = 0
        self._done = 0
        self._shown = ""

    def begin(self, total: int) -> None:
        """A new count, of `total` steps."""
        self._total, self._done = total, 0

    def step(self, what: str) -> None:
        """The next step begins; `what` names it."""
        self._done += 1
        count = f"{self._done:>{len(str(self._total))}}/{self._total}"
        if self._columns is None:
            self._stream.write(f"{count} {what}\n")
            self._stream.flush()
            return
        filled = BAR * (self._done - 1) // max(self._total, 1)
        # One column less than there are: a full line would make the terminal begin another one.
        self._shown = f"[{'#' * filled}{'-' * (BAR - filled)}] {count} {what}"[: max(self._columns() - 1, 1)]
        self._draw()

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._shown:
            self._stream.write(_ERASE)
        self._stream.write(f"{line}\n")
        self._draw()

    def end(self) -> None:
        """Take the bar away. Idempotent."""
        if self._shown:
            self._shown = ""
            self._stream.write(_ERASE)
            self._stream.flush()

    def _draw(self) -> None:
        if self._shown:
            self._stream.write(f"{_ERASE}{self._shown}")
        self._stream.flush()
