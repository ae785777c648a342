"""The server over real HTTP, in this process: what a client of the API would notice."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest

from integration.bench.pod_server import LIST_VERSION, PodServer
from integration.bench.pod_text import render_pod


@contextmanager
def connection(*, pods: int = 5, events: int = 0) -> Iterator[HTTPConnection]:
    server = PodServer([render_pod(number) for number in range(pods)], events=events)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    client = HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    try:
        yield client
    finally:
        client.close()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_list_is_paged_on_one_connection() -> None:
    with connection() as client:
        client.request("GET", "/api/v1/pods?limit=3")
        first = json.load(client.getresponse())
        client.request("GET", f"/api/v1/pods?limit=3&continue={first['metadata']['continue']}")
        second = json.load(client.getresponse())
    assert [len(first["items"]), len(second["items"])] == [3, 2]
    assert first["metadata"]["resourceVersion"] == str(LIST_VERSION)


@pytest.mark.parametrize("events", [1, 450])
def test_a_watch_sends_its_events_and_stays_open(events: int) -> None:
    with connection(events=events) as client:
        client.request("GET", f"/api/v1/pods?watch=true&resourceVersion={LIST_VERSION}")
        answer = client.getresponse()
        versions = [int(json.loads(answer.readline())["object"]["metadata"]["resourceVersion"]) for _ in range(events)]
        assert not answer.isclosed()
        answer.close()
    assert versions == list(range(LIST_VERSION + 1, LIST_VERSION + 1 + events))


def test_anything_else_is_absent() -> None:
    with connection() as client:
        client.request("GET", "/api/v1/nodes")
        assert client.getresponse().status == 404
