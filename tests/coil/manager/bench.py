"""A process with a manager in virtual time, whose election is the test itself: `term` is a time as leader."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from coil.manager.manager import Manager
from coil.manager.term import Term
from coil.reconcile.backoff import Backoff
from coil.reconcile.controller import DONE, Result
from coil.reconcile.informer import Informer
from coil.runtime.process import Process
from tests.coil.kube.thing import Thing
from tests.coil.manager.memory_source import MemorySource
from tests.coil.reconcile.virtual_time import run_virtual

DOUBLING = Backoff(base=1.0, cap=60.0, jitter=0.0)


class Bench:
    def __init__(self) -> None:
        self.logged = LogCapture()
        self.process = Process(
            "bench",
            log=structlog.wrap_logger(None, processors=[self.logged]),
            registry=CollectorRegistry(),
            stop_timeout=10,
        )
        self.manager = Manager(self.process, clock=asyncio.get_running_loop().time, random=lambda: 0.0)

    @asynccontextmanager
    async def term(self) -> AsyncIterator[None]:
        """Lead from here on, and end it with the block."""
        task = asyncio.create_task(self.manager.lead())
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    def unready(self) -> dict[str, str]:
        return dict(self.process.readiness.failing())

    def metric(self, series: str, /, **labels: str) -> float:
        value = self.process.registry.get_sample_value(series, labels)
        return 0.0 if value is None else value

    def lines(self, event: str) -> list[dict[str, object]]:
        """The lines of the log that are called `event`."""
        return [dict(entry) for entry in self.logged.entries if entry["event"] == event]


class Recorder:
    """A reconciler of Things that writes down what it is called for, and when."""

    def __init__(self, name: str, cache: Informer[Thing], calls: list[tuple[str, str]]) -> None:
        self.name = name
        self.cache = cache
        self.calls = calls

    async def reconcile(self, key: str) -> Result:
        self.calls.append((self.name, key))
        return DONE

    def setup(self, term: Term) -> None:
        term.controller(self.name, self.reconcile).watch(self.cache, names)


def names(old: Thing | None, new: Thing | None) -> list[str]:
    """The key of the Thing that has changed."""
    present = new or old
    return [] if present is None else [present.metadata.name]


def play(script: Callable[[Bench], Awaitable[None]]) -> None:
    """Run `script` in virtual time, then take its process apart; a task that is left over fails the test."""

    async def main() -> None:
        bench = Bench()
        async with bench.process.stack:
            await script(bench)
        assert bench.process.failure is None

    run_virtual(main)


def source(plural: str = "things", *present: str) -> MemorySource:
    made = MemorySource(plural)
    for name in present:
        made.put(name)
    return made
