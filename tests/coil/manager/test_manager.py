"""What the manager does for a process: caches, readiness, metrics, runnables of every replica, start and stop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from coil.kube.errors import UnavailableError
from coil.manager.election import Election
from coil.manager.term import Term
from coil.reconcile.controller import DONE, Result
from tests.coil.kube.thing import Thing
from tests.coil.manager.bench import Bench, Recorder, names, play, source
from tests.coil.manager.memory_source import MemorySource


def test_start_waits_for_the_caches_and_readiness_says_for_which() -> None:
    async def script(bench: Bench) -> None:
        silent = MemorySource("silent", answering=False)
        failing = MemorySource("failing", fault=UnavailableError("connection refused"))
        cache = bench.manager.cache(silent)
        bench.manager.cache(failing)
        calls: list[tuple[str, str]] = []
        bench.manager.each_term(lambda term: Recorder("thing", cache, calls).setup(term))
        silent.put("a")
        starting = asyncio.create_task(bench.manager.start())
        await asyncio.sleep(100)
        assert not starting.done()
        unready = bench.unready()
        assert unready["silent"] == "not listed yet: no answer"
        assert "connection refused" in unready["failing"]
        silent.answer()
        failing.answer()
        await starting
        await asyncio.sleep(1)
        assert calls == [("thing", "a")]
        assert bench.unready().keys() <= {"process"}

    play(script)


def test_a_start_that_is_cancelled_has_begun_nothing() -> None:
    async def script(bench: Bench) -> None:
        silent = MemorySource("silent", answering=False)
        bench.manager.cache(silent)
        story: list[str] = []

        async def run() -> None:
            story.append("begun")

        bench.manager.add_runnable("history", run)
        starting = asyncio.create_task(bench.manager.start())
        await asyncio.sleep(10)
        starting.cancel()
        await asyncio.wait({starting})
        silent.answer()
        await asyncio.sleep(10)
        assert story == []

    play(script)


def test_a_cache_has_its_indexes_and_its_metrics_by_its_name() -> None:
    async def script(bench: Bench) -> None:
        plain = bench.manager.cache(source("things", "a"))
        named = bench.manager.cache(
            source("things", "b", "c"), name="big things", indexers={"size": lambda thing: [str(thing.size)]}
        )
        await bench.manager.start()
        assert [thing.metadata.name for thing in named.by_index("size", "1")] == ["b", "c"]
        assert [thing.metadata.name for thing in plain.items()] == ["a"]
        assert bench.metric("informer_objects", resource="things") == 1
        assert bench.metric("informer_objects", resource="big things") == 2
        with pytest.raises(ValueError, match="things"):
            bench.manager.cache(source("things"))

    play(script)


def test_a_runnable_of_every_replica_runs_without_a_term_and_once() -> None:
    async def script(bench: Bench) -> None:
        begun: list[float] = []

        async def run() -> None:
            begun.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1e5)

        bench.manager.add_runnable("history", run)
        await bench.manager.start()
        for _ in range(2):
            async with bench.term():
                await asyncio.sleep(1)
        assert len(begun) == 1

    play(script)


def test_a_process_that_stops_leaves_no_task_and_stops_working_before_its_caches_do() -> None:
    story: list[str] = []

    async def script(bench: Bench) -> None:
        cache = bench.manager.cache(source("things", "a"))

        class Follower:
            def setup(self, term: Term) -> None:
                term.controller("thing", self.reconcile).watch(cache, names)

            async def reconcile(self, key: str) -> Result:
                try:
                    await asyncio.sleep(1e5)
                finally:
                    story.append("worker cancelled")
                return DONE

        async def watch_cache() -> None:
            try:
                await asyncio.sleep(1e5)
            finally:
                story.append("runnable cancelled")

        bench.manager.add_runnable("watcher", watch_cache)
        bench.manager.each_term(lambda term: Follower().setup(term))
        await bench.manager.start()
        await asyncio.sleep(1)
        assert story == []

    play(script)  # which fails if a task is left
    assert story == ["worker cancelled", "runnable cancelled"]


def test_a_listener_that_raises_stops_the_process() -> None:
    class BrokenError(Exception):
        pass

    async def script(bench: Bench) -> None:
        things = source("things")
        cache = bench.manager.cache(things)

        def break_down(old: Thing | None, new: Thing | None) -> None:
            raise BrokenError("the index and its cache disagree")

        cache.subscribe(break_down)
        await bench.manager.start()
        things.put("a")
        await asyncio.sleep(1)
        assert bench.process.stopping.is_set()
        assert "disagree" in (bench.process.failure or "")
        bench.process.failure = None
        bench.process.deadline.cancel()

    play(script)


def test_a_replica_stands_by_while_it_does_not_lead_and_never_beside_a_term() -> None:
    async def script(bench: Bench) -> None:
        story: list[str] = []

        def tell(what: str) -> Callable[[Term], None]:
            async def run() -> None:
                story.append(f"{what} begins")
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    await asyncio.sleep(0.1)
                    story.append(f"{what} ends")

            return lambda term: term.add_runnable(what, run)

        bench.manager.each_term(tell("term"))
        bench.manager.while_standing_by(tell("standby"))
        standing = asyncio.create_task(bench.manager.stand_by())
        for _ in range(2):
            await asyncio.sleep(1)
            async with bench.term():
                await asyncio.sleep(1)
        await asyncio.sleep(1)
        standing.cancel()
        await asyncio.wait({standing})
        parts = [f"{what} {how}" for what in ("standby", "term") for how in ("begins", "ends")]
        assert story == [*parts, *parts, *parts[:2]]

    play(script)


@pytest.mark.parametrize("elected", [False, True])
def test_only_what_contends_stands_by(*, elected: bool) -> None:
    """A process without an election leads from its start."""

    async def script(bench: Bench) -> None:
        story: list[str] = []

        class Contender:
            async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
                await asyncio.sleep(1)
                await lead()

        def tell(what: str) -> Callable[[Term], None]:
            async def run() -> None:
                story.append(what)
                await asyncio.get_running_loop().create_future()

            return lambda term: term.add_runnable(what, run)

        bench.manager.each_term(tell("leads"))
        bench.manager.while_standing_by(tell("stands by"))
        await bench.manager.start(cast(Election, Contender()) if elected else None)
        await asyncio.sleep(2)
        assert story == (["stands by", "leads"] if elected else ["leads"])

    play(script)


def test_what_fails_while_standing_by_is_raised() -> None:
    async def script(bench: Bench) -> None:
        async def run() -> None:
            raise ValueError("broken")

        bench.manager.while_standing_by(lambda term: term.add_runnable("broken", run))
        with pytest.raises(ExceptionGroup):
            await bench.manager.stand_by()

    play(script)
