"""Jobs on namespaces: in turns on one, side by side on several. Any open file does for one that nobody enters."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from coil.netlink.error import BusyError
from coil.netlink.namespace import Namespace
from coil.netlink.worker import NamespaceExecutor, Worker

_SECONDS = 60.0


class OwnNamespace(Namespace):
    """The process's own, which a thread is in already: entering it takes no privilege here."""

    def __init__(self) -> None:
        super().__init__(Path("/proc/self/ns/net"))

    def enter(self) -> None:
        pass


@pytest.fixture
async def executor() -> AsyncIterator[NamespaceExecutor]:
    with OwnNamespace() as home:
        worker = Worker("test", home, threads=3)
        executor = NamespaceExecutor(worker)
        yield executor
        await executor.aclose()
        await worker.aclose()


def place(tmp_path: Path, name: str) -> Namespace:
    """Something with an inode of its own."""
    path = tmp_path / name
    path.touch()
    return Namespace(path)


async def test_jobs_on_one_namespace_run_one_after_the_other_in_their_order(
    executor: NamespaceExecutor, tmp_path: Path
) -> None:
    order: list[int] = []
    running: list[int] = []

    def job(number: int) -> int:
        assert not running
        running.append(number)
        order.append(number)
        running.remove(number)
        return number

    results = await asyncio.gather(*(executor.run(place(tmp_path, "a"), partial(job, n)) for n in range(20)))
    assert results == order == list(range(20))


async def test_jobs_on_different_namespaces_run_side_by_side(executor: NamespaceExecutor, tmp_path: Path) -> None:
    together = threading.Barrier(2)
    await asyncio.gather(*(executor.run(place(tmp_path, name), lambda: together.wait(_SECONDS)) for name in "ab"))


async def test_a_job_that_fails_is_its_callers_and_the_next_goes_on(
    executor: NamespaceExecutor, tmp_path: Path
) -> None:
    def fail() -> None:
        raise ValueError("no")

    first = asyncio.ensure_future(executor.run(place(tmp_path, "a"), fail))
    second = asyncio.ensure_future(executor.run(place(tmp_path, "a"), lambda: 7))
    assert await second == 7
    with pytest.raises(ValueError, match="no"):
        await first


async def test_a_cancelled_job_is_done_nevertheless_and_before_the_next(
    executor: NamespaceExecutor, tmp_path: Path
) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def job() -> None:
        begun.set()
        assert go_on.wait(_SECONDS)
        done.append("first")

    first = asyncio.ensure_future(executor.run(place(tmp_path, "a"), job))
    await asyncio.to_thread(begun.wait, _SECONDS)
    waiting = asyncio.ensure_future(executor.run(place(tmp_path, "a"), lambda: done.append("second")))
    await asyncio.sleep(0)
    for task in (first, waiting):
        task.cancel()
    await asyncio.gather(first, waiting, return_exceptions=True)
    go_on.set()
    await executor.run(place(tmp_path, "a"), lambda: done.append("third"))
    assert done == ["first", "second", "third"]


async def test_the_namespace_is_closed_in_any_case(executor: NamespaceExecutor, tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no")

    for job in (lambda: None, fail):
        namespace = place(tmp_path, "a")
        number = namespace.fileno()
        await asyncio.gather(executor.run(namespace, job), return_exceptions=True)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


async def test_far_too_many_are_refused(
    executor: NamespaceExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coil.netlink.worker._MOST", 1)
    go_on = threading.Event()
    first = asyncio.ensure_future(executor.run(place(tmp_path, "a"), lambda: go_on.wait(_SECONDS)))
    await asyncio.sleep(0)
    with pytest.raises(BusyError):
        await executor.run(place(tmp_path, "b"), lambda: None)
    go_on.set()
    await first
