"""Operations with one key run one after the other; those with different keys never wait for each other.

Keys are attachments, and links by their names. An operation that has begun runs to its end even if whoever asked for
it no longer waits: half an operation is worse than one that the next with its key undoes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.link import LinkName

T = TypeVar("T")

Key: TypeAlias = AttachmentKey | LinkName


class KeyedExecutor:
    """One per process. Within an operation another may be run with another key: of a link within an attachment's."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._last: dict[Key, asyncio.Task[object]] = {}

    def __contains__(self, key: Key) -> bool:
        """Whether an operation with the key is under way, or waits."""
        return key in self._last

    async def run(self, key: Key, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` after everything that was asked for with the key before.

        A cancelled caller leaves it to complete.
        """
        previous = self._last.get(key)

        async def operation() -> T:
            if previous is not None:
                await asyncio.wait([previous])
            return await work()

        task = asyncio.create_task(operation(), name=str(key))
        self._last[key] = task
        task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)

    async def wait_idle(self) -> None:
        """Wait until no operation is under way. The caller bounds the wait."""
        while self._last:
            await asyncio.wait(list(self._last.values()))

    def _end(self, key: Key, task: asyncio.Task[T]) -> None:
        if self._last.get(key) is task:
            del self._last[key]
        # The failure of an operation on a link reaches the operation on an attachment that ran it.
        if isinstance(key, AttachmentKey) and not task.cancelled() and (error := task.exception()) is not None:
            # Logged here because the runtime may have gone; it is the only trace then.
            self._log.info("operation failed", container=key.container_id, error=str(error))
