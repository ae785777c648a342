"""A bounded set of threads that live in the host's namespace: where everything happens that enters a
namespace or waits.
"""

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

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


def _name_thread(name: bytes) -> None:
    _libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
