"""Many calls of the same kind, a few at a time, where one that is refused keeps none of the others from being made."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from coil.kube.errors import ApiError

T = TypeVar("T")

AT_ONCE = 8


async def work_through(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int = AT_ONCE) -> None:
    """Await `work` for each. Raises the first ApiError when all are done, and anything else at once.

    Cancelled, no call is left running.
    """
    waiting = iter(items)
    failures: list[ApiError] = []

    async def worker() -> None:
        for item in waiting:
            try:
                await work(item)
            except ApiError as error:
                failures.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    if failures:
        raise failures[0]
