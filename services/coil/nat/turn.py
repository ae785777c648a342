"""Jobs on one namespace take turns, in the order in which they were asked for; those on different ones do not wait for
each other.

A job that has been asked for runs to its end even if whoever asked no longer waits: the next in turn finds a namespace
that somebody has finished with.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from coil.netlink.error import BusyError
from coil.netlink.namespace import Namespace
from coil.netlink.worker import Worker

R = TypeVar("R")

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
        task = asyncio.create_task(self._turn(self._last.get(key), namespace, job))
        self._last[key] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)

    async def _turn(self, before: asyncio.Task[object] | None, namespace: Namespace, job: Callable[[], R]) -> R:
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
