"""The work queue: its promises one by one, then all of them against a plain model in random histories."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from coil.reconcile.backoff import Backoff
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import QueueClosedError, QueueEmptyError, QueueFullError, WorkQueue
from tests.coil.reconcile.virtual_time import run_virtual

DOUBLING = Backoff(base=1.0, cap=10.0, factor=2.0, jitter=0.0)


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_queue(
    clock: Callable[[], float],
    *,
    limit: int = 1000,
    backoff: Backoff = DOUBLING,
    registry: CollectorRegistry | None = None,
) -> WorkQueue:
    metrics = ReconcileMetrics(registry or CollectorRegistry())
    return WorkQueue("test", metrics=metrics, backoff=backoff, limit=limit, clock=clock, random=random.Random(1).random)


def take_all(queue: WorkQueue) -> list[str]:
    """Every key that is ready now, in order; each is done at once."""
    taken: list[str] = []
    while True:
        try:
            key = queue.get_nowait()
        except (QueueEmptyError, QueueClosedError):
            return taken
        taken.append(key)
        queue.done(key)


class TestReady:
    def test_keys_come_out_in_the_order_they_went_in_once_each(self) -> None:
        queue = make_queue(ManualClock())
        for key in ["b", "a", "b", "c", "a"]:
            queue.add(key)
        assert len(queue) == 3
        assert take_all(queue) == ["b", "a", "c"]

    def test_nothing_ready(self) -> None:
        with pytest.raises(QueueEmptyError):
            make_queue(ManualClock()).get_nowait()

    def test_a_key_in_work_is_not_handed_out_again_before_it_is_done(self) -> None:
        queue = make_queue(ManualClock())
        queue.add("a")
        assert queue.get_nowait() == "a"
        queue.add("a")
        queue.add("a")
        with pytest.raises(QueueEmptyError):
            queue.get_nowait()
        queue.done("a")
        assert take_all(queue) == ["a"]

    def test_a_key_redone_queues_behind_the_others(self) -> None:
        queue = make_queue(ManualClock())
        queue.add("a")
        queue.get_nowait()
        queue.add("a")
        queue.add("b")
        queue.done("a")
        assert take_all(queue) == ["b", "a"]

    def test_done_needs_a_key_in_work(self) -> None:
        queue = make_queue(ManualClock())
        queue.add("a")
        with pytest.raises(ValueError, match="'a' is not in work in queue 'test'"):
            queue.done("a")


class TestDelay:
    def test_a_delayed_key_comes_when_its_time_has_come(self) -> None:
        clock = ManualClock()
        queue = make_queue(clock)
        queue.add_after("a", 5.0)
        clock.now += 4.9
        assert take_all(queue) == []
        clock.now += 0.1
        assert take_all(queue) == ["a"]

    @pytest.mark.parametrize("delays", [(5.0, 3.0), (3.0, 5.0), (3.0, 3.0)])
    def test_the_earliest_delay_wins_and_counts_once(self, delays: tuple[float, ...]) -> None:
        clock = ManualClock()
        queue = make_queue(clock)
        for delay in delays:
            queue.add_after("a", delay)
        clock.now += 3.0
        assert take_all(queue) == ["a"]
        clock.now += 100.0
        assert take_all(queue) == []

    def test_being_added_ends_the_delay(self) -> None:
        clock = ManualClock()
        queue = make_queue(clock)
        queue.add_after("a", 5.0)
        queue.add("a")
        queue.add_after("a", 1.0)
        assert take_all(queue) == ["a"]
        clock.now += 100.0
        assert take_all(queue) == []

    def test_a_delay_that_ends_in_work_makes_the_key_ready_after_it(self) -> None:
        clock = ManualClock()
        queue = make_queue(clock)
        queue.add("a")
        queue.get_nowait()
        queue.add_after("a", 1.0)
        clock.now += 2.0
        with pytest.raises(QueueEmptyError):
            queue.get_nowait()
        queue.done("a")
        assert take_all(queue) == ["a"]

    def test_delays_order_by_time_not_by_when_they_were_asked_for(self) -> None:
        clock = ManualClock()
        queue = make_queue(clock)
        queue.add_after("late", 3.0)
        queue.add_after("early", 1.0)
        clock.now += 10.0
        assert take_all(queue) == ["early", "late"]

    @pytest.mark.parametrize("delay", [0.0, -1.0])
    def test_no_delay_is_ready_now(self, delay: float) -> None:
        queue = make_queue(ManualClock())
        queue.add_after("a", delay)
        assert take_all(queue) == ["a"]

    def test_wishes_that_were_overtaken_do_not_pile_up(self) -> None:
        """An object with an hourly look that changes each second: one entry, not one per change."""
        clock = ManualClock()
        queue = make_queue(clock)
        for _ in range(5000):
            queue.add("a")
            key = queue.get_nowait()
            queue.add_after(key, 3600.0)
            queue.done(key)
            clock.now += 0.5
        assert len(queue._delayed) < 200
        clock.now += 3600.0
        assert take_all(queue) == ["a"]


class TestRetry:
    def test_the_delay_grows_to_its_cap_and_shrinks_when_forgotten(self) -> None:
        clock = ManualClock()
        queue = make_queue(clock)
        delays = []
        for _ in range(6):
            delays.append(queue.retry("a"))
            clock.now += delays[-1]
            assert take_all(queue) == ["a"]
        assert delays == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        assert queue.failures("a") == 6
        queue.forget("a")
        assert queue.failures("a") == 0
        assert queue.retry("a") == 1.0

    def test_each_key_has_its_own(self) -> None:
        queue = make_queue(ManualClock())
        queue.retry("a")
        queue.retry("a")
        assert queue.retry("b") == 1.0

    def test_jitter_spreads_keys_that_failed_together(self) -> None:
        queue = make_queue(ManualClock(), backoff=Backoff(base=1.0, cap=10.0, jitter=0.5))
        delays = {queue.retry(f"key-{number}") for number in range(50)}
        assert len(delays) == 50
        assert all(0.5 <= delay <= 1.0 for delay in delays)

    def test_an_event_does_not_wait_for_the_backoff(self) -> None:
        queue = make_queue(ManualClock())
        queue.retry("a")
        queue.add("a")
        assert take_all(queue) == ["a"]
        assert queue.failures("a") == 1

    def test_forgetting_an_unknown_key_is_nothing(self) -> None:
        make_queue(ManualClock()).forget("a")


class TestLimit:
    def test_one_key_too_many_is_refused_and_known_ones_are_not(self) -> None:
        queue = make_queue(ManualClock(), limit=3)
        queue.add("ready")
        queue.add_after("delayed", 10.0)
        queue.retry("failing")
        for add in (queue.add, lambda key: queue.add_after(key, 1.0), queue.retry):
            with pytest.raises(QueueFullError, match="knows 3 keys and refuses 'new'"):
                add("new")
        queue.add("delayed")
        queue.add_after("ready", 1.0)
        assert take_all(queue) == ["ready", "delayed"]
        queue.add("new")

    def test_a_key_with_nothing_left_to_do_is_forgotten(self) -> None:
        queue = make_queue(ManualClock(), limit=1)
        for number in range(100):
            queue.add(str(number))
            key = queue.get_nowait()
            queue.retry(key)
            queue.add(key)
            queue.done(key)
            assert take_all(queue) == [key]
            queue.forget(key)


class TestClose:
    def test_what_is_ready_is_handed_out_then_no_more(self) -> None:
        clock = ManualClock()
        queue = make_queue(clock)
        queue.add("ready")
        queue.add_after("delayed", 1.0)
        queue.close()
        queue.close()
        queue.add("late")
        queue.add_after("later", 0.5)
        clock.now += 10.0
        assert take_all(queue) == ["ready"]
        with pytest.raises(QueueClosedError):
            queue.get_nowait()

    def test_a_key_added_in_work_before_the_close_is_still_redone(self) -> None:
        queue = make_queue(ManualClock())
        queue.add("a")
        queue.get_nowait()
        queue.add("a")
        queue.close()
        with pytest.raises(QueueEmptyError):
            queue.get_nowait()
        queue.done("a")
        assert queue.get_nowait() == "a"

    def test_everybody_who_waits_is_told(self) -> None:
        async def main() -> None:
            queue = make_queue(asyncio.get_running_loop().time)
            waiters = [asyncio.create_task(queue.get()) for _ in range(3)]
            await asyncio.sleep(1)
            queue.close()
            results = await asyncio.gather(*waiters, return_exceptions=True)
            assert [type(result) for result in results] == [QueueClosedError] * 3

        run_virtual(main)

    def test_a_waiter_stays_for_the_key_that_will_be_redone(self) -> None:
        async def main() -> None:
            queue = make_queue(asyncio.get_running_loop().time)
            queue.add("a")
            await queue.get()
            queue.add("a")
            waiters = [asyncio.create_task(queue.get()) for _ in range(2)]
            await asyncio.sleep(1)
            queue.close()
            await asyncio.sleep(1)
            assert not any(waiter.done() for waiter in waiters)
            queue.done("a")
            await asyncio.sleep(1)
            (winner,) = [waiter for waiter in waiters if waiter.done()]
            assert winner.result() == "a"
            queue.done("a")
            results = await asyncio.gather(*waiters, return_exceptions=True)
            assert {type(result) for result in results} == {str, QueueClosedError}

        run_virtual(main)


class TestWaiting:
    def test_get_waits_for_an_add(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            queue = make_queue(loop.time)
            loop.call_later(7.0, queue.add, "a")
            assert await queue.get() == "a"
            assert loop.time() == 7.0

        run_virtual(main)

    def test_get_waits_for_a_delay_and_for_one_that_is_shortened(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            queue = make_queue(loop.time)
            queue.add_after("a", 10.0)
            loop.call_later(1.0, queue.add_after, "a", 2.0)
            assert await queue.get() == "a"
            assert loop.time() == pytest.approx(3.0)

        run_virtual(main)

    def test_several_delays_reach_several_waiters_each_at_its_time(self) -> None:
        """Neither waiter may sleep past its key because the other one was told about it."""

        async def main() -> None:
            loop = asyncio.get_running_loop()
            queue = make_queue(loop.time)
            got: list[tuple[str, float]] = []

            async def worker() -> None:
                got.append((await queue.get(), loop.time()))
                await asyncio.Event().wait()  # a worker that is busy for ever

            workers = [asyncio.create_task(worker()) for _ in range(3)]
            await asyncio.sleep(1)
            queue.add_after("b", 6.0)
            queue.add_after("a", 5.0)
            queue.add_after("c", 7.0)
            await asyncio.sleep(100)
            assert got == [("a", 6.0), ("b", 7.0), ("c", 8.0)]
            for each in workers:
                each.cancel()

        run_virtual(main)

    @pytest.mark.parametrize("cancelled_first", [True, False])
    def test_a_cancelled_waiter_takes_no_key_with_it(self, cancelled_first: bool) -> None:
        """Add and cancellation at one instant, in both orders: the other waiter gets the key."""

        async def main() -> None:
            queue = make_queue(asyncio.get_running_loop().time)
            first = asyncio.create_task(queue.get())
            second = asyncio.create_task(queue.get())
            await asyncio.sleep(1)
            steps: list[Callable[[], object]] = [first.cancel, lambda: queue.add("a")]
            for step in steps if cancelled_first else reversed(steps):
                step()
            assert await second == "a"
            with pytest.raises(asyncio.CancelledError):
                await first

        run_virtual(main)

    def test_waiting_costs_nothing_while_nothing_happens(self) -> None:
        """A week without events is a wake-up a day (asyncio's longest wait), not a poll."""

        async def main() -> None:
            loop = asyncio.get_running_loop()
            reads = 0

            def clock() -> float:
                nonlocal reads
                reads += 1
                return loop.time()

            queue = make_queue(clock)
            queue.add_after("a", 7 * 86400.0)
            await queue.get()
            assert reads < 20

        run_virtual(main)


class TestMetrics:
    def test_depth_adds_retries_and_times(self) -> None:
        clock = ManualClock()
        registry = CollectorRegistry()
        queue = make_queue(clock, registry=registry)

        def value(name: str) -> float | None:
            return registry.get_sample_value(name, {"name": "test"})

        queue.add("a")
        queue.add("a")
        queue.add("b")
        assert value("workqueue_depth") == 2
        assert value("workqueue_adds_total") == 2
        clock.now += 3.0
        key = queue.get_nowait()
        assert value("workqueue_depth") == 1
        assert value("workqueue_queue_duration_seconds_sum") == 3.0
        clock.now += 2.0
        queue.retry(key)
        queue.done(key)
        assert value("workqueue_work_duration_seconds_sum") == 2.0
        assert value("workqueue_retries_total") == 1
        clock.now += 1.0
        assert take_all(queue) == ["b", "a"]
        assert value("workqueue_adds_total") == 3
        assert value("workqueue_depth") == 0


KEYS = st.sampled_from("abcd")


class QueueAgainstModel(RuleBasedStateMachine):
    """The model: for each key when it is due (or ready), whether it is in work, how often it failed."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.queue = make_queue(self.clock)
        self.ready: list[str] = []
        self.dirty: set[str] = set()
        self.working: set[str] = set()
        self.due: dict[str, float] = {}
        self.failures: dict[str, int] = {}

    def _pass_time(self) -> None:
        for key, when in sorted(self.due.items(), key=lambda item: (item[1], item[0])):
            if when <= self.clock.now:
                self._model_add(key)

    def _model_add(self, key: str) -> None:
        self.due.pop(key, None)
        if key in self.working:
            self.dirty.add(key)
        elif key not in self.ready:
            self.ready.append(key)

    def _model_delay(self, key: str, delay: float) -> None:
        if key not in self.ready and key not in self.dirty:
            self.due[key] = min(self.due.get(key, float("inf")), self.clock.now + delay)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self._pass_time()
        self.queue.add(key)
        self._model_add(key)

    @rule(key=KEYS, delay=st.floats(min_value=0.1, max_value=20.0))
    def add_after(self, key: str, delay: float) -> None:
        self._pass_time()
        self.queue.add_after(key, delay)
        self._model_delay(key, delay)

    @rule(key=KEYS)
    def retry(self, key: str) -> None:
        self._pass_time()
        failures = self.failures.get(key, 0)
        delay = self.queue.retry(key)
        assert delay == min(10.0, 2.0**failures)
        self.failures[key] = failures + 1
        self._model_delay(key, delay)

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.failures.pop(key, None)

    @rule(seconds=st.floats(min_value=0.0, max_value=15.0))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def get(self) -> None:
        self._pass_time()
        if self.ready:
            key = self.queue.get_nowait()
            assert key == self.ready.pop(0)
            self.working.add(key)
        else:
            with pytest.raises(QueueEmptyError):
                self.queue.get_nowait()

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        self._pass_time()
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.queue.done(key)
        self.working.remove(key)
        if key in self.dirty:
            self.dirty.remove(key)
            self.ready.append(key)

    @invariant()
    def remembers_only_what_matters(self) -> None:
        known = {*self.ready, *self.working, *self.due, *self.failures}
        assert set(self.queue._entries) == known


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_history_of_workers_and_events_never_loses_a_change() -> None:
    """Workers with random pauses, a producer, failures: one worker per key, and the last change is seen."""

    async def main(seed: int) -> None:
        loop = asyncio.get_running_loop()
        chance = random.Random(seed)
        queue = make_queue(loop.time)
        version = dict.fromkeys("abcdef", 0)
        seen: dict[str, int] = {}
        in_work: set[str] = set()

        async def worker() -> None:
            while True:
                try:
                    key = await queue.get()
                except QueueClosedError:
                    return
                assert key not in in_work
                in_work.add(key)
                found = version[key]
                await asyncio.sleep(chance.random())
                in_work.remove(key)
                if chance.random() < 0.3:
                    queue.retry(key)
                else:
                    seen[key] = found
                    queue.forget(key)
                queue.done(key)

        workers = [asyncio.create_task(worker()) for _ in range(3)]
        for _ in range(200):
            key = chance.choice("abcdef")
            version[key] += 1
            queue.add(key)
            await asyncio.sleep(chance.random() * 0.3)
        await asyncio.sleep(1000)
        assert seen == {key: number for key, number in version.items() if number}
        queue.close()
        await asyncio.gather(*workers)

    def with_seed(seed: int) -> Callable[[], Coroutine[Any, Any, None]]:
        return lambda: main(seed)

    for seed in range(20):
        run_virtual(with_seed(seed))
