"""Whatever happens to the objects and to the connection, the informer's copy becomes the server's state.

Each example is a history of changes, with watches cut and history compacted at any point of it, served over real
HTTP to a new informer. What its listener is told is checked at every step (see `following`), and at the
end the replay of all notifications, the cache and the index must be the server's state.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coil.kube.access import Access
from coil.kube.client import KubeClient
from tests.coil.kube.faulty_server import GUARD_SECONDS, Answer, Exchange, FaultyServer, finish, reset
from tests.coil.kube.served_things import ServedThings
from tests.coil.kube.thing import THINGS, event, thing
from tests.coil.reconcile.following import Follower, following


async def _half_a_line(exchange: Exchange) -> None:
    await exchange.send(event("ADDED", thing("never", version=99))[:30])
    await exchange.end()


async def _nonsense(exchange: Exchange) -> None:
    await exchange.send(b"<html>\n")
    await exchange.end()


_CUTS: dict[str, Answer] = {"reset": reset, "end": finish, "half": _half_a_line, "html": _nonsense}
_NAMES = st.sampled_from(["a", "b", "c", "d"])
_STEPS = st.one_of(
    st.tuples(st.just("put"), _NAMES),
    st.tuples(st.just("delete"), _NAMES),
    st.tuples(st.just("replace"), _NAMES),
    st.tuples(st.sampled_from(["cut", "cut-list"]), st.sampled_from(sorted(_CUTS))),
    st.tuples(st.sampled_from(["compact", "bookmark", "settle", "turn"]), st.just("")),
)


@dataclass(frozen=True, slots=True)
class World:
    """One loop, server and client for all examples: only the objects and the informer are new each time."""

    runner: asyncio.Runner
    server: FaultyServer
    client: KubeClient


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory: Path = tmp_path_factory.mktemp("world")
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        server = runner.run(stack.enter_async_context(FaultyServer()))
        access = Access.kubeconfig(server.write_kubeconfig(directory))
        client = runner.run(stack.enter_async_context(KubeClient(access)))
        yield World(runner, server, client)
        runner.run(stack.aclose())


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    steps=st.lists(_STEPS, max_size=25),
    page_size=st.sampled_from([1, 2, 500]),
    expire_by_event=st.booleans(),
    streams_lists=st.booleans(),
)
def test_the_copy_becomes_the_state(
    world: World, steps: list[tuple[str, str]], page_size: int, expire_by_event: bool, streams_lists: bool
) -> None:
    things = ServedThings(page_size=page_size, expire_by_event=expire_by_event, streams_lists=streams_lists)
    world.server.otherwise = things.answer
    world.runner.run(_live_through(world.client, things, steps))


async def _live_through(client: KubeClient, things: ServedThings, steps: list[tuple[str, str]]) -> None:
    by_size = {"size": lambda item: [str(item.size)]}
    async with following(client.collection(THINGS), indexers=by_size) as follower:
        for number, (step, detail) in enumerate(steps):
            match step:
                case "put":
                    things.put(detail, size=number)
                case "delete":
                    things.delete(detail)
                case "replace":
                    things.replace(detail)
                case "cut":
                    things.cut(_CUTS[detail])
                case "cut-list":
                    things.cut_list(_CUTS[detail], after=number % 4)
                case "compact":
                    things.compact()
                case "bookmark":
                    things.bookmark()
                case "settle":
                    await follower.until(lambda: _is_copy(follower, things))
                case _:
                    await asyncio.sleep(0)
        things.put("last", size=1000)
        await follower.until(lambda: _is_copy(follower, things))
        # A streamed list that was cut after its last object is read again.
        await follower.informer.wait_synced(GUARD_SECONDS)
        assert _is_copy(follower, things)
        for item in follower.informer.items():
            assert item in follower.informer.by_index("size", str(item.size))
        indexed = [item for size in range(1001) for item in follower.informer.by_index("size", str(size))]
        assert len(indexed) == len(things.objects)


def _is_copy(follower: Follower, things: ServedThings) -> bool:
    told = {key: (item.metadata.uid, item.metadata.resource_version) for key, item in follower.replayed.items()}
    kept = {f"here/{item.metadata.name}": item for item in follower.informer.items()}
    return told == things.state() and kept == follower.replayed
