"""One watch: what it asks for, what it delivers before it fails, and how it fails."""

import asyncio
import os
import socket
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.meta import ObjectMeta, OwnerReference
from coil.kube.access import Access
from coil.kube.client import KubeClient
from coil.kube.errors import ApiError, ForbiddenError, GoneError, UnavailableError
from coil.kube.transport import Timeouts
from coil.kube.watch import (
    BATCH_BYTES,
    LIMIT,
    Added,
    Bookmark,
    Deleted,
    LineSplitter,
    LineTooLongError,
    MetadataInterner,
    Modified,
    WatchEvent,
)
from tests.coil.kube.faulty_server import (
    Answer,
    Exchange,
    FaultyServer,
    fail,
    finish,
    hold,
    page,
    reset,
    status_document,
    stream,
)
from tests.coil.kube.thing import COLLECTION, THINGS, Thing, bookmark, event, thing


async def _follow(client: KubeClient, seen: list[WatchEvent[Thing]], *, line_limit: int = 32 << 20) -> None:
    """Collect events until the watch ends, one way or the other."""
    async with client.collection(THINGS).watch(resource_version="5", line_limit=line_limit) as batches:
        async for batch in batches:
            assert batch, "a batch is never empty"
            seen += batch


def _summary(seen: list[WatchEvent[Thing]]) -> list[tuple[str, str]]:
    return [(type(event).__name__, event.object.metadata.resource_version) for event in seen]


async def test_events_in_order_and_typed(server: FaultyServer, client: KubeClient) -> None:
    server.script(
        stream(
            event("ADDED", thing("a", version=6)) + event("MODIFIED", thing("a", version=7, size=2)),
            bookmark(8),
            event("DELETED", thing("a", version=9)),
            then=finish,
        )
    )
    seen: list[WatchEvent[Thing]] = []
    await _follow(client, seen)
    assert _summary(seen) == [("Added", "6"), ("Modified", "7"), ("Bookmark", "8"), ("Deleted", "9")]
    assert isinstance(seen[0], Added)
    assert isinstance(seen[1], Modified)
    assert isinstance(seen[2], Bookmark)
    assert isinstance(seen[3], Deleted)
    assert seen[1].object.size == 2


async def test_what_is_asked_for(server: FaultyServer, client: KubeClient) -> None:
    server.script(stream(then=finish))
    collection = client.collection(THINGS, namespace="here", labels="a=b", fields="metadata.name=x")
    async with collection.watch(resource_version="77") as batches:
        assert [batch async for batch in batches] == []
    [request] = server.requests
    assert request.path == "/apis/example.com/v1/namespaces/here/things"
    assert request.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "270",  # 300 less a tenth, with the fixture's randomness
        "resourceVersion": "77",
        "labelSelector": "a=b",
        "fieldSelector": "metadata.name=x",
    }


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_lines_may_be_cut_anywhere(server: FaultyServer, client: KubeClient, size: int) -> None:
    data = b"".join(event("ADDED", thing(f"ü{number}", version=number)) for number in range(1, 6))
    server.script(stream(*(data[start : start + size] for start in range(0, len(data), size)), then=finish))
    seen: list[WatchEvent[Thing]] = []
    await _follow(client, seen)
    assert [version for _, version in _summary(seen)] == ["1", "2", "3", "4", "5"]


_GOOD = event("ADDED", thing("a", version=6))
_UNREADABLE = {
    "malformed": b'{"type": "ADDED", "object": {]}\n',
    "not utf-8": b'{"type": "ADDED", "object": {"metadata": {"name": "\xff"}, "size": 1}}\n',
    "unknown type": event("RENAMED", thing("b", version=7)),
    "field missing": event("ADDED", {"metadata": {"name": "b", "resourceVersion": "7"}}),
    "html": b"<html>\n<h1>Bad Gateway</h1>\n</html>\n",
    "null": b"null\n",
}


@pytest.mark.parametrize("line", _UNREADABLE.values(), ids=_UNREADABLE)
async def test_what_came_before_an_unreadable_line_is_delivered(
    server: FaultyServer, client: KubeClient, line: bytes
) -> None:
    server.script(stream(_GOOD + line + event("ADDED", thing("c", version=8)), then=finish))
    seen: list[WatchEvent[Thing]] = []
    with pytest.raises(UnavailableError, match="unreadable event"):
        await _follow(client, seen)
    assert _summary(seen) == [("Added", "6")]


_BREAKS: dict[str, Answer] = {
    "ends within a line": stream(_GOOD + _GOOD[:40], then=finish),
    "reset within a line": stream(_GOOD + _GOOD[:40], then=reset),
    "reset between lines": stream(_GOOD, then=reset),
}


@pytest.mark.parametrize("answer", _BREAKS.values(), ids=_BREAKS)
async def test_half_a_line_is_never_an_event(server: FaultyServer, client: KubeClient, answer: Answer) -> None:
    server.script(answer)
    seen: list[WatchEvent[Thing]] = []
    with pytest.raises(UnavailableError):
        await _follow(client, seen)
    # A reset may overtake the data before it (RFC 9293, 3.10.7.4): then nothing was delivered, never half.
    assert _summary(seen) in ([("Added", "6")], [])


async def test_silence_ends_a_watch(server: FaultyServer, tmp_path: Path) -> None:
    server.script(stream(_GOOD, then=hold))
    access = Access.kubeconfig(server.write_kubeconfig(tmp_path))
    seen: list[WatchEvent[Thing]] = []
    async with KubeClient(access, timeouts=Timeouts(silence=0.5)) as client:
        with pytest.raises(UnavailableError, match=f"watch {COLLECTION}: .*Timeout"):
            await _follow(client, seen)
    assert _summary(seen) == [("Added", "6")]


async def test_a_line_beyond_the_readers_buffer_is_an_event(server: FaultyServer, client: KubeClient) -> None:
    big = thing("big", version=7)
    big["filling"] = "x" * (5 << 20)
    server.script(stream(_GOOD, event("MODIFIED", big), event("ADDED", thing("z", version=8)), then=finish))
    seen: list[WatchEvent[Thing]] = []
    await _follow(client, seen)
    assert _summary(seen) == [("Added", "6"), ("Modified", "7"), ("Added", "8")]


async def test_a_line_beyond_the_bound_costs_the_place(server: FaultyServer, client: KubeClient) -> None:
    server.script(stream(_GOOD, b'{"type": "ADDED", "object": "' + b"x" * 4000, then=hold))
    seen: list[WatchEvent[Thing]] = []
    with pytest.raises(GoneError, match="more than 2000 bytes"):
        await _follow(client, seen, line_limit=2000)
    assert _summary(seen) in ([("Added", "6")], [])  # both pieces may have come at once


async def test_an_expired_place_by_status(server: FaultyServer, client: KubeClient) -> None:
    server.script(fail(410, reason="Expired", message="too old resource version"))
    with pytest.raises(GoneError, match="too old"):
        await _follow(client, [])


async def test_an_expired_place_by_event(server: FaultyServer, client: KubeClient) -> None:
    error = event("ERROR", status_document(410, reason="Expired", message="too old resource version"))
    server.script(stream(_GOOD + error, then=finish))
    seen: list[WatchEvent[Thing]] = []
    with pytest.raises(GoneError, match="too old"):
        await _follow(client, seen)
    assert _summary(seen) == [("Added", "6")]


@pytest.mark.parametrize(
    ("code", "kind"), [(500, UnavailableError), (504, UnavailableError), (403, ForbiddenError), (0, ApiError)]
)
async def test_other_error_events(server: FaultyServer, client: KubeClient, code: int, kind: type[ApiError]) -> None:
    server.script(stream(event("ERROR", status_document(code, message="etcd has no leader")), then=finish))
    with pytest.raises(kind, match="etcd has no leader"):
        await _follow(client, [])


@pytest.mark.parametrize(
    "answer", [page(200), page(502), fail(503), reset], ids=["html 200", "html 502", "503", "reset"]
)
async def test_a_watch_that_is_none(server: FaultyServer, client: KubeClient, answer: Answer) -> None:
    server.script(answer, answer)  # a reset before any answer is repeated once by the library
    with pytest.raises(UnavailableError):
        await _follow(client, [])


async def test_a_burst_comes_in_batches_with_turns_for_others(server: FaultyServer, client: KubeClient) -> None:
    filling = "x" * 3000
    lines = [event("ADDED", thing(f"n{number}", version=number, colour=filling)) for number in range(1, 1001)]
    server.script(stream(b"".join(lines), then=finish))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    versions: list[str] = []
    async with client.collection(THINGS).watch(resource_version="0") as batches:
        before = -1  # the first batch may be there already
        async for batch in batches:
            assert len(batch) <= BATCH_BYTES // len(filling) + 1
            assert turns > before, "a whole batch went by without a turn for another task"
            before = turns
            versions += [item.object.metadata.resource_version for item in batch]
    other.cancel()
    await asyncio.wait([other])
    assert versions == [str(number) for number in range(1, 1001)]


async def test_leaving_a_watch_closes_its_connection(server: FaultyServer, client: KubeClient) -> None:
    left = asyncio.Event()

    async def until_left(exchange: Exchange) -> None:
        await hold(exchange)
        left.set()

    server.script(stream(_GOOD, then=until_left))
    async with client.collection(THINGS).watch(resource_version="5") as batches:
        async for batch in batches:
            assert len(batch) == 1
            break
    async with asyncio.timeout(60):
        await left.wait()


async def test_the_kernel_probes_an_idle_watch(server: FaultyServer, client: KubeClient) -> None:
    server.script(stream(_GOOD, then=hold))
    async with client.collection(THINGS).watch(resource_version="5"):
        with _own_socket_to(server.port) as connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            seconds = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + (
                connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
                * connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
            )
            assert seconds <= 30


def _own_socket_to(port: int) -> socket.socket:
    """A duplicate of this process's socket that is connected to `port`: the kernel's view of it."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            candidate = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue  # no socket, or closed meanwhile (the directory's own descriptor)
        try:
            if candidate.getpeername()[1:2] == (port,):
                return candidate
        except OSError:
            pass  # not connected
        candidate.close()
    raise LookupError(f"no connection to port {port}")


def _feed(splitter: LineSplitter, data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in pairwise(places)]
    return [line for piece in pieces for line in splitter.feed(piece)]


_LINES = st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=12)


@given(lines=_LINES, rest=st.binary(max_size=9).map(lambda r: r.replace(b"\n", b"")), cuts=st.lists(st.integers(0)))
def test_lines_do_not_depend_on_how_the_stream_is_cut(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter(limit=20)
    data = b"".join(line + b"\n" for line in lines) + rest
    assert _feed(splitter, data, cuts) == [line for line in lines if line]
    assert splitter.held == len(rest)


@given(length=st.integers(0, 40), cuts=st.lists(st.integers(0)), ended=st.booleans())
def test_a_line_may_have_the_limit_and_not_a_byte_more(length: int, cuts: list[int], ended: bool) -> None:
    data = b"x" * length + (b"\n" if ended else b"")
    splitter = LineSplitter(limit=20)
    if length > 20:
        with pytest.raises(LineTooLongError):
            _feed(splitter, data, cuts)
    else:
        _feed(splitter, data, cuts)


def decoded(name: str, *, owner: str = "pool") -> ObjectMeta:
    owners = (OwnerReference(api_version="v1", kind="Pool", name=owner, uid=f"uid-{owner}"),)
    metadata = ObjectMeta(name=name, finalizers=("coil",), owner_references=owners)
    return msgspec.json.decode(msgspec.json.encode(metadata), type=ObjectMeta)


def test_equal_owners_and_finalizers_are_one() -> None:
    sharing, first, second = MetadataInterner(), decoded("a"), decoded("b")
    assert first.owner_references is not second.owner_references
    for metadata in (first, second):
        sharing.intern(metadata)
    assert first.owner_references is second.owner_references
    assert first.finalizers is second.finalizers
    assert (first, second) == (decoded("a"), decoded("b"))


def test_different_ones_stay_different() -> None:
    sharing, first, second = MetadataInterner(), decoded("a"), decoded("b", owner="other")
    for metadata in (first, second):
        sharing.intern(metadata)
    assert (first, second) == (decoded("a"), decoded("b", owner="other"))


def test_it_does_not_remember_more_and_more() -> None:
    sharing = MetadataInterner()
    for number in range(3 * LIMIT):
        metadata = decoded("a", owner=str(number))
        sharing.intern(metadata)
        assert metadata == decoded("a", owner=str(number))
        assert len(sharing._known) <= LIMIT
