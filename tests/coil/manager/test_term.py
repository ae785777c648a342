"""What a term promises to those who declare their work on it, each sentence in virtual time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from coil.kube.errors import ApiError, ConflictError, NotFoundError, NotServedError, UnavailableError
from coil.manager.term import Channel, Term
from coil.reconcile.controller import DONE, RequeueAfter, Result
from tests.coil.kube.thing import Thing
from tests.coil.manager.bench import DOUBLING, Bench, Recorder, names, play, source
from tests.coil.manager.memory_source import MemorySource


def test_each_term_makes_its_state_anew_and_begins_with_what_is_there() -> None:
    async def script(bench: Bench) -> None:
        things = source("things", "a")
        cache = bench.manager.cache(things)
        made: list[list[tuple[str, str]]] = []

        def setup(term: Term) -> None:
            made.append([])
            Recorder("thing", cache, made[-1]).setup(term)

        bench.manager.each_term(setup)
        async with bench.term():
            await asyncio.sleep(1)
            assert made == [[("thing", "a")]]
        async with bench.term():
            things.put("b")
            await asyncio.sleep(1)
        assert made == [[("thing", "a")], [("thing", "a"), ("thing", "b")]]
        things.put("c")
        await asyncio.sleep(1)
        assert made[1] == [("thing", "a"), ("thing", "b")], "a term that has ended hears of nothing"

    play(script)


def test_between_terms_nothing_works_and_the_next_one_catches_up() -> None:
    async def script(bench: Bench) -> None:
        things = source("things", "a", "b")
        cache = bench.manager.cache(things)
        calls: list[tuple[str, str]] = []
        bench.manager.each_term(lambda term: Recorder("thing", cache, calls).setup(term))
        async with bench.term():
            await asyncio.sleep(1)
        things.delete("a")
        things.put("c")
        await asyncio.sleep(100)
        assert calls == [("thing", "a"), ("thing", "b")]
        async with bench.term():
            await asyncio.sleep(1)
        assert calls[2:] == [("thing", "b"), ("thing", "c")]

    play(script)


def test_a_controller_waits_for_the_caches_that_it_watches_or_needs_and_for_no_others() -> None:
    async def script(bench: Bench) -> None:
        ready, silent = source("ready", "a"), MemorySource("silent", answering=False)
        silent.put("s")
        first, second = bench.manager.cache(ready), bench.manager.cache(silent)
        calls: list[tuple[str, str]] = []

        def setup(term: Term) -> None:
            Recorder("free", first, calls).setup(term)
            needing = Recorder("needing", first, calls)
            controller = term.controller("needing", needing.reconcile)
            controller.watch(first, names)
            controller.needs(second)
            Recorder("watching", second, calls).setup(term)

        bench.manager.each_term(setup)
        async with bench.term():
            await asyncio.sleep(300)
            assert calls == [("free", "a")]
            assert bench.lines("waiting for the API server"), "an admin can see what it waits for"
            silent.answer()
            await asyncio.sleep(1)
            assert sorted(calls[1:]) == [("needing", "a"), ("watching", "s")]

    play(script)


def test_a_term_that_ends_before_a_cache_is_synced_leaves_nothing() -> None:
    async def script(bench: Bench) -> None:
        silent = MemorySource("silent", answering=False)
        cache = bench.manager.cache(silent)
        calls: list[tuple[str, str]] = []
        bench.manager.each_term(lambda term: Recorder("watching", cache, calls).setup(term))
        async with bench.term():
            await asyncio.sleep(10)
        silent.put("s")
        silent.answer()
        await asyncio.sleep(10)
        assert calls == []

    play(script)


@pytest.mark.parametrize("kind", [NotFoundError, NotServedError])
def test_a_kind_that_is_not_served_blocks_nobody_who_does_not_need_it(kind: type[ApiError]) -> None:
    async def script(bench: Bench) -> None:
        missing = MemorySource("missing", fault=kind("the server could not find it", status=404))
        missing.put("m")
        first = bench.manager.cache(source("things", "a"))
        second = bench.manager.cache(missing, optional=True)
        calls: list[tuple[str, str]] = []
        bench.manager.each_term(lambda term: Recorder("missing", second, calls).setup(term))
        bench.manager.each_term(lambda term: Recorder("thing", first, calls).setup(term))
        await bench.manager.start()
        await asyncio.sleep(100)
        assert calls == [("thing", "a")]
        assert "missing" not in bench.unready()
        missing.answer()  # its CRD was installed
        await asyncio.sleep(60)
        assert calls[1:] == [("missing", "m")]

    play(script)


def test_an_optional_watch_holds_up_nobody() -> None:
    async def script(bench: Bench) -> None:
        missing = MemorySource("missing", fault=NotServedError("404 page not found", status=404))
        missing.put("m")
        first = bench.manager.cache(source("things", "a"))
        second = bench.manager.cache(missing, optional=True)
        calls: list[tuple[str, str]] = []

        def setup(term: Term) -> None:
            controller = term.controller("thing", Recorder("thing", first, calls).reconcile)
            controller.watch(first, names)
            controller.watch(second, names, optional=True)

        bench.manager.each_term(setup)
        await bench.manager.start()
        await asyncio.sleep(100)
        assert calls == [("thing", "a")]
        missing.answer()
        await asyncio.sleep(60)
        assert calls[1:] == [("thing", "m")]

    play(script)


def test_a_derived_index_hears_of_every_event_before_any_watch() -> None:
    async def script(bench: Bench) -> None:
        things = source("things", "a")
        cache = bench.manager.cache(things)
        seen: list[tuple[str, list[str]]] = []

        def setup(term: Term) -> None:
            watching = Recorder("watching", cache, [])
            index: set[str] = set()

            def look(old: Thing | None, new: Thing | None) -> list[str]:
                seen.append((names(old, new)[0], sorted(index)))
                return []

            # Declared before the index, and yet it hears later.
            term.controller("watching", watching.reconcile).watch(cache, look)
            term.subscribe(cache, lambda old, new: index.symmetric_difference_update(names(old, new)))

        bench.manager.each_term(setup)
        for _ in range(2):
            async with bench.term():
                await asyncio.sleep(1)
                things.put("b")
                await asyncio.sleep(1)
                things.delete("b")
                await asyncio.sleep(1)
        once = [("a", ["a"]), ("b", ["a", "b"]), ("b", ["a"])]
        assert seen == once + once, "the index of the second term began empty"

    play(script)


def test_an_index_of_the_process_hears_of_what_happens_between_terms() -> None:
    async def script(bench: Bench) -> None:
        things = source("things", "a")
        cache = bench.manager.cache(things)
        index: set[str] = set()
        cache.subscribe(lambda old, new: index.symmetric_difference_update(names(old, new)))
        sizes: list[int] = []

        def setup(term: Term) -> None:
            async def reconcile(key: str) -> Result:
                sizes.append(len(index))
                return DONE

            term.controller("thing", reconcile).watch(cache, names)

        bench.manager.each_term(setup)
        await asyncio.sleep(1)
        things.put("b")
        await asyncio.sleep(1)
        async with bench.term():
            await asyncio.sleep(1)
        assert sizes == [2, 2]

    play(script)


def test_reconcilers_feed_each_other_by_channels_also_before_the_receiver_may_begin() -> None:
    async def script(bench: Bench) -> None:
        late = MemorySource("late", answering=False)
        first, second = bench.manager.cache(source("things", "a", "b")), bench.manager.cache(late)
        calls: list[tuple[str, str]] = []

        def setup(term: Term) -> None:
            sizes: Channel[int] = Channel()

            async def measure(key: str) -> Result:
                sizes.send(first.items()[0].size)
                return DONE

            receiver = Recorder("receiver", second, calls)
            controller = term.controller("receiver", receiver.reconcile)
            controller.needs(second)
            controller.watch_channel(sizes, lambda size: [f"of size {size}"], batch_window=5.0)
            term.controller("sender", measure).watch(first, names)

        bench.manager.each_term(setup)
        async with bench.term():
            await asyncio.sleep(10)
            assert calls == []
            late.answer()
            await asyncio.sleep(1)
            assert calls == [("receiver", "of size 1")], "two events in one batch window are one call"

    play(script)


class RefusedError(Exception):
    """What a reconciler of these tests expects."""


def test_backoff_timeout_workers_and_expected_errors_are_each_controllers_own() -> None:
    async def script(bench: Bench) -> None:
        clock = asyncio.get_running_loop().time
        cache = bench.manager.cache(source("things", "a", "b", "c"))
        failing: list[float] = []
        hanging: list[float] = []
        at_once: list[int] = []

        def setup(term: Term) -> None:
            busy = 0

            async def fail(key: str) -> Result:
                failing.append(clock() - began)
                raise RefusedError("not now")

            async def hang(key: str) -> Result:
                hanging.append(clock() - began)
                await asyncio.sleep(1000)
                return DONE

            async def work(key: str) -> Result:
                nonlocal busy
                busy += 1
                at_once.append(busy)
                await asyncio.sleep(1)
                busy -= 1
                return DONE

            expecting = term.controller("expecting", fail, backoff=DOUBLING, expected_errors=(RefusedError,))
            expecting.enqueue("a")
            hurried = term.controller("hurried", hang, backoff=DOUBLING, timeout=2.0)
            hurried.enqueue("a")
            term.controller("wide", work, workers=2).watch(cache, names)
            term.controller("narrow", fail).enqueue("a", delay=3600.0)

        bench.manager.each_term(setup)
        await asyncio.sleep(1)
        began = clock()
        async with bench.term():
            await asyncio.sleep(8)
        assert failing == pytest.approx([0, 1, 3, 7])
        assert hanging == pytest.approx([0, 3, 7])
        assert max(at_once) == 2
        logged = bench.lines("reconcile failed")
        assert {line["log_level"] for line in logged} == {"warning"}
        assert not any("exc_info" in line for line in logged), "what is expected has no traceback"

    play(script)


def test_an_error_that_nobody_expects_has_a_traceback_and_a_conflict_is_none() -> None:
    async def script(bench: Bench) -> None:
        errors = {
            "conflict": ConflictError("newer", status=409),
            "outage": UnavailableError("away"),
            "bug": RefusedError(),
        }

        def setup(term: Term) -> None:
            async def fail(key: str) -> Result:
                raise errors[key]

            controller = term.controller("failing", fail, backoff=DOUBLING)
            for key in errors:
                controller.enqueue(key)

        bench.manager.each_term(setup)
        async with bench.term():
            await asyncio.sleep(0.5)
        assert [line["key"] for line in bench.lines("reconcile met a newer version")] == ["conflict"]
        levels = {line["key"]: (line["log_level"], "exc_info" in line) for line in bench.lines("reconcile failed")}
        assert levels == {"outage": ("warning", False), "bug": ("error", True)}

    play(script)


def test_resync_looks_at_everything_again_at_the_start_only_if_asked_to() -> None:
    async def script(bench: Bench) -> None:
        clock = asyncio.get_running_loop().time
        calls: list[tuple[int, str]] = []

        def setup(term: Term) -> None:
            async def reconcile(key: str) -> Result:
                calls.append((round(clock() - began), key))
                return DONE

            async def slowly() -> AsyncIterator[str]:
                for number in range(250):
                    await asyncio.sleep(0)
                    if not number:
                        yield "async"

            controller = term.controller("thing", reconcile)
            controller.resync(lambda: ["late"], every=3600)
            controller.resync(slowly, every=2400, at_start=True)

        bench.manager.each_term(setup)
        began = clock()
        async with bench.term():
            await asyncio.sleep(5000)
        assert calls == [
            (0, "async"),
            (2400, "async"),
            (3600, "late"),
            (4800, "async"),
        ]
        assert [line["keys"] for line in bench.lines("resync")] == [1, 1, 1, 1]

    play(script)


def test_a_runnable_of_the_term_begins_after_its_caches_and_ends_with_the_term() -> None:
    async def script(bench: Bench) -> None:
        late = MemorySource("late", answering=False)
        cache = bench.manager.cache(late)
        story: list[str] = []

        def setup(term: Term) -> None:
            async def run() -> None:
                story.append("begun")
                try:
                    await asyncio.sleep(1e5)
                finally:
                    story.append("ended")

            term.on_end(lambda: story.append("term over"))
            term.add_runnable("keeper", run, after=[cache])

        bench.manager.each_term(setup)
        async with bench.term():
            await asyncio.sleep(50)
            assert story == []
            late.answer()
            await asyncio.sleep(1)
            assert story == ["begun"]
        assert story == ["begun", "ended", "term over"]

    play(script)


@pytest.mark.parametrize("fails", [True, False], ids=["raises", "returns"])
def test_a_runnable_that_does_not_last_ends_the_term_with_a_reason(fails: bool) -> None:
    async def script(bench: Bench) -> None:
        async def run() -> None:
            await asyncio.sleep(5)
            if fails:
                raise RefusedError("broken")

        calls: list[tuple[str, str]] = []
        cache = bench.manager.cache(source("things", "a"))
        bench.manager.each_term(lambda term: Recorder("thing", cache, calls).setup(term))
        bench.manager.each_term(lambda term: term.add_runnable("keeper", run))
        with pytest.raises(ExceptionGroup) as caught:
            await bench.manager.lead()
        (reason,) = caught.value.exceptions
        assert str(reason) == (
            "broken" if fails else "the runnable 'keeper' ended, though it was to run until the end of the term"
        )

    play(script)


def test_the_end_of_a_term_cancels_work_and_forgets_what_was_to_be_repeated() -> None:
    async def script(bench: Bench) -> None:
        things = source("things", "slow", "again")
        cache = bench.manager.cache(things)
        story: list[str] = []

        def setup(term: Term) -> None:
            async def reconcile(key: str) -> Result:
                story.append(key)
                if key == "again":
                    return RequeueAfter(5)
                try:
                    await asyncio.sleep(50)
                finally:
                    story.append(f"{key} cancelled")
                return DONE

            term.controller("thing", reconcile, workers=2).watch(cache, names)

        bench.manager.each_term(setup)
        async with bench.term():
            await asyncio.sleep(2)
        assert sorted(story) == ["again", "slow", "slow cancelled"]
        await asyncio.sleep(1000)
        assert len(story) == 3
        assert bench.metric("workqueue_depth", name="thing") == 0

    play(script)


def test_names_of_controllers_and_runnables_are_unique_in_a_term() -> None:
    async def script(bench: Bench) -> None:
        async def reconcile(key: str) -> Result:
            return DONE

        async def run() -> None:
            pass

        def setup(term: Term) -> None:
            term.controller("twice", reconcile)
            with pytest.raises(ValueError, match="twice"):
                term.controller("twice", reconcile)
            term.add_runnable("twice", run)
            with pytest.raises(ValueError, match="twice"):
                term.add_runnable("twice", run)
            raise RefusedError("setup failed")

        bench.manager.each_term(setup)
        with pytest.raises(RefusedError):
            await bench.manager.lead()

    play(script)
