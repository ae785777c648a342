"""Whether the machine has stood still: a thread that wants to wake all the time, and remembers how late it was."""

import time
from typing import Final

from integration.side_thread import SideThread

PERIOD: Final = 0.01


class Heartbeat(SideThread):
    """A context manager; `longest` is in seconds, and final after the block."""

    def __init__(self) -> None:
        super().__init__("heartbeat")
        self.longest = 0.0

    def work(self) -> None:
        before = time.monotonic()
        while not self.stopped.wait(PERIOD):
            before, last = time.monotonic(), before
            self.longest = max(self.longest, before - last)
        self.longest = max(self.longest, time.monotonic() - before)
