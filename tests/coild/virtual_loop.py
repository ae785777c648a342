"""An event loop whose clock stands still while anything runs, and jumps to the next timer when nothing does.

A test of a wait of five minutes takes no time, the order of events follows from the delays alone, and a wait that
nothing can ever end is an error at once instead of a test that hangs.
"""

import asyncio
import selectors
from typing import Any


class StalledError(Exception):
    """Every task waits, and no timer is set that could wake one."""


class _JumpingSelector(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise StalledError
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


async def pass_turns(turns: int = 20) -> None:
    """Let everything run that can run now. The clock does not move."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def never() -> Any:
    """For calls that are never answered; cancel them."""
    await asyncio.get_running_loop().create_future()
