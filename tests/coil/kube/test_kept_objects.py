"""A collection of which the reader wants only a part that no selector can name."""

import asyncio
import json

from coil.kube.client import KubeClient
from coil.kube.watch import WatchEvent
from tests.coil.kube.faulty_server import GUARD_SECONDS, Exchange, FaultyServer, finish, hold, reply, stream
from tests.coil.kube.thing import THINGS, Thing, bookmark, event, thing, thing_list
from tests.coil.reconcile.following import following, paged


def is_red(found: Thing) -> bool:
    return found.colour == "red"


def names(things: list[Thing]) -> list[str]:
    return [found.metadata.name for found in things]


async def test_a_list_holds_only_what_is_wanted(server: FaultyServer, client: KubeClient) -> None:
    things = [thing(f"{colour}-{n}", version=n, colour=colour) for n in range(3) for colour in ("blue", "red")]
    compact = json.dumps(thing_list(*things, version=9), separators=(",", ":")).encode()
    indented = json.dumps(thing_list(*things, version=9), indent=1).encode()
    for body in (compact, indented):
        server.script(reply(json.loads(body)))
        page = await client.collection(THINGS, keep=is_red).list_page(limit=500, continue_token="")
        assert names(page.items) == ["red-0", "red-1", "red-2"]
        assert page.resource_version == "9"


async def test_a_watch_tells_that_the_others_are_deleted(server: FaultyServer, client: KubeClient) -> None:
    server.script(
        stream(
            event("ADDED", thing("a", version=6, colour="red")) + event("ADDED", thing("b", version=7, colour="blue")),
            event("MODIFIED", thing("a", version=8, colour="blue")) + bookmark(9),
            event("MODIFIED", thing("a", version=10, colour="red")),
            event("DELETED", thing("a", version=11, colour="red")),
            then=finish,
        )
    )
    seen: list[WatchEvent[Thing]] = []
    async with client.collection(THINGS, keep=is_red).watch(resource_version="5") as batches:
        async for batch in batches:
            seen += batch
    assert [(type(told).__name__, told.object.metadata.resource_version) for told in seen] == [
        ("Added", "6"),
        ("Deleted", "7"),
        ("Deleted", "8"),
        ("Bookmark", "9"),
        ("Modified", "10"),
        ("Deleted", "11"),
    ]


async def test_an_informer_holds_what_is_wanted_and_resumes_after_all(server: FaultyServer, client: KubeClient) -> None:
    listed = thing_list(
        thing("a", version=1, colour="red"), thing("b", version=2, colour="blue"), thing("c", version=3), version=5
    )
    resumed = asyncio.Event()

    async def note(exchange: Exchange) -> None:
        resumed.set()
        await hold(exchange)

    server.script(
        reply(listed),
        stream(
            event("MODIFIED", thing("a", version=6, colour="blue")),
            event("MODIFIED", thing("b", version=7, colour="red")),
            # Another object of the same name, which is not wanted.
            event("ADDED", thing("b", version=8, uid="another", colour="blue")),
            event("MODIFIED", thing("c", version=9, size=2)),
            then=finish,
        ),
        stream(then=note),
    )
    async with following(paged(client.collection(THINGS, keep=is_red))) as follower:
        async with asyncio.timeout(GUARD_SECONDS):
            await resumed.wait()
    assert follower.told() == ["+a", "-a", "+b", "-b"]
    assert follower.informer.items() == []
    assert server.requests[2].query["resourceVersion"] == "9"
