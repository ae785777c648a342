"""The reader of the API server, against one that misbehaves: what is asked, and what is asked again."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coil.kube.access import Access
from coil.kube.errors import ForbiddenError, NotFoundError, UnauthorizedError, UnavailableError
from kubectl_coil import cluster as module
from kubectl_coil.cluster import ATTEMPTS, PAGE, Cluster
from tests.coil.kube.faulty_server import Answer, FaultyServer, fail, hold, page, reply, reset
from tests.coil.kube.thing import COLLECTION, THINGS, thing, thing_list

TIMEOUT = 0.5


@pytest.fixture
async def server() -> AsyncIterator[FaultyServer]:
    async with FaultyServer() as running:
        yield running


@pytest.fixture
async def cluster(server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.001)
    access = Access.kubeconfig(server.write_kubeconfig(tmp_path))
    await access.read()
    async with Cluster.connect(access.config, timeout=TIMEOUT) as connected:
        yield connected


async def test_an_object_is_read_as_who_the_kubeconfig_says(server: FaultyServer, cluster: Cluster) -> None:
    server.script(reply(thing("a", version=3, size=7)))
    assert (await cluster.get(THINGS, "a", namespace="here")).size == 7
    [request] = server.requests
    assert request.path == "/apis/example.com/v1/namespaces/here/things/a"
    assert request.headers["authorization"] == "Bearer first"


async def test_a_list_comes_in_pages_with_both_selectors(server: FaultyServer, cluster: Cluster) -> None:
    server.script(
        reply(thing_list(thing("a", version=1), version=9, more="token+/=")),
        reply(thing_list(thing("b", version=2), version=9)),
    )
    found = await cluster.list(THINGS, labels="a=b,c", fields="metadata.name=x")
    assert [each.metadata.name for each in found] == ["a", "b"]
    first, second = server.requests
    assert first.path == COLLECTION
    assert first.query == {"labelSelector": "a=b,c", "fieldSelector": "metadata.name=x", "limit": str(PAGE)}
    assert second.query == {**first.query, "continue": "token+/="}


async def test_pages_that_have_expired_are_begun_again(server: FaultyServer, cluster: Cluster) -> None:
    server.script(
        reply(thing_list(thing("a", version=1), version=9, more="token")),
        fail(410),
        reply(thing_list(thing("b", version=2), version=10)),
    )
    assert [each.metadata.name for each in await cluster.list(THINGS)] == ["b"]


async def test_an_empty_list_of_go_is_empty(server: FaultyServer, cluster: Cluster) -> None:
    server.script(reply({**thing_list(version=1), "items": None}))
    assert await cluster.list(THINGS) == []


@pytest.mark.parametrize("code", [429, 503])
async def test_a_server_that_has_no_time_is_asked_again(server: FaultyServer, cluster: Cluster, code: int) -> None:
    server.script(fail(code, **{"Retry-After": "1"}), page(code), reply(thing_list(version=1)))
    assert await cluster.list(THINGS) == []
    assert len(server.requests) == 3


async def test_but_not_for_ever(server: FaultyServer, cluster: Cluster) -> None:
    server.script(*[fail(429, message="slow down")] * ATTEMPTS)
    with pytest.raises(UnavailableError, match="slow down"):
        await cluster.list(THINGS)
    assert len(server.requests) == ATTEMPTS


@pytest.mark.parametrize(("code", "error"), [(401, UnauthorizedError), (403, ForbiddenError), (404, NotFoundError)])
async def test_a_refusal_is_told_at_once(
    server: FaultyServer, cluster: Cluster, code: int, error: type[Exception]
) -> None:
    server.script(fail(code, message="that is why"))
    with pytest.raises(error, match="that is why"):
        await cluster.list(THINGS)
    assert len(server.requests) == 1


async def test_a_kind_that_is_not_served_is_asked_for_once(server: FaultyServer, cluster: Cluster) -> None:
    server.script(page(404, b"404 page not found"))
    with pytest.raises(UnavailableError) as raised:
        await cluster.list(THINGS)
    assert (raised.value.status, len(server.requests)) == (404, 1)


@pytest.mark.parametrize("answer", [hold, reset])
async def test_no_answer_is_told_within_the_time_limit(server: FaultyServer, cluster: Cluster, answer: Answer) -> None:
    server.script(answer, answer)  # aiohttp sends a GET once more on a new connection
    with pytest.raises(UnavailableError) as raised:
        await cluster.list(THINGS)
    assert raised.value.status == 0


async def test_what_is_no_list_is_told(server: FaultyServer, cluster: Cluster) -> None:
    server.script(page(200))
    with pytest.raises(UnavailableError, match="unreadable answer"):
        await cluster.list(THINGS)


async def test_time_is_the_servers(server: FaultyServer, cluster: Cluster) -> None:
    server.script(reply(thing_list(version=1), Date="Tue, 01 Jan 2030 12:00:00 GMT"))
    await cluster.list(THINGS)
    assert cluster.now().year == 2030
