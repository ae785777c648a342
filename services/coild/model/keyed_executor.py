"""Operations on one thing take turns; those on different things never wait for each other.

The things are attachments, and links by their names. An operation that has begun runs to its end even if whoever asked
for it no longer waits: half an operation is worse than one that the next in turn undoes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.ipam.attachment import AttachmentKey
from coil.kernel.link import LinkName

T = TypeVar("T")

Thing: TypeAlias = AttachmentKey | LinkName


class KeyedExecutor:
    """One per process. A turn may be taken within the turn of another thing: of a link within an attachment's."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._last: dict[Thing, asyncio.Task[object]] = {}

    def __contains__(self, thing: Thing) -> bool:
        """Whether an operation on it is under way, or waits."""
        return thing in self._last

    async def take(self, thing: Thing, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` after all that was asked for on the thing before. A cancelled caller leaves it to complete."""
        previous = self._last.get(thing)

        async def turn() -> T:
            if previous is not None:
                await asyncio.wait([previous])
            return await work()

        task = asyncio.create_task(turn(), name=str(thing))
        self._last[thing] = task
        task.add_done_callback(lambda done: self._end(thing, done))
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait until no operation is under way. The caller bounds the wait."""
        while self._last:
            await asyncio.wait(list(self._last.values()))

    def _end(self, thing: Thing, task: asyncio.Task[T]) -> None:
        if self._last.get(thing) is task:
            del self._last[thing]
        # What fails in the turn of a link is heard by the attachment that took it.
        if isinstance(thing, AttachmentKey) and not task.cancelled() and (error := task.exception()) is not None:
            # Said here because the runtime may have gone; it is the only trace then.
            self._log.info("operation failed", container=thing.container_id, why=str(error))
