"""The informer against a server that does everything wrong, over real connections and in virtual time."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coil.kube.access import Access
from coil.kube.client import KubeClient
from coil.kube.collection import Collection
from coil.kube.transport import Timeouts
from coil.reconcile.watch_pace import FRUITLESS_WATCHES
from tests.coil.kube.faulty_server import (
    Answer,
    FaultyServer,
    fail,
    finish,
    hold,
    page,
    reset,
    status_document,
    stream,
)
from tests.coil.kube.served_things import ServedThings
from tests.coil.kube.thing import THINGS, Thing, event, thing
from tests.coil.reconcile.following import Follower, following

_BACKOFF = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


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
async def client(server: FaultyServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    access = Access.kubeconfig(server.write_kubeconfig(tmp_path, user={"tokenFile": "token"}))
    (tmp_path / "token").write_text("first")
    # A silent watch is found out in 50 ms; the silence itself is the event that these tests wait for.
    async with KubeClient(access, timeouts=Timeouts(silence=0.05)) as connected:
        yield connected


@pytest.fixture
def collection(client: KubeClient) -> Collection[Thing]:
    return client.collection(THINGS)


def _places(server: FaultyServer) -> list[str]:
    """In order: "list", or the resource version from which a watch was asked for."""
    return [
        request.query["resourceVersion"] if request.is_watch else "list"
        for request in server.requests
        if "continue" not in request.query
    ]


def _agrees(follower: Follower, things: ServedThings) -> bool:
    seen = {key: (item.metadata.uid, item.metadata.resource_version) for key, item in follower.replayed.items()}
    return seen == things.state()


_CUTS: dict[str, Answer] = {
    "reset": reset,
    "ended": finish,
    "silent": hold,
    "truncated": stream(event("ADDED", thing("never", version=99))[:50], then=finish),
    "malformed": stream(b'{"type":}\n', then=finish),
}


async def _within(exchange_answer: Answer, things: ServedThings) -> None:
    things.cut(exchange_answer)


@pytest.mark.parametrize("cut", ["reset", "ended", "silent", "half a line", "malformed", "html"])
async def test_a_broken_watch_is_resumed(
    cut: str, things: ServedThings, server: FaultyServer, collection: Collection[Thing]
) -> None:
    async def half_a_line(exchange: object) -> None: ...

    pieces = {"half a line": event("ADDED", thing("never", version=99))[:50], "malformed": b'{"type":}\n'}
    pieces["html"] = b"<html>\n"
    ends: dict[str, Answer] = {"reset": reset, "silent": hold}

    async def misbehave(exchange: object) -> None:
        pass

    del half_a_line, misbehave, pieces, ends, cut
    raise NotImplementedError
