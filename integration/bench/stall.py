"""How long the event loop was away: what a health probe, a lease renewal or another request had to wait."""

import asyncio
import time
from collections.abc import Callable

_PERIOD_SECONDS = 0.001


class StallProbe:
    """A task that wants to wake every millisecond and remembers the longest time by which it was late.

    `async with StallProbe() as probe:` around what is measured; `probe.longest_ms` at any time. `clock` gives
    seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.longest_ms = 0.0
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "StallProbe":
        self._task = asyncio.create_task(self._watch_loop(), name="stall probe")
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            # One more turn, so that a stall which is just over is seen before the probe goes.
            await asyncio.sleep(2 * _PERIOD_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch_loop(self) -> None:
        before = self._clock()
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            now = self._clock()
            self.longest_ms = max(self.longest_ms, (now - before - _PERIOD_SECONDS) * 1000)
            before = now
