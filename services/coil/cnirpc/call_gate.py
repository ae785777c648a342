"""How many calls coild works on at once, how many may wait, and how the last of them are seen off.

Invariant: at most `running` calls are inside `run` past the slot, at most `running + queued` inside it at all.
What comes on top, or after `close`, is refused at once with TRY_AGAIN_LATER: the runtime asks again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from coil.cnirpc.call_metric import Refusal
from coil.cnirpc.error import CniError, CniErrorCode


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """`seconds` bounds a call that came without a deadline, or with a longer one; it includes the queue.

    Beyond `connections`, the oldest are closed on which nothing is asked: a client that forgets its own would take all
    the files that the process may open.
    """

    running: int = 64
    queued: int = 256
    seconds: float = 60.0
    connections: int = 640


class CallRefusedError(CniError):
    """The gate's own answer: TRY_AGAIN_LATER."""

    def __init__(self, refusal: Refusal, msg: str) -> None:
        super().__init__(CniErrorCode.TRY_AGAIN_LATER, msg)
        self.refusal = refusal


class CallGate:
    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.running)
        self._inside: set[asyncio.Timeout] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Refuse calls from now on; those inside go on."""
        self._closed = True

    def expire(self) -> None:
        """The time of every call that is inside is up, at once."""
        now = asyncio.get_running_loop().time()
        for timer in self._inside:
            if not timer.expired():
                timer.reschedule(now)

    async def run(self, call: Callable[[], Awaitable[None]]) -> None:
        """Await `call` when a slot is free. Raises CallRefusedError when refused or out of time.

        A cancellation (the caller's deadline, or its disconnection) cancels the call as well.
        """
        if self._closed:
            raise self._late()
        if len(self._inside) >= self._limits.running + self._limits.queued:
            raise CallRefusedError(Refusal.BUSY, f"coild has {len(self._inside)} calls to answer already")
        timer = asyncio.timeout(self._limits.seconds)
        try:
            async with timer:
                self._inside.add(timer)
                self._empty.clear()
                async with self._slots:
                    await call()
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise self._late() from error
        finally:
            self._inside.discard(timer)
            if not self._inside:
                self._empty.set()

    async def wait_empty(self, seconds: float) -> int:
        """Wait until no call is inside, for `seconds` at most; returns how many still are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        return len(self._inside)

    def _late(self) -> CallRefusedError:
        if self._closed:
            return CallRefusedError(Refusal.STOPPING, "coild is stopping")
        return CallRefusedError(Refusal.LATE, f"coild did not finish within {self._limits.seconds:g} s")
