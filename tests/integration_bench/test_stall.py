import asyncio
from itertools import accumulate, chain, repeat

import pytest

from integration.bench.stall import StallProbe


async def test_the_longest_delay_beyond_the_period_counts() -> None:
    # The start, then how long after the one before each wake is: in time, 40 ms late, 5 ms late, in time.
    times = accumulate(chain([100.0, 0.001, 0.041, 0.006], repeat(0.001)))
    seen = asyncio.Event()
    wakes = 0

    def clock() -> float:
        nonlocal wakes
        wakes += 1
        if wakes == 6:
            seen.set()
        return next(times)

    async with StallProbe(clock=clock) as probe:
        await asyncio.wait_for(seen.wait(), 60)
    assert probe.longest_ms == pytest.approx(40)


async def test_the_probe_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(LookupError):
        async with StallProbe():
            raise LookupError
    assert asyncio.all_tasks() == before
