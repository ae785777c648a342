"""Lists that come as the beginning of a watch (KEP-3157), and what is done where they do not."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coil.kube.access import Access
from coil.kube.client import KubeClient
from coil.kube.collection import Collection, Freshness
from coil.reconcile import informer
from tests.coil.kube.faulty_server import Answer, Exchange, FaultyServer, fail, finish, hold, reset
from tests.coil.kube.served_things import ServedThings
from tests.coil.kube.thing import THINGS, Thing, bookmark, event, thing
from tests.coil.reconcile.following import following


@pytest.fixture
def things() -> ServedThings:
    served = ServedThings(streams_lists=True)
    for name in "abc":
        served.put(name)
    return served


@pytest.fixture
async def server(things: ServedThings) -> AsyncIterator[FaultyServer]:
    async with FaultyServer(otherwise=things.answer) as running:
        yield running


@pytest.fixture
async def client(server: FaultyServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(Access.kubeconfig(server.write_kubeconfig(tmp_path))) as connected:
        yield connected


@pytest.fixture
def collection(client: KubeClient) -> Collection[Thing]:
    return client.collection(THINGS)


def asked(server: FaultyServer) -> list[str]:
    """What each request was, in order."""
    return [
        ("stream" if request.query.get("sendInitialEvents") == "true" else "watch") if request.is_watch else "pages"
        for request in server.requests
    ]


async def test_one_request_lists_and_watches(
    collection: Collection[Thing], things: ServedThings, server: FaultyServer
) -> None:
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert follower.told() == ["+a", "+b", "+c"]
        things.put("b", size=7)
        await follower.until(lambda: len(follower.changes) == 4)
        assert follower.told()[3:] == ["~b7"]
        assert asked(server) == ["stream"]
        assert follower.metric("informer_lists_total") == 1
        [listed] = [entry for entry in follower.logged.entries if entry["event"] == "listed"]
        assert (listed["objects"], listed["streamed"]) == (3, True)


@pytest.mark.parametrize(
    ("freshness", "version"), [(Freshness.LATEST, None), (Freshness.CACHED, "0")], ids=["latest", "cached"]
)
async def test_it_is_as_fresh_as_a_list_in_pages(
    client: KubeClient, server: FaultyServer, freshness: Freshness, version: str | None
) -> None:
    async with following(client.collection(THINGS, freshness=freshness)) as follower:
        await follower.informer.wait_synced(10)
    assert server.requests[0].query.get("resourceVersion") == version


async def test_the_watch_after_it_resumes_from_its_end(
    collection: Collection[Thing], things: ServedThings, server: FaultyServer
) -> None:
    things.version += 5
    things.cut(finish)
    async with following(collection):
        _, resumed = await server.received(2)
    assert resumed.query["resourceVersion"] == str(things.version)
    assert asked(server) == ["stream", "watch"]


async def test_what_has_gone_in_the_meantime_is_found_out(
    collection: Collection[Thing], things: ServedThings, server: FaultyServer
) -> None:
    things.cut(reset)
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        things.delete("a")
        things.compact()
        await follower.until(lambda: "-a" in follower.told())
    assert asked(server)[0] == asked(server)[-1] == "stream"
    assert follower.told() == ["+a", "+b", "+c", "-a"]


async def test_what_is_deleted_while_it_is_listed_is_not_kept(
    collection: Collection[Thing], server: FaultyServer
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.begin()
        for line in (
            event("ADDED", thing("a", version=1)),
            event("ADDED", thing("b", version=2)),
            event("DELETED", thing("a", version=3)),
            bookmark(3, ends_list=True),
            event("ADDED", thing("late", version=4)),
        ):
            await exchange.send(line)
        await exchange.hold()

    server.script(answer)
    async with following(collection) as follower:
        await follower.until(lambda: "+late" in follower.told())
        assert follower.told() == ["+a", "+b", "-a", "+late"]
        assert {item.metadata.name for item in follower.informer.items()} == {"b", "late"}


@pytest.mark.parametrize("status", [422])
async def test_a_server_that_cannot_is_asked_once(
    collection: Collection[Thing], things: ServedThings, server: FaultyServer, status: int
) -> None:
    server.script(fail(status, reason="Invalid", message="resourceVersionMatch is forbidden for watch"))
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert follower.pauses == []
        things.compact()
        things.cut(fail(410, reason="Expired"))
        things.put("d")
        await follower.until(lambda: "+d" in follower.told())
    assert asked(server)[:3] == ["stream", "pages", "watch"]
    assert "stream" not in asked(server)[1:]


async def _watch_alone(exchange: Exchange) -> None:
    """A server or a proxy that takes the parameters for nothing."""
    await exchange.begin()
    await exchange.send(event("ADDED", thing("a", version=11, uid="uid-1")))
    await exchange.send(bookmark(11))
    await exchange.hold()


async def test_a_bookmark_without_the_end_before_it_means_that_the_server_cannot(
    collection: Collection[Thing], things: ServedThings, server: FaultyServer
) -> None:
    server.script(_watch_alone)
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert follower.pauses == [0.5]
        assert len(follower.informer.items()) == 3
        await server.received(3)
    assert asked(server) == ["stream", "pages", "watch"]


@pytest.mark.parametrize("how", [reset, finish], ids=["reset", "end"])
async def test_after_one_that_broke_off_pages_are_read(
    collection: Collection[Thing], things: ServedThings, server: FaultyServer, how: Answer
) -> None:
    things.cut_list(how, after=2)
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert follower.told() == ["+a", "+b", "+c"]
        assert follower.pauses == [0.5]
        await server.received(3)
        assert asked(server) == ["stream", "pages", "watch"]
        assert follower.metric("informer_failures_total", error=_error_of(how)) == 1


def _error_of(how: Answer) -> str:
    return "InterruptedListError" if how is finish else "UnavailableError"


async def test_one_that_falls_silent_is_given_up(
    collection: Collection[Thing], things: ServedThings, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "LIST_SILENCE", 0.2)
    things.cut_list(hold, after=1)
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert "nothing of the list has come" in str(follower.logged.entries)
        await server.received(3)
    assert asked(server) == ["stream", "pages", "watch"]


async def test_streams_that_always_break_slow_down(
    collection: Collection[Thing], things: ServedThings, server: FaultyServer
) -> None:
    """However much each of them brought."""
    broken: Answer = fail(503)
    for _ in range(4):
        things.cut_list(finish, after=3)
    server.script(things.answer, broken, things.answer, broken, things.answer, broken)
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert follower.pauses[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
