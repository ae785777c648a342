"""`/ip-manager` over real HTTP: forms, headers, methods, strangers, and a port that is taken."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import aiohttp
import pytest
import structlog

from coil.page.document import Document
from coil.page.frame import POLICY
from coil.page.query import Query
from coil.reconcile.backoff import Backoff
from coil.runtime.flag import Endpoint, parse_optional_endpoint
from coil.runtime.http_server import serve_pages
from coil.runtime.inspection import WAITING, Inspection, InspectionPages, keep_serving
from coil.runtime.visitor import guard

HTML = {"Accept": "text/html"}
ANY_PORT = Endpoint("127.0.0.1", 0)
PATIENCE = 60.0


class Count(Document, frozen=True):
    block_count: int
    name: str = "nöde"


def render(count: Count, query: Query) -> str:
    return f"<p>{count.block_count} {query.text}</p>"


@asynccontextmanager
async def serving(
    look: Callable[[], Callable[[], Count]] = lambda: lambda: Count(3), make: Callable[[Count, Query], str] = render
) -> AsyncIterator[tuple[aiohttp.ClientSession, Endpoint]]:
    """A server on a port of its own, and a client that follows no redirect."""
    pages = InspectionPages(Inspection(look, make))
    async with (
        serve_pages(ANY_PORT, pages.pages, middlewares=[guard("127.0.0.1")]) as bound,
        aiohttp.ClientSession(f"http://{bound}", timeout=aiohttp.ClientTimeout(total=PATIENCE)) as client,
    ):
        yield client, bound
    pages.close()


@pytest.mark.parametrize("headers", [{"Accept": "*/*"}, {"Accept": "application/json"}])
async def test_json_for_curl(headers: dict[str, str]) -> None:
    async with serving() as (client, _), client.get("/ip-manager", headers=headers) as answer:
        assert (answer.status, answer.content_type, answer.charset) == (200, "application/json", "utf-8")
        text = await answer.text()
    assert text == '{\n  "blockCount": 3,\n  "name": "nöde"\n}\n'


async def test_a_page_for_browsers() -> None:
    async with serving() as (client, _), client.get("/ip-manager?q=web+1", headers=HTML) as answer:
        assert (answer.status, answer.content_type, answer.charset) == (200, "text/html", "utf-8")
        assert await answer.text() == "<p>3 web 1</p>"
        assert answer.headers["Content-Security-Policy"] == POLICY


async def test_the_root_leads_there() -> None:
    async with serving() as (client, _), client.get("/", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (302, "/ip-manager")


@pytest.mark.parametrize(("method", "path"), [("GET", "/ip-manager"), ("GET", "/elsewhere"), ("POST", "/ip-manager")])
async def test_every_answer_is_protected(method: str, path: str) -> None:
    async with serving() as (client, _), client.request(method, path) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


async def test_the_two_forms_are_not_taken_for_each_other() -> None:
    async with serving() as (client, _), client.get("/ip-manager", headers=HTML) as answer:
        assert answer.headers["Vary"] == "Accept"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_nothing_but_get_and_head(method: str) -> None:
    async with serving() as (client, _), client.request(method, "/ip-manager") as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET,HEAD"


async def test_head() -> None:
    async with serving() as (client, _):
        async with client.get("/ip-manager") as whole:
            length = whole.headers["Content-Length"]
        async with client.head("/ip-manager") as answer:
            assert (answer.status, answer.headers["Content-Length"], await answer.read()) == (200, length, b"")


@pytest.mark.parametrize("path", ["/ip-manager", "/", "/elsewhere"])
async def test_a_stranger_is_turned_away(path: str) -> None:
    async with serving() as (client, _), client.get(path, headers={"Host": "evil.example:9383"}) as answer:
        assert answer.status == 421
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "3" not in await answer.text()


@pytest.mark.parametrize("hosts", [[], ["localhost", "evil.example"], ["evil.example", "localhost"]])
async def test_one_host_and_no_other(hosts: list[str]) -> None:
    async with serving() as (_, bound):
        reader, writer = await asyncio.open_connection(bound.host, bound.port)
        lines = ["GET /ip-manager HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close", "", ""]
        writer.write("\r\n".join(lines).encode())
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        await writer.wait_closed()
    assert answer.split()[1] in {b"400", b"421"}
    assert b"blockCount" not in answer


async def test_it_looks_in_the_loops_thread_and_writes_in_another() -> None:
    threads: dict[str, int] = {}

    def look() -> Callable[[], Count]:
        threads["look"] = threading.get_ident()

        def describe() -> Count:
            threads["describe"] = threading.get_ident()
            return Count(1)

        return describe

    async with serving(look) as (client, _), client.get("/ip-manager") as answer:
        assert answer.status == 200
    assert threads["look"] == threading.get_ident() != threads["describe"]


async def test_visitors_wait_in_line_and_the_line_has_an_end() -> None:
    gate = threading.Event()

    def slow(count: Count, query: Query) -> str:
        assert gate.wait(PATIENCE)
        return render(count, query)

    async with serving(make=slow) as (client, _):

        async def visit() -> int:
            async with client.get("/ip-manager", headers=HTML) as answer:
                if answer.status == 503:
                    # All others are in line by then: nobody is turned away before.
                    assert answer.headers["Retry-After"] == "1"
                    gate.set()
                return answer.status

        statuses = await asyncio.gather(*(visit() for _ in range(WAITING + 1)))
    assert sorted(statuses) == [200] * WAITING + [503]


async def test_a_description_that_fails_is_a_500_and_the_next_one_works() -> None:
    answers: Iterator[Count | ValueError] = iter([ValueError("a bug"), Count(5)])

    def describe() -> Count:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    async with serving(lambda: describe) as (client, _):
        async with client.get("/ip-manager") as first:
            assert first.status == 500
            assert "a bug" not in await first.text()
        async with client.get("/ip-manager") as second:
            assert (await second.json())["blockCount"] == 5


async def test_a_port_that_is_taken_is_tried_again() -> None:
    said: asyncio.Queue[tuple[str, MutableMapping[str, Any]]] = asyncio.Queue()

    def note(_logger: object, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        said.put_nowait((method, event))
        raise structlog.DropEvent

    pages = InspectionPages(Inspection(lambda: lambda: Count(3), render))
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[note])
    async with asyncio.timeout(PATIENCE):
        async with serve_pages(ANY_PORT, {}) as taken:
            backoff = Backoff(base=0.001, cap=0.001, jitter=0.0)
            keeping = asyncio.create_task(keep_serving(taken, pages.pages, log=log, backoff=backoff))
            method, event = await said.get()
            assert method == "warning"
            assert str(taken) in event["error"]
        # Meanwhile it may have failed many times, and said nothing more.
        assert await said.get() == ("info", {"event": "inspection", "url": f"http://{taken}/ip-manager"})
        async with aiohttp.ClientSession() as client, client.get(f"http://{taken}/ip-manager") as answer:
            assert (await answer.json())["blockCount"] == 3
    keeping.cancel()
    await asyncio.wait({keeping})
    pages.close()


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("off", None), ("", None), (":6666", Endpoint("", 6666)), ("[::1]:1", Endpoint("::1", 1))],
)
def test_an_endpoint_or_none(text: str, endpoint: Endpoint | None) -> None:
    assert parse_optional_endpoint(text) == endpoint


def test_an_endpoint_that_is_neither() -> None:
    with pytest.raises(ValueError, match='"off" or an address such as'):
        parse_optional_endpoint("none")
