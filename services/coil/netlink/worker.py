"""Threads that live in the host's namespace, where everything happens that enters a namespace or waits.

    Worker                a bounded set of threads, for as long as the context of `open_worker` lasts
    NamespaceExecutor     on top of it: jobs on one namespace take turns, in the order in which they were asked for

Jobs on different namespaces do not wait for each other. A job that has been asked for runs to its end even if nobody
waits for it any more: the next in turn finds a namespace that is not being changed.
"""

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, ParamSpec, TypeAlias, TypeVar

from coil.netlink.error import BusyError
from coil.netlink.namespace import Namespace

_PR_SET_NAME = 15  # linux/prctl.h
_libc = ctypes.CDLL(None)

P = ParamSpec("P")
R = TypeVar("R")


class Worker:
    """`threads` jobs run at a time, `waiting` more may wait; what comes then is refused with BusyError. The kernel
    knows the threads by the first 15 characters of `name`, too.

    Every job begins in the namespace `home`, even if one before it failed to find its way back.
    """

    def __init__(self, name: str, home: Namespace, *, threads: int, waiting: int = 1024) -> None:
        self._home = home
        self._executor = ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=_name_thread, initargs=(name.encode(),)
        )
        self._room = threads + waiting
        self._jobs: set[Future[object]] = set()

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queue a job. Called from the event loop's thread only."""
        if len(self._jobs) >= self._room:
            raise BusyError(f"{len(self._jobs)} jobs wait for the kernel")

        def job() -> R:
            self._home.enter()
            return function(*args, **kwargs)

        future = self._executor.submit(job)
        self._jobs.add(future)  # type: ignore[arg-type]  # only ever counted
        future.add_done_callback(self._jobs.discard)
        return future

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a job. A cancellation drops it if it has not begun; otherwise it goes on to its end unobserved."""
        return await asyncio.wrap_future(self.submit(function, *args, **kwargs))

    async def aclose(self) -> None:
        """Wait for the jobs that run, drop those that wait, end the threads."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)


@asynccontextmanager
async def open_worker(name: str, netns: Path | None = None, *, threads: int = 1) -> AsyncIterator[Worker]:
    """A worker whose jobs begin in the namespace at `netns`, or in that of the calling thread. Leaving the context
    closes it. Raises NamespaceError.
    """
    with Namespace(netns) if netns is not None else Namespace.current() as home:
        worker = Worker(name, home, threads=threads)
        try:
            yield worker
        finally:
            await worker.aclose()


def _name_thread(name: bytes) -> None:
    _libc.prctl(_PR_SET_NAME, name, 0, 0, 0)


_Key: TypeAlias = tuple[int, int]
"""Device and inode, which know a namespace whatever paths lead to it."""

_MOST: Final = 1024


class NamespaceExecutor:
    """Belongs to one event loop; the jobs run in the threads of `worker`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._last: dict[_Key, asyncio.Task[object]] = {}
        self._tasks: set[asyncio.Task[object]] = set()

    async def run(self, namespace: Namespace, job: Callable[[], R]) -> R:
        """Run `job` after all others on the namespace, which is closed at the end in any case.

        Raises what the job raises, and BusyError if far too many wait.
        """
        if len(self._tasks) >= _MOST:
            namespace.close()
            raise BusyError(f"{len(self._tasks)} jobs wait for their namespaces")
        status = os.fstat(namespace.fileno())
        key = status.st_dev, status.st_ino
        task = asyncio.create_task(self._run_after(self._last.get(key), namespace, job))
        self._last[key] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)

    async def _run_after(self, before: asyncio.Task[object] | None, namespace: Namespace, job: Callable[[], R]) -> R:
        try:
            if before is not None:
                await asyncio.wait([before])
            return await self._worker.run(job)
        finally:
            namespace.close()

    def _end(self, key: _Key, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if self._last.get(key) is task:
            del self._last[key]
        if not task.cancelled():
            task.exception()  # looked at, should nobody wait for it any more

    async def aclose(self) -> None:
        """Wait for all jobs."""
        while self._tasks:
            await asyncio.wait(self._tasks)
