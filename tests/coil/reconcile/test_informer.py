"""What an informer promises while nothing goes wrong, and what it tells whoever asks."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coil.kube.access import Access
from coil.kube.client import KubeClient
from coil.kube.collection import Collection
from coil.kube.errors import ForbiddenError
from tests.coil.kube.faulty_server import FaultyServer, fail, finish, hold
from tests.coil.kube.served_things import ServedThings
from tests.coil.kube.thing import THINGS, Thing
from tests.coil.reconcile.following import Follower, following, paged


@pytest.fixture
def things() -> ServedThings:
    return ServedThings()


@pytest.fixture
async def server(things: ServedThings) -> AsyncIterator[FaultyServer]:
    async with FaultyServer(otherwise=things.answer) as running:
        yield running


@pytest.fixture
async def collection(server: FaultyServer, tmp_path: Path) -> AsyncIterator[Collection[Thing]]:
    async with KubeClient(Access.kubeconfig(server.write_kubeconfig(tmp_path))) as client:
        yield paged(client.collection(THINGS))


def _seen(follower: Follower) -> dict[str, tuple[str, str]]:
    return {
        f"here/{item.metadata.name}": (item.metadata.uid, item.metadata.resource_version)
        for item in follower.informer.items()
    }


async def test_list_then_watch(things: ServedThings, collection: Collection[Thing]) -> None:
    things.put("a")
    things.put("b", size=2)
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert follower.told() == ["+a", "+b"]
        things.put("a", size=5)
        things.delete("b")
        things.put("c")
        await follower.until(lambda: len(follower.changes) == 5)
        assert follower.told()[2:] == ["~a5", "-b", "+c"]
        assert _seen(follower) == things.state()
        assert follower.pauses == []


async def test_the_watch_begins_where_the_list_was(
    things: ServedThings, collection: Collection[Thing], server: FaultyServer
) -> None:
    things.put("a")
    async with following(collection):
        listed, watched = await server.received(2)
    assert listed.query == {"limit": "500"}  # and no resource version: as new as can be
    assert watched.query["resourceVersion"] == str(things.version)


async def test_a_bookmark_moves_the_place(
    things: ServedThings, collection: Collection[Thing], server: FaultyServer
) -> None:
    things.put("a")
    async with following(collection) as follower:
        await server.received(2)
        things.version += 40
        things.bookmark()
        things.cut(finish)
        await server.received(3)
        assert server.requests[2].query["resourceVersion"] == str(things.version)
        assert follower.told() == ["+a"]


async def test_pages_are_put_together(
    collection: Collection[Thing], things: ServedThings, server: FaultyServer
) -> None:
    paged = ServedThings(page_size=3)
    server.otherwise = paged.answer
    for number in range(10):
        paged.put(f"n{number}")
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert _seen(follower) == paged.state()
        assert [request.query.get("continue") for request in server.requests[:4]] == [None, "20:3", "20:6", "20:9"]


async def test_indexes_follow(things: ServedThings, collection: Collection[Thing]) -> None:
    things.put("a", colour="red")
    things.put("b", colour="red")
    async with following(collection, indexers={"colour": lambda item: [item.colour]}) as follower:
        informer = follower.informer
        await informer.wait_synced(10)
        assert {item.metadata.name for item in informer.by_index("colour", "red")} == {"a", "b"}
        things.put("a", colour="blue")
        things.delete("b")
        await follower.until(lambda: len(follower.changes) == 4)
        assert informer.by_index("colour", "red") == []
        assert [item.metadata.name for item in informer.by_index("colour", "blue")] == ["a"]
        assert informer.by_index("colour", "green") == []
        with pytest.raises(KeyError):
            informer.by_index("size", "1")


async def test_a_late_listener_is_told_what_is_there(things: ServedThings, collection: Collection[Thing]) -> None:
    things.put("a")
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        late: list[tuple[Thing | None, Thing | None]] = []
        follower.informer.subscribe(lambda old, new: late.append((old, new)))
        assert late == [(None, follower.informer.get("here/a"))]
        things.delete("a")
        await follower.until(lambda: len(follower.changes) == 2)
        assert [new for _, new in late] == [late[0][1], None]


async def test_the_fault_of_a_listener_ends_run(things: ServedThings, collection: Collection[Thing]) -> None:
    follower = Follower(collection, indexers={})

    def object_to_b(_old: Thing | None, new: Thing | None) -> None:
        if new is not None and new.metadata.name == "b":
            raise LookupError("b is not welcome")

    follower.informer.subscribe(object_to_b)
    running = asyncio.create_task(follower.informer.run())
    await follower.informer.wait_synced(10)
    things.put("a")
    things.put("b")
    things.put("c")
    with pytest.raises(LookupError, match="b is not welcome"):
        await asyncio.wait_for(running, 60)
    assert follower.told() == ["+a", "+b"]


async def test_run_can_be_cancelled_and_run_again(things: ServedThings, collection: Collection[Thing]) -> None:
    things.put("a")
    follower = Follower(collection, indexers={})
    running = asyncio.create_task(follower.informer.run())
    await follower.informer.wait_synced(10)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    things.delete("a")
    things.put("b")
    again = asyncio.create_task(follower.informer.run())
    await follower.until(lambda: len(follower.changes) == 3)
    again.cancel()
    await asyncio.wait([again])
    assert follower.told() == ["+a", "-a", "+b"]
    assert things.lists == 1


async def test_what_readiness_is_told(
    things: ServedThings, collection: Collection[Thing], server: FaultyServer
) -> None:
    server.script(fail(403, reason="Forbidden", message="coild may not list things"), hold)
    async with following(collection) as follower:
        informer = follower.informer
        assert not informer.synced
        assert informer.contact_age == float("inf")
        await server.received(2)  # the refusal has been seen, and the second list waits for its answer
        assert isinstance(informer.last_error, ForbiddenError)
        with pytest.raises(TimeoutError, match=r"things not listed in 0 s: .*coild may not list things") as caught:
            await informer.wait_synced(0)
        assert isinstance(caught.value.__cause__, ForbiddenError)
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        assert follower.informer.synced
        assert follower.informer.contact_age == 0.0
        assert follower.informer.last_error is None
        follower.now += 7
        assert follower.informer.contact_age == 7.0


async def test_metrics(things: ServedThings, collection: Collection[Thing], server: FaultyServer) -> None:
    things.put("a")
    server.script(fail(503))
    async with following(collection) as follower:
        await follower.informer.wait_synced(10)
        things.put("b")
        things.put("b")
        things.bookmark()
        things.cut(finish)
        await server.received(4)
        assert follower.metric("informer_lists_total") == 1
        assert follower.metric("informer_watches_total") == 1
        assert follower.metric("informer_events_total") == 3
        assert follower.metric("informer_objects") == 2
        before, age = time.time(), follower.informer.contact_age
        assert before - age <= follower.metric("informer_last_contact_timestamp_seconds") <= time.time() - age
        assert follower.metric("informer_failures_total", error="UnavailableError") == 1
        assert follower.metric("informer_failures_total", error="EmptyWatchError") == 1


async def test_a_good_watch_is_followed_without_a_pause(
    things: ServedThings, collection: Collection[Thing], server: FaultyServer
) -> None:
    async with following(collection) as follower:
        for number in range(2, 6):
            await server.received(number)
            things.put("a", size=number)
            await follower.until(lambda: len(follower.changes) == number - 1)  # noqa: B023 - awaited at once
            follower.now += 300
            things.cut(finish)
        await server.received(6)
        assert follower.pauses == []
        assert things.lists == 1
