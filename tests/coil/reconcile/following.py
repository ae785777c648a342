"""An informer under test: run in a task, in virtual time, with everything it tells written down."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from coil.kube.collection import Collection
from coil.reconcile.informer import Informer, InformerMetrics, ListerWatcher
from coil.reconcile.store import Indexer
from tests.coil.kube.faulty_server import GUARD_SECONDS
from tests.coil.kube.thing import Thing

Change = tuple[Thing | None, Thing | None]


class Follower:
    """The informer, its notifications, and the pauses it made. Sleeping takes no time and moves the clock."""

    def __init__(
        self, source: ListerWatcher[Thing], *, indexers: Mapping[str, Indexer[Thing]], optional: bool = False
    ) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.changes: list[Change] = []
        self.replayed: dict[str, Thing] = {}
        self.registry = CollectorRegistry()
        self.logged = LogCapture()
        self.informer = Informer(
            source,
            log=structlog.wrap_logger(None, processors=[self.logged]),
            metrics=InformerMetrics(self.registry),
            indexers=indexers,
            optional=optional,
            clock=lambda: self.now,
            random=lambda: 0.0,  # no jitter: each delay is the longest it can be
            sleep=self._sleep,
        )
        self.informer.subscribe(self._note)
        self._poke = asyncio.Event()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until it holds; looked at after each notification and pause."""
        async with asyncio.timeout(GUARD_SECONDS):
            while not reached():
                self._poke.clear()
                await self._poke.wait()

    def told(self) -> list[str]:
        """The notifications in short: +name, -name, or ~name with the new size."""
        return [_describe(old, new) for old, new in self.changes]

    def metric(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(name, {"resource": "things", **labels})
        return 0.0 if value is None else value

    def _note(self, old: Thing | None, new: Thing | None) -> None:
        self.changes.append((old, new))
        some = new or old
        assert some is not None
        key = f"{some.metadata.namespace}/{some.metadata.name}"
        assert self.replayed.get(key) == old, "a notification does not start from what was told before"
        assert self.informer.get(key) == new, "the cache is not what the listener is told"
        if old is not None and new is not None:
            assert old.metadata.uid == new.metadata.uid, "another object is not a change of this one"
            assert int(old.metadata.resource_version) < int(new.metadata.resource_version), "told backwards"
        if new is None:
            del self.replayed[key]
        else:
            self.replayed[key] = new
        self._poke.set()

    async def _sleep(self, delay: float) -> None:
        self.pauses.append(delay)
        self.now += delay
        self._poke.set()
        await asyncio.sleep(0)


def _describe(old: Thing | None, new: Thing | None) -> str:
    if old is None:
        assert new is not None
        return f"+{new.metadata.name}"
    return f"-{old.metadata.name}" if new is None else f"~{new.metadata.name}{new.size}"


def paged(collection: Collection[Thing]) -> Collection[Thing]:
    """Of a server that streams no lists."""
    collection.streams_lists = False
    return collection


@asynccontextmanager
async def following(
    source: ListerWatcher[Thing], *, indexers: Mapping[str, Indexer[Thing]] | None = None, optional: bool = False
) -> AsyncIterator[Follower]:
    """Run an informer over `source` for the time of the block; a fault of `run` is raised at its end."""
    follower = Follower(source, indexers=indexers or {}, optional=optional)
    running = asyncio.create_task(follower.informer.run())
    try:
        yield follower
    finally:
        if not running.done():
            running.cancel()
        result: Any = (await asyncio.gather(running, return_exceptions=True))[0]
    if not isinstance(result, asyncio.CancelledError):
        raise AssertionError("run has ended by itself") from result
