"""The pages of a process over real HTTP: probes, metrics, and what a taken port says."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from coil.runtime.flag import Endpoint
from coil.runtime.http_server import ListenError, MetricsPage, ProbeChecks, make_registry, serve_pages

ANY_PORT = Endpoint("127.0.0.1", 0)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


async def test_a_probe_names_what_fails_and_why(client: aiohttp.ClientSession) -> None:
    wrong: dict[str, str | None] = {"pools": None, "nodes": None}
    checks = ProbeChecks()
    checks.add("pools", lambda: wrong["pools"])
    checks.add("nodes", lambda: wrong["nodes"])
    async with serve_pages(ANY_PORT, {"/readyz": checks.page}) as endpoint:
        url = f"http://{endpoint}/readyz"
        async with client.get(url) as answer:
            assert answer.status == 200
            assert await answer.json() == {"status": "ok", "checks": {"pools": "ok", "nodes": "ok"}}
        wrong["nodes"] = "not listed yet"
        async with client.get(url) as answer:
            assert answer.status == 503
            body = await answer.json()
            assert body == {"status": "failing", "checks": {"pools": "ok", "nodes": "not listed yet"}}
        async with client.head(url) as answer:
            assert answer.status == 503
        async with client.post(url) as answer:
            assert answer.status == 405
        async with client.get(f"http://{endpoint}/") as answer:
            assert answer.status == 404


async def test_a_check_that_raises_has_failed(client: aiohttp.ClientSession) -> None:
    def broken() -> str | None:
        raise LookupError("no cache")

    checks = ProbeChecks()
    checks.add("cache", broken)
    checks.add("other", lambda: None)
    async with (
        serve_pages(ANY_PORT, {"/healthz": checks.page}) as endpoint,
        client.get(f"http://{endpoint}/healthz") as answer,
    ):
        assert answer.status == 503
        assert (await answer.json())["checks"] == {
            "cache": "the check failed: LookupError: no cache",
            "other": "ok",
        }


def test_names_of_checks_are_unique() -> None:
    checks = ProbeChecks()
    checks.add("cache", lambda: None)
    with pytest.raises(ValueError, match="a check named 'cache' already"):
        checks.add("cache", lambda: None)


async def test_metrics_are_the_processs_own(client: aiohttp.ClientSession) -> None:
    registry = make_registry()
    Counter("coil_things", "Things.", registry=registry).inc(3)
    async with (
        serve_pages(ANY_PORT, {"/metrics": MetricsPage(registry).page}) as endpoint,
        client.get(f"http://{endpoint}/metrics") as answer,
    ):
        assert answer.status == 200
        assert answer.content_type == "text/plain"
        families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
    assert families["coil_things"].samples[0].value == 3
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6
    assert {"python_info", "python_gc_collections", "process_open_fds"} <= families.keys()


async def test_metrics_in_the_format_that_is_asked_for(client: aiohttp.ClientSession) -> None:
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with (
        serve_pages(ANY_PORT, {"/metrics": MetricsPage(make_registry()).page}) as endpoint,
        client.get(f"http://{endpoint}/metrics", headers=headers) as answer,
    ):
        assert answer.content_type == "application/openmetrics-text"
        assert (await answer.text()).endswith("# EOF\n")


def test_two_processes_worth_of_metrics_do_not_meet() -> None:
    Counter("coil_things", "Things.", registry=make_registry())
    Counter("coil_things", "Things.", registry=make_registry())


async def test_a_taken_port_is_said_at_once() -> None:
    async with serve_pages(ANY_PORT, {}) as taken:
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{taken.port}: "):
            async with serve_pages(taken, {}):
                pass


async def test_left_it_listens_no_more(client: aiohttp.ClientSession) -> None:
    async with serve_pages(ANY_PORT, {"/healthz": ProbeChecks().page}) as endpoint:
        pass
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.get(f"http://{endpoint}/healthz")
