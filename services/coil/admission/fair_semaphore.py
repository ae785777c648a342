"""A semaphore that no source can occupy alone: sources take turns, and each source's own come in their order. Where too
many wait, those of the source with the most wait in vain.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class OverloadedError(Exception):
    """Too many wait already, and nobody has more of them than this source."""


class FairSemaphore:
    """`slots` at once, and at most `queue_length` that wait. For one event loop."""

    def __init__(self, slots: int, *, queue_length: int) -> None:
        self._free = slots
        self._queue_length = queue_length
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """By source, none of them empty; the next one's turn is the first."""

    @asynccontextmanager
    async def slot(self, source: Hashable) -> AsyncIterator[None]:
        """Raises OverloadedError, at once or when another source has had to wait longer."""
        await self._acquire(source)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, source: Hashable) -> None:
        if self._free:  # then nobody waits
            self._free -= 1
            return
        if sum(map(len, self._queues.values())) >= self._queue_length:
            self._make_room(source)
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(source, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release()  # it was given, but nobody is there any more
            else:
                self._forget(source, turn)
            raise

    def _release(self) -> None:
        while self._queues:
            source = next(iter(self._queues))
            queue = self._queues.pop(source)
            turn = queue.popleft()
            if queue:
                self._queues[source] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _make_room(self, source: Hashable) -> None:
        most = max(self._queues, key=lambda each: len(self._queues[each]), default=source)
        if len(self._queues.get(most, ())) <= len(self._queues.get(source, ())) + 1:
            raise OverloadedError
        last = self._queues[most][-1]
        self._forget(most, last)
        if not last.done():
            last.set_exception(OverloadedError())

    def _forget(self, source: Hashable, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(source)
        if queue is None or turn not in queue:
            return
        queue.remove(turn)
        if not queue:
            del self._queues[source]
