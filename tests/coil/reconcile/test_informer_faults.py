"""The informer against a server that does everything wrong, over real connections and in virtual time."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coil.kube.access import Access
from coil.kube.client import KubeClient
from coil.kube.collection import Collection
from coil.kube.errors import ForbiddenError, UnavailableError
from coil.kube.transport import Timeouts
from coil.kube.watch import LINE_LIMIT
from coil.reconcile.backoff import FRUITLESS_WATCHES
from tests.coil.kube.faulty_server import (
    Answer,
    Exchange,
    FaultyServer,
    fail,
    finish,
    hold,
    page,
    reply,
    reset,
    stream,
)
from tests.coil.kube.served_things import ServedThings
from tests.coil.kube.thing import THINGS, Thing, event, thing
from tests.coil.reconcile.following import Follower, following, paged

_BACKOFF = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
# aiohttp repeats a GET once, at once, whose connection ended without an answer: so these come in pairs.
_PAIRED: dict[Answer, int] = {reset: 2}
_NEVER = event("ADDED", thing("never", version=99))


@pytest.fixture
def things() -> ServedThings:
    served = ServedThings()
    served.put("a")
    return served


@pytest.fixture
async def server(things: ServedThings) -> AsyncIterator[FaultyServer]:
    async with FaultyServer(otherwise=things.answer) as running:
        yield running


@pytest.fixture
def access(server: FaultyServer, tmp_path: Path) -> Access:
    (tmp_path / "token").write_text("first")
    return Access.kubeconfig(server.write_kubeconfig(tmp_path, user={"tokenFile": "token"}))


@pytest.fixture
async def collection(access: Access) -> AsyncIterator[Collection[Thing]]:
    async with KubeClient(access) as client:
        yield paged(client.collection(THINGS))


def _places(server: FaultyServer) -> list[str]:
    """What was asked for, in order: "list", or the resource version that a watch was to resume from."""
    return [
        request.query["resourceVersion"] if request.is_watch else "list"
        for request in server.requests
        if "continue" not in request.query
    ]


def _agrees(follower: Follower, things: ServedThings) -> bool:
    seen = {key: (item.metadata.uid, item.metadata.resource_version) for key, item in follower.replayed.items()}
    return seen == things.state()


def _ending_with(piece: bytes) -> Answer:
    """The end of a watch that sends `piece` last."""

    async def end(exchange: Exchange) -> None:
        await exchange.send(piece)
        await exchange.end()

    return end


_ENDS: dict[str, Answer] = {
    "reset": reset,
    "proper end": finish,
    "half a line": _ending_with(_NEVER[:50]),
    "whole but unended line": _ending_with(_NEVER[:-1]),
    "malformed line": _ending_with(b'{"type": }\n'),
    "html": _ending_with(b"<html>\n<h1>Bad Gateway</h1>\n</html>\n"),
}


@pytest.mark.parametrize("end", _ENDS.values(), ids=_ENDS)
async def test_a_broken_watch_is_resumed_where_it_ended(
    end: Answer, things: ServedThings, server: FaultyServer, collection: Collection[Thing]
) -> None:
    async with following(collection) as follower:
        await server.received(2)
        things.put("b")
        await follower.until(lambda: len(follower.changes) == 2)
        things.cut(end)
        things.delete("a")
        things.put("c")
        await follower.until(lambda: len(follower.changes) == 4)
        assert follower.told() == ["+a", "+b", "-a", "+c"]
        assert _places(server) == ["list", "11", "12"]
        assert follower.pauses == [0.5]


async def test_a_silent_watch_is_given_up_and_resumed(
    things: ServedThings, server: FaultyServer, access: Access
) -> None:
    async with KubeClient(access, timeouts=Timeouts(silence=0.5)) as client:
        server.script(things.answer, stream(then=hold))
        async with following(paged(client.collection(THINGS))) as follower:
            await server.received(2)
            things.delete("a")
            await follower.until(lambda: len(follower.changes) == 2)
            assert _places(server)[:3] == ["list", "11", "11"]
            assert things.lists == 1


@pytest.mark.parametrize("by_event", [False, True], ids=["by status", "by event"])
async def test_deletes_that_nobody_watched_are_found_out(
    by_event: bool, server: FaultyServer, collection: Collection[Thing]
) -> None:
    things = ServedThings(expire_by_event=by_event)
    server.otherwise = things.answer
    for name in "abc":
        things.put(name)
    async with following(collection, indexers={"size": lambda item: [str(item.size)]}) as follower:
        await server.received(2)
        things.cut(reset)
        things.delete("a")
        things.replace("b")
        things.put("d")
        things.compact()
        await follower.until(lambda: _agrees(follower, things))
        assert follower.told()[:3] == ["+a", "+b", "+c"]
        # A new object under an old name is two changes; what is gone is told last.
        assert sorted(follower.told()[3:]) == ["+b", "+d", "-a", "-b"]
        assert follower.told()[-1] == "-a"
        assert {item.metadata.name for item in follower.informer.by_index("size", "1")} == {"b", "c", "d"}
        assert _places(server)[:4] == ["list", "13", "13", "list"]
        assert follower.pauses == [0.5, 1.0]


async def test_a_list_that_expires_between_pages_is_begun_again(
    server: FaultyServer, collection: Collection[Thing]
) -> None:
    things = ServedThings(page_size=1)
    for name in "abc":
        things.put(name)

    async def expire_first(exchange: Exchange) -> None:
        things.delete("a")
        things.put("d")
        things.compact()
        await things.answer(exchange)

    server.otherwise = things.answer
    server.script(things.answer, things.answer, expire_first)
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        await follower.until(lambda: _agrees(follower, things))
        assert follower.told() == ["+a", "+b", "+c", "+d", "-a"]
        assert things.lists == 2
        assert follower.pauses == [0.5]


_NO_LISTS: dict[str, Answer] = {
    "html 502": page(502),
    "html 200": page(200),
    "empty 200": page(200, b""),
    "other json": reply({"kind": "PodList"}),
    "500": fail(500),
    "503": fail(503),
    "410": fail(410),
    "403": fail(403),
    "404": page(404, b"404 page not found"),
    "reset": reset,
    "cut off": stream(b'{"metadata": {"resourceVersion": "5"}, "items": [', then=reset),
}


@pytest.mark.parametrize("answer", _NO_LISTS.values(), ids=_NO_LISTS)
async def test_lists_that_fail_are_repeated_ever_more_slowly(
    answer: Answer, server: FaultyServer, collection: Collection[Thing]
) -> None:
    paired = _PAIRED.get(answer, 1)
    server.script(*[answer] * 10 * paired)
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert follower.pauses == _BACKOFF
        assert _places(server)[: 10 * paired + 1] == ["list"] * (10 * paired + 1)


_NO_WATCHES: dict[str, Answer] = {
    "html 502": page(502),
    "html 200": page(200),
    "500": fail(500),
    "503": fail(503),
    "reset": reset,
}


@pytest.mark.parametrize("answer", _NO_WATCHES.values(), ids=_NO_WATCHES)
async def test_watches_that_fail_are_repeated_ever_more_slowly(
    answer: Answer, things: ServedThings, server: FaultyServer, collection: Collection[Thing]
) -> None:
    paired = _PAIRED.get(answer, 1)
    server.script(things.answer, *[answer] * 10 * paired)
    async with following(collection) as follower:
        await server.received(10 * paired + 2)
        assert follower.pauses == _BACKOFF
        # An outage does not cost the place.
        assert _places(server) == ["list", *["11"] * (10 * paired + 1)]
        things.put("b")
        await follower.until(lambda: len(follower.changes) == 2)


_FRUITLESS: dict[str, Answer] = {
    "empty 200": stream(then=finish),
    "broken at once": stream(then=reset),
    "html by event": stream(b"<html></html>\n", then=finish),
    "half a line": stream(_NEVER[:20], then=finish),
}


@pytest.mark.parametrize("answer", _FRUITLESS.values(), ids=_FRUITLESS)
async def test_watches_without_fruit_slow_down_and_lead_to_a_list(
    answer: Answer, things: ServedThings, server: FaultyServer, collection: Collection[Thing]
) -> None:
    server.script(things.answer, *[answer] * FRUITLESS_WATCHES)
    async with following(collection) as follower:
        await server.received(FRUITLESS_WATCHES + 3)
        assert follower.pauses == _BACKOFF[:FRUITLESS_WATCHES]
        assert _places(server) == ["list", *["11"] * FRUITLESS_WATCHES, "list", "11"]
        assert follower.told() == ["+a"]


async def test_a_place_that_is_always_expired_does_not_make_a_busy_loop(
    things: ServedThings, server: FaultyServer, collection: Collection[Thing]
) -> None:
    server.script(*[things.answer, fail(410)] * 10)
    async with following(collection) as follower:
        await server.received(21)
        assert follower.pauses == _BACKOFF
        assert _places(server)[:20] == ["list", "11"] * 10


async def test_the_pause_that_the_server_asks_for(
    things: ServedThings, server: FaultyServer, collection: Collection[Thing]
) -> None:
    server.script(fail(429, Retry_After="20"), things.answer, fail(429, Retry_After="86400"))
    async with following(collection) as follower:
        await server.received(4)
        assert follower.pauses == [20.0, 60.0]


async def test_a_line_that_is_too_long_leads_to_a_list(
    things: ServedThings, server: FaultyServer, collection: Collection[Thing]
) -> None:
    piece = b"x" * (1 << 20)
    pieces = [piece] * (LINE_LIMIT // len(piece) + 1)
    server.script(things.answer, stream(b'{"type": "ADDED", "object": "', *pieces, then=hold))
    async with following(collection) as follower:
        await server.received(4)
        assert _places(server) == ["list", "11", "list", "11"]
        assert follower.told() == ["+a"]


async def test_a_restarted_server(things: ServedThings, server: FaultyServer, collection: Collection[Thing]) -> None:
    async with following(collection) as follower:
        await server.received(2)
        await server.stop()
        await follower.until(lambda: len(follower.pauses) >= 3)
        assert follower.informer.synced
        assert isinstance(follower.informer.last_error, UnavailableError)
        assert follower.informer.contact_age > 0
        things.delete("a")
        things.put("b")
        await server.start()
        await follower.until(lambda: _agrees(follower, things))
        assert follower.told() == ["+a", "-a", "+b"]
        assert things.lists == 1
        assert follower.pauses == _BACKOFF[: len(follower.pauses)] or follower.pauses[-1] == 30.0


async def test_a_rotated_token(
    things: ServedThings, server: FaultyServer, collection: Collection[Thing], tmp_path: Path
) -> None:
    async def accept_only_second(exchange: Exchange) -> None:
        good = exchange.request.headers["authorization"] == "Bearer second"
        await (things.answer if good else fail(401))(exchange)

    async with following(collection) as follower:
        await server.received(2)
        (tmp_path / "token").write_text("second")
        server.otherwise = accept_only_second
        things.cut(finish)
        things.put("b")
        await follower.until(lambda: len(follower.changes) == 2)
        assert follower.pauses == [0.5]  # for the short watch; the refused token costs no pause
        assert _places(server) == ["list", "11", "11", "11"]


async def test_a_missing_permission_is_reported_and_healed(
    things: ServedThings, server: FaultyServer, collection: Collection[Thing]
) -> None:
    server.script(fail(403, reason="Forbidden", message="coild cannot list things"))
    async with following(collection) as follower:
        await follower.until(lambda: bool(follower.pauses))
        assert isinstance(follower.informer.last_error, ForbiddenError)
        [entry] = follower.logged.entries
        assert entry["log_level"] == "warning"
        assert "coild cannot list things" in entry["error"]
        assert (entry["resource"], entry["next"], entry["delay"]) == ("things", "list", 0.5)
        await follower.informer.wait_synced(10)
        assert follower.told() == ["+a"]


@pytest.mark.parametrize(
    "answer", [page(404, b"404 page not found"), fail(404, reason="NotFound")], ids=["no such group", "no such kind"]
)
async def test_an_optional_kind_that_is_not_served_is_no_reason_for_warnings(
    answer: Answer, server: FaultyServer, collection: Collection[Thing]
) -> None:
    server.script(*[answer] * 2, fail(503), *[answer] * 2)
    async with following(collection, optional=True) as follower:
        await follower.informer.wait_synced(10)
        assert [entry["log_level"] for entry in follower.logged.entries][:5] == [
            "info",
            "debug",
            "warning",
            "debug",
            "debug",
        ]


async def test_an_event_that_comes_again_is_not_told_again(
    things: ServedThings, server: FaultyServer, collection: Collection[Thing]
) -> None:
    again = event("ADDED", things.objects["a"])
    unknown = event("DELETED", thing("unknown", version=12))
    server.script(things.answer, stream(again + again + unknown + unknown, then=finish))
    async with following(collection) as follower:
        await server.received(3)
        assert follower.told() == ["+a"]
