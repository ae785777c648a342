"""The client over openstacksdk, against a service on this machine that answers as it is told."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openstack
import pytest
from openstack.connection import Connection
from prometheus_client import CollectorRegistry

from coil.openstack import client as module
from coil.openstack.call_metrics import CallMetrics
from coil.openstack.client import FIRST_PAUSE, LONGEST_PAUSE, OpenStackClient, Service, delete, list_all
from coil.openstack.error import (
    NotFoundError,
    QuotaError,
    ThrottledError,
    UnauthenticatedError,
    UnavailableError,
)
from coil.openstack.recent_calls import CallTotals, RecentCalls

QUOTA = {"NeutronError": {"type": "OverQuota", "message": "Quota exceeded for resources: ['port']."}}


@dataclass
class Answer:
    status: int = 200
    body: str = "{}"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Scripted:
    """Answers in their order; the last one is repeated. `asked` is method, path and body of each request."""

    url: str
    answers: list[Answer] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    connections: int = 0
    error: Exception | None = None

    def says(self, *documents: object) -> None:
        self.answers = [Answer(body=json.dumps(document)) for document in documents]

    def connect(self) -> Connection:
        if self.error is not None:
            raise self.error
        self.connections += 1
        return openstack.connect(
            load_yaml_config=False,
            load_envvars=False,
            auth_type="none",
            network_endpoint_override=self.url,
            api_timeout=5.0,
        )


def version(url: str) -> dict[str, object]:
    """Which the library asks for first."""
    return {"id": "v2.0", "status": "CURRENT", "links": [{"rel": "self", "href": f"{url}/v2.0/"}]}


@contextmanager
def serving() -> Iterator[Scripted]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.rstrip("/") in ("", "/v2.0"):
                self.answer(Answer(body=json.dumps({"versions": [version(scripted.url)]})))
                return
            length = int(self.headers.get("Content-Length") or 0)
            scripted.asked.append((self.command, self.path, self.rfile.read(length).decode()))
            self.answer(scripted.answers.pop(0) if len(scripted.answers) > 1 else scripted.answers[0])

        def answer(self, answer: Answer) -> None:
            body = answer.body.encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        scripted = Scripted(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield scripted
        server.shutdown()
        thread.join()


@pytest.fixture
def service() -> Iterator[Scripted]:
    with serving() as scripted:
        yield scripted


@pytest.fixture
def client(service: Scripted) -> Iterator[OpenStackClient]:
    with OpenStackClient(service.connect) as client:
        yield client


async def ask(client: OpenStackClient) -> Any:
    return await client.request(Service.NETWORK, "create port", "POST", "/ports", body={"port": {"name": "a"}})


async def test_a_call_has_its_body_and_its_answer(service: Scripted, client: OpenStackClient) -> None:
    service.says({"port": {"id": "1"}})
    assert await ask(client) == {"port": {"id": "1"}}
    assert service.asked == [("POST", "/v2.0/ports", '{"port": {"name": "a"}}')]
    assert service.connections == 1


async def test_nothing_is_asked_before_it_is_needed(service: Scripted) -> None:
    with OpenStackClient(service.connect):
        assert service.connections == 0


async def test_a_refusal_is_what_its_body_says(service: Scripted, client: OpenStackClient) -> None:
    service.answers = [Answer(409, json.dumps(QUOTA))]
    with pytest.raises(QuotaError, match=r"create port: Quota exceeded .* \(OverQuota\)"):
        await ask(client)
    assert len(service.asked) == 1, "what was refused is not repeated here"


@pytest.mark.parametrize("body", ["<html>", "{"])
async def test_an_answer_that_cannot_be_read_is_none(service: Scripted, client: OpenStackClient, body: str) -> None:
    service.answers = [Answer(body=body)]
    with pytest.raises(UnavailableError, match="cannot be read"):
        await ask(client)


async def test_a_connection_that_is_refused_is_no_answer() -> None:
    with serving() as gone:
        pass
    with OpenStackClient(gone.connect) as client, pytest.raises(UnavailableError):
        await ask(client)


async def test_credentials_are_read_again_once(service: Scripted, client: OpenStackClient) -> None:
    service.answers = [Answer(401, "Authentication required"), Answer(body='{"port": {"id": "1"}}')]
    assert await ask(client) == {"port": {"id": "1"}}
    assert service.connections == 2
    service.answers = [Answer(401, "Authentication required")]
    with pytest.raises(UnauthenticatedError):
        await ask(client)
    assert service.connections == 3
    assert len(service.asked) == 4


async def test_a_configuration_that_cannot_be_used_is_told_and_may_be_put_right(
    service: Scripted, client: OpenStackClient
) -> None:
    service.says({"port": {"id": "1"}})
    service.error = openstack.exceptions.ConfigException("Cloud blue was not found.")
    with pytest.raises(UnauthenticatedError, match="Cloud blue was not found"):
        await ask(client)
    service.error = None
    assert await ask(client) == {"port": {"id": "1"}}


async def test_after_too_many_calls_all_wait_longer_each_time(service: Scripted) -> None:
    now, pauses = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    with OpenStackClient(service.connect, clock=lambda: now, sleep=sleep) as client:
        service.answers = [Answer(429, "slow down")]
        for _ in range(9):
            with pytest.raises(ThrottledError):
                await ask(client)
        assert pauses == [min(LONGEST_PAUSE, FIRST_PAUSE * 2**number) for number in range(8)]
        pauses.clear()
        service.answers = [Answer(503, "", {"Retry-After": "7"}), Answer()]
        with pytest.raises(ThrottledError):
            await ask(client)
        await ask(client)
        assert pauses[1:] == [LONGEST_PAUSE], "what was asked for is less than what it takes by now"
        service.answers = [Answer(429, "", {"Retry-After": "7"}), Answer()]
        with pytest.raises(ThrottledError):
            await ask(client)
        await ask(client)
        assert pauses[2:] == [7.0]


async def test_no_more_calls_are_under_way_than_allowed(service: Scripted) -> None:
    service.says({})
    under_way, most = 0, 0
    turn = threading.Lock()
    both = threading.Barrier(2, timeout=30)

    class Counting(OpenStackClient):
        def _send(self, *arguments: Any) -> Any:
            nonlocal under_way, most
            with turn:
                under_way += 1
                most = max(most, under_way)
            both.wait()
            with turn:
                under_way -= 1
            return {}

    with Counting(service.connect, concurrency=2) as client:
        await asyncio.gather(*(ask(client) for _ in range(6)))
    assert most == 2


async def test_pages_follow_each_other(
    service: Scripted, client: OpenStackClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_SIZE", 2)
    pages = [[{"id": "a"}, {"id": "b"}], [{"id": "c"}, {"id": "d"}], []]
    service.says(*({"ports": page} for page in pages))
    found = await list_all(client, Service.NETWORK, "list ports", "/ports", "ports", {"name": "x"})
    assert [each["id"] for each in found] == ["a", "b", "c", "d"]
    assert [path for _, path, _ in service.asked] == [
        "/v2.0/ports?name=x&limit=2",
        "/v2.0/ports?name=x&limit=2&marker=b",
        "/v2.0/ports?name=x&limit=2&marker=d",
    ]
    monkeypatch.setattr(module, "MOST_PAGES", 3)
    service.says({"ports": pages[0]})
    with pytest.raises(UnavailableError, match="endless"):
        await list_all(client, Service.NETWORK, "list ports", "/ports", "ports")
    service.says({"networks": []})
    with pytest.raises(UnavailableError, match="no ports"):
        await list_all(client, Service.NETWORK, "list ports", "/ports", "ports")


async def test_pages_may_be_shorter_than_was_asked_for(service: Scripted, client: OpenStackClient) -> None:
    links = {"ports_links": [{"rel": "next", "href": "…"}]}
    service.says({"ports": [{"id": "a"}], **links}, {"ports": [{"id": "b"}], **links}, {"ports": [{"id": "c"}]})
    found = await list_all(client, Service.NETWORK, "list ports", "/ports", "ports")
    assert [each["id"] for each in found] == ["a", "b", "c"]
    back = {"ports_links": [{"rel": "previous", "href": "…"}]}
    service.says({"ports": [{"id": "a"}], **back}, {"ports": [{"id": "b"}]})
    assert await list_all(client, Service.NETWORK, "list ports", "/ports", "ports") == [{"id": "a"}]


async def test_only_the_services_own_404_says_that_something_is_gone(
    service: Scripted, client: OpenStackClient
) -> None:
    gone = {"NeutronError": {"type": "PortNotFound", "message": "Port 1 could not be found."}}
    service.answers = [Answer(404, json.dumps(gone)), Answer(404, "<html>nginx</html>"), Answer(204, "")]
    await delete(client, Service.NETWORK, "delete port", "/ports/1")
    with pytest.raises(UnavailableError):
        await delete(client, Service.NETWORK, "delete port", "/ports/1")
    await delete(client, Service.NETWORK, "delete port", "/ports/1")
    service.answers = [Answer(404, json.dumps(gone))]
    with pytest.raises(NotFoundError):
        await client.request(Service.NETWORK, "get port", "GET", "/ports/1")


async def test_calls_and_their_errors_are_counted(service: Scripted) -> None:
    metrics, registry = CallMetrics(), CollectorRegistry()
    for collector in metrics.collectors():
        registry.register(collector)
    service.answers = [Answer(409, json.dumps(QUOTA)), Answer()]
    with OpenStackClient(service.connect, metrics=metrics) as client:
        with pytest.raises(QuotaError):
            await ask(client)
        await ask(client)
    call = {"call": "create port"}
    assert registry.get_sample_value("coil_openstack_call_duration_seconds_count", call) == 2
    assert registry.get_sample_value("coil_openstack_errors_total", {**call, "code": "OverQuota"}) == 1


async def test_calls_and_pauses_can_be_looked_at(service: Scripted) -> None:
    now = 100.0
    recent = RecentCalls(clock=lambda: now, now=lambda: datetime(2030, 1, 1, tzinfo=UTC))
    service.answers = [Answer(), Answer(429, "", {"Retry-After": "7"})]
    with OpenStackClient(service.connect, recent=recent, clock=lambda: now) as client:
        await ask(client)
        assert client.pause_left == 0.0
        with pytest.raises(ThrottledError):
            await ask(client)
        assert client.pause_left == 7.0
        now += 5.0
        assert client.pause_left == 2.0
        now += 5.0
        assert client.pause_left == 0.0
    assert recent.read().calls == {"create port": CallTotals(count=2, errors=1, seconds=0.0)}
