"""One replica of a controller in a test: a real manager, whose terms begin and end when the test says so."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.manager.manager import Manager
from coil.manager.term import Term
from coil.runtime.process import Process

TURNS = 2000
LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])


def make_manager(*, registry: CollectorRegistry | None = None) -> Manager:
    """A manager whose clock is the event loop's, without a process around it."""
    process = Process("replica", log=LOG, registry=registry or CollectorRegistry(), stop_timeout=10)
    return Manager(process, clock=asyncio.get_running_loop().time, random=Random(1).random)


class Replica:
    """`setup` declares the controllers of a term; `look` has the caches follow the API server."""

    def __init__(self, setup: Callable[[Term], None], look: Callable[[], object]) -> None:
        self.manager = make_manager()
        self.manager.each_term(setup)
        self._look = look

    @asynccontextmanager
    async def term(self) -> AsyncIterator[None]:
        """Lead. No task may have ended by itself at the end."""
        task = asyncio.create_task(self.manager.lead())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def until(self, reached: Callable[[], bool]) -> None:
        """Let the controllers work, with caches that follow at once, until `reached`."""
        for _ in range(TURNS):
            self._look()
            if reached():
                return
            await asyncio.sleep(0)
        raise AssertionError("not reached")
