"""What the manager does for a process: caches, readiness, metrics, runnables of every replica, start and stop."""

import asyncio

import pytest

from coil.kube.errors import UnavailableError
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
