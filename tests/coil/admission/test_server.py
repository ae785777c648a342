"""The HTTPS server as a misbehaving client sees it."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.admission.certificate import issue_authority, issue_server
from coil.admission.review import ALLOWED, AdmissionRequest, Denied, Invalid, ReviewError, Unavailable, Verdict
from coil.admission.server import AdmissionHandler, AdmissionMetrics, ReviewLimits, ServingContext, serve_reviews
from coil.crd.validation import FieldError
from coil.runtime.flag import Endpoint
from coil.runtime.http_server import ListenError
from tests.coil.admission.test_review import document

NOW = datetime.now(UTC)
AUTHORITY = issue_authority("test", now=NOW, life=timedelta(hours=2))
PATH = "/validate"
SMALL = ReviewLimits(body=2_000, seconds=30.0, max_in_flight=2, queue_length=1, connections=4)


class Bench:
    """A handler that waits to be told what to say."""

    def __init__(self) -> None:
        self.verdict: Verdict | Exception = ALLOWED
        self.asked: list[AdmissionRequest] = []
        self.arrived = asyncio.Semaphore(0)
        self.come_in = asyncio.Event()
        self.come_in.set()

    async def handle(self, request: AdmissionRequest) -> Verdict:
        self.asked.append(request)
        self.arrived.release()
        await self.come_in.wait()
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


class Caller:
    """One client, a connection for each request."""

    def __init__(self, endpoint: Endpoint, registry: CollectorRegistry) -> None:
        self.endpoint = endpoint
        self.registry = registry
        self.tls = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())

    async def post(self, body: bytes, *, path: str = PATH, kind: str = "application/json") -> tuple[int, str]:
        connector = aiohttp.TCPConnector(ssl=self.tls, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"https://{self.endpoint}{path}"
            async with session.post(url, data=body, headers={"Content-Type": kind}) as answer:
                return answer.status, await answer.text()

    async def review(self, **changes: Any) -> dict[str, Any]:
        status, text = await self.post(json.dumps(document(**changes)).encode())
        assert status == 200, text
        response: dict[str, Any] = json.loads(text)["response"]
        return response

    def dropped(self, reason: str) -> float:
        name = "coil_admission_dropped_connections_total"
        return self.registry.get_sample_value(name, {"reason": reason}) or 0

    def count(self, answer: str) -> float:
        return self.registry.get_sample_value("coil_admission_reviews_total", {"path": PATH, "answer": answer}) or 0


@asynccontextmanager
async def serving(handler: AdmissionHandler, limits: ReviewLimits = SMALL) -> AsyncIterator[Caller]:
    context, registry = ServingContext(), CollectorRegistry()
    context.load(issue_server(AUTHORITY, hosts=["127.0.0.1"], now=NOW, life=timedelta(hours=1)))
    async with serve_reviews(
        Endpoint("127.0.0.1", 0),
        {PATH: handler},
        serving=context,
        metrics=AdmissionMetrics(registry),
        log=structlog.get_logger(),
        limits=limits,
    ) as endpoint:
        yield Caller(endpoint, registry)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
async def caller(bench: Bench) -> AsyncIterator[Caller]:
    async with serving(bench.handle) as caller:
        yield caller


async def test_verdicts_go_back_with_the_uid(caller: Caller, bench: Bench) -> None:
    assert await caller.review(uid="first") == {"uid": "first", "allowed": True}
    bench.verdict = Invalid([FieldError("spec", "is wrong")])
    refused = await caller.review(uid="second")
    assert (refused["uid"], refused["allowed"], refused["status"]["code"]) == ("second", False, 422)
    assert (caller.count("allowed"), caller.count("invalid"), caller.count("error")) == (1, 1, 0)


@pytest.mark.parametrize(
    ("verdict", "answer"),
    [
        (ALLOWED, "allowed"),
        (Invalid([FieldError("spec", "is wrong")]), "invalid"),
        (Denied("not now"), "denied"),
        (Unavailable("nobody knows"), "unjudged"),
    ],
)
async def test_a_verdict_is_counted_by_the_documented_word(
    caller: Caller, bench: Bench, verdict: Verdict, answer: str
) -> None:
    bench.verdict = verdict
    await caller.review()
    assert caller.count(answer) == 1


@pytest.mark.parametrize(
    ("body", "kind", "status", "text"),
    [
        (b"", "application/json", 400, "the body is no AdmissionReview"),
        (b"{", "application/json", 400, "the body is no AdmissionReview"),
        (b"{}", "application/json", 400, "missing required field"),
        (b"[" * 1_500, "application/json", 400, "the body is no AdmissionReview"),
        (b"{}", "text/plain", 415, "application/json is expected"),
        (b" " * 2_001, "application/json", 413, "more than 2000 bytes"),
    ],
)
async def test_what_cannot_be_read_is_refused_in_words(
    caller: Caller, body: bytes, kind: str, status: int, text: str
) -> None:
    got, said = await caller.post(body, kind=kind)
    assert (got, caller.count("error")) == (status, 1)
    assert text in said
    assert (await caller.review())["allowed"], "and the next one is answered"


async def test_other_paths_and_methods_are_none(caller: Caller) -> None:
    assert (await caller.post(b"{}", path="/"))[0] == 404
    connector = aiohttp.TCPConnector(ssl=caller.tls)
    url = f"https://{caller.endpoint}{PATH}"
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as answer:
        assert answer.status == 405


async def test_a_handler_that_fails_costs_its_own_request_only(caller: Caller, bench: Bench) -> None:
    bench.verdict = RuntimeError("a secret of ours")
    status, text = await caller.post(json.dumps(document()).encode())
    assert status == 500
    assert "secret" not in text
    bench.verdict = ReviewError("the object cannot be read")
    assert await caller.post(json.dumps(document()).encode()) == (400, "the object cannot be read\n")
    bench.verdict = ALLOWED
    assert (await caller.review())["allowed"]


async def test_only_so_many_are_in_flight_and_queued(caller: Caller, bench: Bench) -> None:
    bench.come_in.clear()
    room = SMALL.max_in_flight + SMALL.queue_length
    callers = [asyncio.create_task(caller.post(json.dumps(document()).encode())) for _ in range(SMALL.connections)]
    turned_away, waiting = await asyncio.wait(callers, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result()[0] for task in turned_away] == [503] * (SMALL.connections - room)
    for _ in range(SMALL.max_in_flight):
        await bench.arrived.acquire()
    assert len(bench.asked) == SMALL.max_in_flight
    bench.come_in.set()
    assert [(await task)[0] for task in waiting] == [200] * room


async def test_nobody_waits_for_ever(bench: Bench) -> None:
    bench.come_in.clear()
    async with serving(bench.handle, ReviewLimits(seconds=0.05)) as caller:
        status, text = await caller.post(json.dumps(document()).encode())
    assert status == 503
    assert "no answer within 0.05 s" in text


Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(caller: Caller, source: str = "127.0.0.1", *, tls: bool = True) -> Opened:
    """A connection from that address of the loopback, open and silent."""
    return await asyncio.open_connection(
        caller.endpoint.host, caller.endpoint.port, ssl=caller.tls if tls else None, local_addr=(source, 0)
    )


async def await_closed(crowd: Collection[Opened]) -> None:
    """Return when the server has closed all of them."""
    async with asyncio.timeout(60):
        for reader, _ in crowd:
            with suppress(OSError):
                await reader.read()


def are_open(crowd: Collection[Opened]) -> bool:
    """Whether the server has closed none of them, as far as is known here."""
    return not any(reader.at_eof() or reader.exception() for reader, _ in crowd)


def close(crowd: Collection[Opened]) -> None:
    for _, writer in crowd:
        writer.transport.abort()


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("sources", [1, 20])
async def test_a_crowd_of_idle_connections_keeps_nobody_out(bench: Bench, tls: bool, sources: int) -> None:
    """Connections that have not begun with TLS are the same."""
    async with serving(bench.handle, ReviewLimits(connections=8)) as caller:
        crowd = [await connect(caller, f"127.0.0.{2 + number % sources}", tls=tls) for number in range(20)]
        try:
            for _ in range(3):
                assert (await caller.review())["allowed"]
            await await_closed(crowd[: 20 - 8])
            assert are_open(crowd[-4:])
            assert caller.dropped("crowded") >= 20 - 8
        finally:
            close(crowd)


async def test_a_crowd_costs_its_own_source(bench: Bench) -> None:
    """A quarter of the connections is its share: others keep theirs, however long they have been idle."""
    async with serving(bench.handle, ReviewLimits(connections=8)) as caller:
        first = [await connect(caller, f"127.0.0.{2 + number}") for number in range(4)]
        crowd = [await connect(caller, "127.0.0.9") for _ in range(20)]
        try:
            await await_closed(crowd[:16])
            assert are_open([*first, *crowd[16:]])
            assert caller.dropped("crowded") == 16
        finally:
            close([*first, *crowd])


async def test_a_review_at_work_is_no_idle_connection(bench: Bench) -> None:
    bench.come_in.clear()
    async with serving(bench.handle, ReviewLimits(connections=4)) as caller:
        review = asyncio.create_task(caller.review())
        await bench.arrived.acquire()
        crowd = [await connect(caller, f"127.0.0.{2 + number}") for number in range(12)]
        try:
            bench.come_in.set()
            assert (await review)["allowed"]
        finally:
            close(crowd)


HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


BODY_TO_COME = f"{HEAD}Content-Length: 100\r\n\r\n"


@pytest.mark.parametrize("begin", ["", "P", BODY_TO_COME, f"{BODY_TO_COME}{{"])
async def test_a_request_that_does_not_arrive_ends_its_connection(bench: Bench, begin: str) -> None:
    async with serving(bench.handle, ReviewLimits(arrival_seconds=0.3)) as caller:
        slow = await connect(caller)
        slow[1].write(begin.encode())
        try:
            async with asyncio.timeout(60):
                await slow[0].read()
            assert caller.dropped("slow") == 1
        finally:
            close([slow])


async def test_slow_bodies_hold_up_nobody(bench: Bench) -> None:
    """Neither small ones, which take no turn, nor large ones, of which so many are read at once."""
    limits = ReviewLimits(max_in_flight=2, queue_length=4, arrival_seconds=30)
    async with serving(bench.handle, limits) as caller:
        crowd = [await connect(caller, f"127.0.0.{2 + number % 4}") for number in range(40)]
        try:
            for number, (_, writer) in enumerate(crowd):
                length = 1_000 if number % 2 else 1_000_000
                writer.write(f"{HEAD}Content-Length: {length}\r\n\r\n{{".encode())
            assert (await caller.review())["allowed"]
        finally:
            close(crowd)


async def test_a_large_review_is_answered(bench: Bench) -> None:
    async with serving(bench.handle, ReviewLimits()) as caller:
        assert (await caller.post(json.dumps(document()).encode() + b" " * 900_000))[0] == 200


async def test_garbage_instead_of_tls_or_http_is_survived(caller: Caller) -> None:
    for tls, garbage in ((None, b"GET / HTTP/1.1\r\n\r\n"), (None, b"\x00" * 500), (caller.tls, b"\x00\xff\r\n\r\n")):
        reader, writer = await asyncio.open_connection(caller.endpoint.host, caller.endpoint.port, ssl=tls)
        writer.write(garbage)
        await reader.read()
        writer.close()
    assert (await caller.review())["allowed"]


async def test_a_port_that_is_taken_is_said_at_once(caller: Caller, bench: Bench) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{caller.endpoint.port}"):
        async with serve_reviews(
            caller.endpoint,
            {},
            serving=ServingContext(),
            metrics=AdmissionMetrics(CollectorRegistry()),
            log=structlog.get_logger(),
        ):
            pass
