"""Each verb against a scripted server: what is sent, what is understood, and that every wait ends."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coil.crd.builtin import NAMESPACES
from coil.crd.meta import ObjectMeta
from coil.kube.access import Access
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    GoneError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from coil.kube.transport import CALL_CONNECTIONS, Timeouts
from tests.coil.kube.faulty_server import FaultyServer, fail, hold, page, reply, reset, stream
from tests.coil.kube.thing import COLLECTION, THINGS, Thing, thing, thing_list

HERE = "/apis/example.com/v1/namespaces/here/things"


async def test_get(server: FaultyServer, client: KubeClient) -> None:
    server.script(reply(thing("a", version=3, size=7)))
    found = await client.get(THINGS, "a", namespace="here")
    expected = ObjectMeta(name="a", namespace="here", uid="uid-a", resource_version="3")
    assert found == Thing(metadata=expected, size=7)
    [request] = server.requests
    assert (request.method, request.path, request.query) == ("GET", f"{HERE}/a", {})
    assert request.headers["authorization"] == "Bearer first"


async def test_create_fills_in_version_and_kind(server: FaultyServer, client: KubeClient) -> None:
    server.script(reply(thing("a", version=1), status=201), reply(thing("b", version=2), status=201))
    await client.create(THINGS, Thing(metadata=ObjectMeta(name="a"), size=1), namespace="here")
    await client.create(THINGS, {"metadata": {"generateName": "b-"}, "size": 2}, namespace="here")
    first, second = server.requests
    assert (first.method, first.path) == ("POST", HERE)
    assert first.document == {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "a"},
        "size": 1,
    }
    assert second.document["kind"] == "Thing"
    assert second.document["metadata"] == {"generateName": "b-"}


async def test_replace_a_subresource(server: FaultyServer, client: KubeClient) -> None:
    server.script(reply(thing("a", version=2)))
    await client.replace(THINGS, thing("a", version=1), name="a", namespace="here", subresource="status")
    [request] = server.requests
    assert (request.method, request.path) == ("PUT", f"{HERE}/a/status")
    assert request.document["metadata"]["resourceVersion"] == "1"


@pytest.mark.parametrize(
    ("patch", "content_type"),
    [
        ({"size": 5}, "application/merge-patch+json"),
        ([{"op": "test", "path": "/size", "value": 4}], "application/json-patch+json"),
    ],
)
async def test_the_form_of_a_patch_decides_its_type(
    server: FaultyServer, client: KubeClient, patch: Any, content_type: str
) -> None:
    server.script(reply(thing("a", version=2)))
    await client.patch(THINGS, "a", patch, namespace="here")
    [request] = server.requests
    assert (request.method, request.headers["content-type"]) == ("PATCH", content_type)
    assert request.document == patch


async def test_delete_with_preconditions(server: FaultyServer, client: KubeClient) -> None:
    server.script(reply(thing("a", version=2)), reply({"kind": "Status", "status": "Success"}))
    await client.delete(THINGS, "a", namespace="here", uid="u-1", resource_version="9")
    await client.delete(THINGS, "a", namespace="here")
    guarded, plain = server.requests
    assert (guarded.method, guarded.path) == ("DELETE", f"{HERE}/a")
    assert guarded.document["preconditions"] == {"uid": "u-1", "resourceVersion": "9"}
    assert "preconditions" not in plain.document


async def test_list_follows_the_pages(server: FaultyServer, client: KubeClient) -> None:
    server.script(
        reply(thing_list(thing("a", version=1), version=9, more="next/=")),
        reply(thing_list(thing("b", version=2), version=9)),
    )
    found = await client.list(THINGS, labels="x=y,z", fields="metadata.name=a")
    assert [item.metadata.name for item in found] == ["a", "b"]
    first, second = server.requests
    assert first.path == COLLECTION
    assert first.query == {"limit": "500", "labelSelector": "x=y,z", "fieldSelector": "metadata.name=a"}
    assert second.query == {**first.query, "continue": "next/="}


async def test_a_cached_list_asks_for_any_version_once(server: FaultyServer, client: KubeClient) -> None:
    server.script(
        reply(thing_list(thing("a", version=1), version=9, more="t")),
        reply(thing_list(thing("b", version=2), version=9)),
    )
    collection = client.collection(THINGS, freshness=Freshness.CACHED)
    page = await collection.list_page(limit=5, continue_token="")
    await collection.list_page(limit=5, continue_token=page.continue_token)
    assert [request.query for request in server.requests] == [
        {"limit": "5", "resourceVersion": "0"},
        {"limit": "5", "continue": "t"},
    ]


async def test_a_list_that_expires_is_begun_again(server: FaultyServer, client: KubeClient) -> None:
    first = reply(thing_list(thing("old", version=1), version=5, more="t"))
    server.script(first, fail(410, reason="Expired"), reply({**thing_list(version=9), "items": None}))
    assert await client.list(THINGS) == []
    server.script(*[first, fail(410, reason="Expired")] * 3)
    with pytest.raises(GoneError):
        await client.list(THINGS)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../secrets/x", "%2e%2e"])
async def test_a_name_never_leaves_its_place_in_the_path(server: FaultyServer, client: KubeClient, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        await client.delete(THINGS, name, namespace="here")
    if name:
        with pytest.raises(ValueError, match="not a name"):
            await client.get(THINGS, "a", namespace=name)
    assert server.requests == []


async def test_an_odd_name_is_quoted(server: FaultyServer, client: KubeClient) -> None:
    server.script(reply({"metadata": {"name": "system:x?y#z"}}))
    await client.get(NAMESPACES, "system:x?y#z")
    assert server.requests[0].path == "/api/v1/namespaces/system:x%3Fy%23z"
    assert server.requests[0].query == {}


async def test_the_scope_must_fit_the_kind(client: KubeClient) -> None:
    with pytest.raises(ValueError, match="Thing is namespaced"):
        await client.get(THINGS, "a")
    with pytest.raises(ValueError, match="Namespace has no namespaces"):
        await client.get(NAMESPACES, "a", namespace="here")


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (404, "NotFound", NotFoundError),
        (409, "AlreadyExists", AlreadyExistsError),
        (409, "Conflict", ConflictError),
        (422, "Invalid", InvalidError),
    ],
)
async def test_refusals(server: FaultyServer, client: KubeClient, code: int, reason: str, kind: type[ApiError]) -> None:
    server.script(fail(code, reason=reason, message="spec.size: too big"))
    with pytest.raises(kind, match=r"spec\.size: too big"):
        await client.create(THINGS, {"size": 1}, namespace="here")


async def test_too_many_requests_tells_how_long_to_wait(server: FaultyServer, client: KubeClient) -> None:
    server.script(fail(429, reason="TooManyRequests", Retry_After="12"))
    with pytest.raises(UnavailableError) as caught:
        await client.get(THINGS, "a", namespace="here")
    assert caught.value.retry_after == 12.0


async def test_a_missing_path_is_not_a_missing_object(server: FaultyServer, client: KubeClient) -> None:
    server.script(page(404, b"404 page not found\n"))
    with pytest.raises(UnavailableError, match="404 page not found"):
        await client.get(THINGS, "a", namespace="here")


@pytest.mark.parametrize(
    "answer",
    [
        page(502),
        page(200),
        page(200, b""),
        reply({"metadata": {"name": "a"}}),  # without the field that must be there
        reply({"metadata": {"name": "a"}, "size": "big"}),
        reset,
        stream(b'{"metadata"', then=reset),
    ],
    ids=["html 502", "html 200", "empty 200", "field missing", "wrong type", "reset", "cut off"],
)
async def test_unreadable_answers(server: FaultyServer, client: KubeClient, answer: Any) -> None:
    server.script(answer, answer)  # the library repeats a GET once whose connection was cut before any answer
    with pytest.raises(UnavailableError, match=r"^GET /apis/[a-z./0-9]+/things/a: "):
        await client.get(THINGS, "a", namespace="here")


async def test_a_list_without_a_resource_version_is_unreadable(server: FaultyServer, client: KubeClient) -> None:
    for metadata in ({}, {"resourceVersion": ""}):
        server.script(reply({"metadata": metadata, "items": []}))
        with pytest.raises(UnavailableError, match="unreadable list"):
            await client.list(THINGS)


async def test_no_server(client: KubeClient, server: FaultyServer) -> None:
    await server.stop()
    with pytest.raises(UnavailableError) as caught:
        await client.get(THINGS, "a", namespace="here")
    assert caught.value.status == 0


async def test_silence_ends_a_call(server: FaultyServer, tmp_path: Path) -> None:
    server.script(hold, stream(b"{", then=hold))
    access = Access.kubeconfig(server.write_kubeconfig(tmp_path))
    async with KubeClient(access, timeouts=Timeouts(total=0.05)) as client:
        for _ in range(2):
            with pytest.raises(UnavailableError, match="no answer in time"):
                await client.get(THINGS, "a", namespace="here")


async def test_silence_ends_the_opening_of_a_watch(server: FaultyServer, tmp_path: Path) -> None:
    server.script(hold)
    access = Access.kubeconfig(server.write_kubeconfig(tmp_path))
    async with KubeClient(access, timeouts=Timeouts(total=0.05)) as client:
        with pytest.raises(UnavailableError, match="no answer in time"):
            async with client.collection(THINGS).watch(resource_version="1"):
                pytest.fail("there was no answer")


async def test_watches_do_not_use_up_the_connections_of_calls(server: FaultyServer, client: KubeClient) -> None:
    server.otherwise = stream(b"", then=hold)
    opened: list[asyncio.Task[None]] = []
    collection = client.collection(THINGS)
    closing = asyncio.Event()

    async def keep_watching() -> None:
        async with collection.watch(resource_version="1"):
            await closing.wait()

    watches = CALL_CONNECTIONS + 5
    async with asyncio.TaskGroup() as group:
        opened.extend(group.create_task(keep_watching()) for _ in range(watches))
        await server.received(watches)
        server.script(reply(thing("a", version=1)))
        await client.get(THINGS, "a", namespace="here")
        closing.set()


async def test_the_wait_for_a_free_connection_is_bounded(server: FaultyServer, client: KubeClient) -> None:
    server.otherwise = hold
    busy = [asyncio.create_task(client.get(THINGS, "a", namespace="here")) for _ in range(CALL_CONNECTIONS)]
    await server.received(CALL_CONNECTIONS)
    # Only now, so that a slow machine has its time to connect.
    client._transport.timeouts = Timeouts(connect=0.05)
    with pytest.raises(UnavailableError, match="Timeout"):
        await client.get(THINGS, "a", namespace="here")
    assert len(server.requests) == CALL_CONNECTIONS
    assert not any(task.done() for task in busy)
    for task in busy:
        task.cancel()
    await asyncio.wait(busy)


async def test_a_cancelled_call_frees_its_connection(server: FaultyServer, client: KubeClient) -> None:
    server.otherwise = hold
    for number in range(1, CALL_CONNECTIONS + 2):
        call = asyncio.create_task(client.get(THINGS, "a", namespace="here"))
        await server.received(number)
        call.cancel()
        await asyncio.wait([call])


async def test_a_client_is_not_used_outside_its_context(server: FaultyServer, tmp_path: Path) -> None:
    client = KubeClient.connect(server.write_kubeconfig(tmp_path))
    with pytest.raises(RuntimeError, match="outside its context"):
        await client.get(THINGS, "a", namespace="here")
