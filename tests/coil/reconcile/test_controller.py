"""The controller: each sentence of its retry contract, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import CapturingLogger

from coil.kube.errors import ConflictError, UnavailableError
from coil.reconcile.backoff import Backoff
from coil.reconcile.controller import DONE, Controller, RequeueAfter, Result
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import QueueFullError, WorkQueue
from tests.coil.reconcile.virtual_time import run_virtual

DOUBLING = Backoff(base=1.0, cap=60.0, jitter=0.0)


class Bench:
    """A controller with its queue, a record of its calls, and what it logs and counts."""

    def __init__(
        self,
        reconcile: Callable[[str], Awaitable[Result]],
        *,
        workers: int = 1,
        timeout: float = 60.0,
        limit: int = 1000,
    ) -> None:
        self.registry = CollectorRegistry()
        self.logger = CapturingLogger()
        self.calls: list[tuple[float, str]] = []
        self._reconcile = reconcile
        metrics = ReconcileMetrics(self.registry)
        self.queue = WorkQueue(
            "pools",
            metrics=metrics,
            backoff=DOUBLING,
            limit=limit,
            clock=asyncio.get_running_loop().time,
            random=lambda: 0.0,
        )
        self.controller = Controller(
            "pools",
            self._record,
            queue=self.queue,
            metrics=metrics,
            log=structlog.wrap_logger(self.logger, processors=[_as_call]),
            workers=workers,
            timeout=timeout,
        )
        self.task = asyncio.create_task(self.controller.run())

    async def _record(self, key: str) -> Result:
        self.calls.append((asyncio.get_running_loop().time(), key))
        return await self._reconcile(key)

    async def stop(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task

    def results(self) -> dict[str, float]:
        """Counted reconciles by result."""
        return {
            sample.labels["result"]: sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "controller_runtime_reconcile_total"
        }

    @property
    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        return [(call.method_name, call.kwargs) for call in self.logger.calls]


def _as_call(_logger: object, _method: str, event: Any) -> tuple[tuple[()], dict[str, Any]]:
    return (), dict(event)


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an async test in virtual time."""

    def run() -> None:
        run_virtual(test)

    run.__doc__ = test.__doc__
    return run


async def nothing_to_do(_key: str) -> Result:
    return DONE


@virtual
async def test_done_is_called_once_for_each_event() -> None:
    bench = Bench(nothing_to_do)
    for _ in range(3):
        bench.queue.add("a")
    await asyncio.sleep(1000)
    assert bench.calls == [(0.0, "a")]
    bench.queue.add("a")
    await asyncio.sleep(1)
    assert bench.calls == [(0.0, "a"), (1000.0, "a")]
    assert bench.results() == {"success": 2}
    await bench.stop()


@virtual
async def test_after_is_called_again_when_the_time_has_come_or_something_happens() -> None:
    async def look_again(_key: str) -> Result:
        return RequeueAfter(10.0)

    bench = Bench(look_again)
    bench.queue.add("a")
    await asyncio.sleep(12)
    bench.queue.add("a")
    await asyncio.sleep(12)
    assert bench.calls == [(0.0, "a"), (10.0, "a"), (12.0, "a"), (22.0, "a")]
    assert bench.results() == {"requeue_after": 4}
    await bench.stop()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_after_needs_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        RequeueAfter(seconds)


@virtual
async def test_a_failure_is_retried_with_backoff_until_it_succeeds_and_is_then_forgotten() -> None:
    bad = True

    async def sometimes(_key: str) -> Result:
        if bad:
            raise RuntimeError("the pool has no subnets")
        return DONE

    bench = Bench(sometimes)
    bench.queue.add("a")
    await asyncio.sleep(10)
    assert bench.calls == [(0.0, "a"), (1.0, "a"), (3.0, "a"), (7.0, "a")]
    bad = False
    await asyncio.sleep(100)
    assert bench.calls[4:] == [(15.0, "a")]
    bad = True
    bench.queue.add("a")
    await asyncio.sleep(1.5)
    assert bench.calls[5:] == [(110.0, "a"), (111.0, "a")], "its backoff starts small again"
    level, line = bench.lines[0]
    assert level == "error"
    assert line["key"] == "a"
    assert line["error"] == "RuntimeError: the pool has no subnets"
    assert line["failures"] == 1
    assert line["retry_in"] == 1.0
    assert isinstance(line["exc_info"], RuntimeError)
    await bench.stop()


@virtual
async def test_one_failing_key_holds_up_no_other() -> None:
    async def fail_for_a(key: str) -> Result:
        if key == "a":
            raise RuntimeError
        return DONE

    bench = Bench(fail_for_a)
    bench.queue.add("a")
    for second in range(20):
        bench.queue.add(f"b{second}")
        await asyncio.sleep(1)
    assert [when for when, key in bench.calls if key != "a"] == [float(second) for second in range(20)]
    await bench.stop()


@virtual
async def test_refusals_are_logged_by_what_they_mean() -> None:
    errors: list[Exception] = [ConflictError("modified", status=409), UnavailableError("no route", status=0)]

    async def refuse(_key: str) -> Result:
        raise errors.pop(0)

    bench = Bench(refuse)
    bench.queue.add("a")
    await asyncio.sleep(2)
    assert [(level, line.get("exc_info")) for level, line in bench.lines[:2]] == [("info", None), ("warning", None)]
    await bench.stop()


@virtual
async def test_a_reconcile_that_takes_too_long_is_cancelled_and_retried() -> None:
    cancelled = 0

    async def hang(_key: str) -> Result:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise
        return DONE

    bench = Bench(hang, timeout=5.0)
    bench.queue.add("a")
    await asyncio.sleep(7)
    assert bench.calls == [(0.0, "a"), (6.0, "a")]
    assert cancelled == 1
    assert bench.results() == {"timeout": 1}
    assert bench.lines[0][1]["error"] == "no result after 5 s"
    await bench.stop()


@virtual
async def test_a_timeout_inside_the_reconcile_is_an_error_like_any_other() -> None:
    async def impatient(_key: str) -> Result:
        async with asyncio.timeout(1.0):
            await asyncio.Event().wait()
        return DONE

    bench = Bench(impatient, timeout=5.0)
    bench.queue.add("a")
    await asyncio.sleep(2.5)
    assert bench.results() == {"error": 1}
    await bench.stop()


@virtual
async def test_a_cancellation_from_within_does_not_cost_a_worker() -> None:
    """A reconcile that awaits a task which somebody else cancels raises CancelledError without being cancelled."""
    good = False

    async def await_a_cancelled_task(_key: str) -> Result:
        if not good:
            inner = asyncio.create_task(asyncio.sleep(10))
            asyncio.get_running_loop().call_soon(inner.cancel)
            await inner
        return DONE

    bench = Bench(await_a_cancelled_task)
    bench.queue.add("a")
    await asyncio.sleep(0.5)
    good = True
    await asyncio.sleep(10)
    assert bench.results() == {"error": 1, "success": 1}
    await bench.stop()


@virtual
async def test_workers_are_bounded_and_a_key_is_in_one_at_a_time() -> None:
    busy: list[str] = []
    most = 0

    async def slow(key: str) -> Result:
        nonlocal most
        assert key not in busy
        busy.append(key)
        most = max(most, len(busy))
        await asyncio.sleep(1)
        busy.remove(key)
        return DONE

    bench = Bench(slow, workers=3)
    for key in "abcdefg":
        bench.queue.add(key)
    await asyncio.sleep(0.5)
    bench.queue.add("a")
    bench.queue.add("a")
    labels = {"controller": "pools"}
    assert bench.registry.get_sample_value("controller_runtime_active_workers", labels) == 3
    await asyncio.sleep(10)
    assert most == 3
    assert sorted(key for _, key in bench.calls) == sorted("aabcdefg")
    assert bench.registry.get_sample_value("controller_runtime_active_workers", labels) == 0
    await bench.stop()


@virtual
async def test_a_stop_cancels_the_reconciles_and_awaits_them() -> None:
    ended: list[str] = []

    async def tidy(key: str) -> Result:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(2)
            ended.append(key)
        return DONE

    bench = Bench(tidy, workers=2)
    for key in "abc":
        bench.queue.add(key)
    await asyncio.sleep(1)
    await bench.stop()
    assert asyncio.get_running_loop().time() == 3.0
    assert sorted(ended) == ["a", "b"]
    assert bench.results() == {"cancelled": 2}


@virtual
async def test_a_closed_queue_ends_the_controller_when_it_is_drained() -> None:
    async def slow(_key: str) -> Result:
        await asyncio.sleep(1)
        return DONE

    bench = Bench(slow)
    for key in "abc":
        bench.queue.add(key)
    bench.queue.close()
    await bench.task
    assert [key for _, key in bench.calls] == ["a", "b", "c"]


@virtual
async def test_a_backlog_that_needs_no_waiting_leaves_the_event_loop_to_others() -> None:
    bench = Bench(nothing_to_do)
    for number in range(1000):
        bench.queue.add(str(number))
    turns = 0
    while len(bench.queue):
        turns += 1
        await asyncio.sleep(0)
    assert turns > 500
    await bench.stop()


@virtual
async def test_watching_maps_each_change_to_keys() -> None:
    def owners(old: str | None, new: str | None) -> Iterable[str]:
        return {each.split("/")[0] for each in (old, new) if each is not None}

    bench = Bench(nothing_to_do)
    listener = bench.controller.listener(owners)
    listener(None, "x/1")
    await asyncio.sleep(1)
    listener("x/1", "y/1")
    await asyncio.sleep(1)
    listener("y/1", None)
    await asyncio.sleep(1)
    assert [{key for when, key in bench.calls if when == second} for second in (0, 1, 2)] == [{"x"}, {"x", "y"}, {"y"}]
    await bench.stop()


@virtual
async def test_changes_within_a_batch_window_are_one_call() -> None:
    bench = Bench(nothing_to_do)
    listener = bench.controller.listener(lambda old, new: ["a"], batch_window=5.0)
    for _ in range(10):
        listener(None, "x")
        await asyncio.sleep(1)
    await asyncio.sleep(60)
    assert bench.calls == [(5.0, "a"), (10.0, "a")], "and none is put off for ever by the next"
    await bench.stop()


@virtual
async def test_an_event_that_cannot_be_kept_ends_the_controller() -> None:
    async def slow(_key: str) -> Result:
        await asyncio.sleep(1)
        return DONE

    bench = Bench(slow, limit=3)

    def name_of(_old: str | None, new: str | None) -> list[str]:
        return [new] if new else []

    listener = bench.controller.listener(name_of)
    for name in "abcd":
        listener(None, name)
    with pytest.raises(QueueFullError, match="refuses 'd'"):
        await bench.task


@virtual
async def test_a_controller_needs_a_worker() -> None:
    with pytest.raises(ValueError, match="needs a worker, not 0"):
        Controller(
            "pools",
            nothing_to_do,
            queue=Bench(nothing_to_do).queue,
            metrics=ReconcileMetrics(CollectorRegistry()),
            log=structlog.wrap_logger(CapturingLogger()),
            workers=0,
        )
    (running,) = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    running.cancel()
    await asyncio.wait({running})
