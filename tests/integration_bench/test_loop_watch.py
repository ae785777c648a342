import asyncio
from itertools import chain, count, repeat
from pathlib import Path

import pytest

from integration.bench.loop_watch import LoopWatch, Moment, Stall, ask_stalls, look_at_thread, stall_between


def test_a_delay_divides_into_work_queue_and_sleep() -> None:
    before = Moment(time=10.0, ran=1.0, queued=2.0)
    after = Moment(time=10.031, ran=1.012, queued=2.008)
    stall = stall_between(before, after, period=0.001)
    assert (stall.late_ms, stall.ran_ms, stall.queued_ms) == pytest.approx((30.0, 12.0, 8.0))
    assert str(stall) == "30.0 ms: 12.0 at work, 8.0 waiting for a processor, 10.0 for a lock"


def test_the_words_never_say_less_than_nothing() -> None:
    assert str(Stall(late_ms=1.0, ran_ms=0.9, queued_ms=0.4)).endswith("0.0 for a lock")


async def test_the_longest_since_it_was_asked_is_told(tmp_path: Path) -> None:
    # In time, 40 ms late, 5 ms late with more work than before; then in time for ever.
    times = chain([0.0, 0.001, 0.042, 0.048], (0.048 + 0.001 * number for number in count(1)))
    works = chain([0.0, 0.0, 0.002, 0.007], repeat(0.007))
    seen = asyncio.Event()
    looks = count(1)

    def look() -> Moment:
        if next(looks) == 6:
            seen.set()
        return Moment(time=next(times), ran=next(works), queued=0.0)

    path = tmp_path / "watch.sock"
    watch = asyncio.create_task(LoopWatch(path, look=look).run())
    await asyncio.wait_for(seen.wait(), 60)
    longest, busiest = await asyncio.to_thread(ask_stalls, path)
    assert (longest.late_ms, longest.ran_ms) == pytest.approx((40, 2))
    assert (busiest.late_ms, busiest.ran_ms) == pytest.approx((5, 5))
    longest, busiest = await asyncio.to_thread(ask_stalls, path)
    assert (longest.late_ms, busiest.ran_ms) == pytest.approx((0, 0))
    watch.cancel()
    await asyncio.wait([watch])


def test_a_thread_that_works_has_run_for_longer() -> None:
    before = look_at_thread()
    while (now := look_at_thread()).ran == before.ran:
        pass
    assert now.ran > before.ran
    assert now.time > before.time
    assert now.queued >= before.queued
