"""An API server for the informer to be measured against: a list of pods, in pages or streamed, and one long watch, over
plain HTTP.

It runs in a process of its own and does as little as it can for each byte, so that the client is what is measured:
pods are rendered beforehand, and a watch joins a few hundred events into one write (each of them still its own HTTP
chunk, which is how the real server flushes them). A write that blocks is the client's back-pressure.

The number of events after the list is an argument; when they are sent the watch stays open and silent.
"""

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from integration.bench.pod_text import PodText, render_end_of_list, render_event, render_page, render_pod

LIST_VERSION = 1_000_000
_PATH = "/api/v1/pods"
_EVENTS_PER_WRITE = 200
_START_SECONDS = 60


class PodServer(ThreadingHTTPServer):
    """Serves `pods` at LIST_VERSION, and `events` events on each watch that starts from there."""

    daemon_threads = True

    def __init__(self, pods: list[PodText], *, events: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pods = pods
        self.events = events


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Otherwise the end of each page waits for the client's delayed acknowledgement (tcp(7), TCP_NODELAY).
    disable_nagle_algorithm = True
    server: PodServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if url.path != _PATH:
            self.send_error(404)
        elif query.get("watch", "0").lower() in {"1", "true"}:
            self._watch(initial_events=query.get("sendInitialEvents") == "true")
        else:
            self._list(limit=int(query.get("limit", "0")), token=query.get("continue", ""))

    def _list(self, *, limit: int, token: str) -> None:
        body = render_page(self.server.pods, version=LIST_VERSION, limit=limit, token=token)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, *, initial_events: bool) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            if initial_events:
                self._stream_list()
            for numbers in _batches(self.server.events):
                lines = (render_event(self.server.pods, number, since=LIST_VERSION) for number in numbers)
                self.wfile.write(b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines))
            self.rfile.read(1)  # the client has nothing more to say: this returns when it goes away
        except ConnectionError:
            pass  # the client has what it wanted

    def _stream_list(self) -> None:
        pods = self.server.pods
        for numbers in _batches(len(pods)):
            lines = (pods[number].event(b"ADDED", LIST_VERSION - number) for number in numbers)
            self.wfile.write(b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines))
        line = render_end_of_list(LIST_VERSION)
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — the name is the standard library's
        """Silence: a line per request would be work that is measured too."""


def _batches(events: int) -> Iterator[range]:
    for first in range(0, events, _EVENTS_PER_WRITE):
        yield range(first, min(first + _EVENTS_PER_WRITE, events))


@contextmanager
def serving_pods(*, pods: int, events: int = 0) -> Iterator[str]:
    """A server in a process of its own for the time of the block; gives its URL."""
    command = [sys.executable, "-m", "integration.bench.pod_server", f"--pods={pods}", f"--events={events}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"the pod server ended with code {process.wait(_START_SECONDS)}")
            yield url
        finally:
            process.kill()


def main() -> None:
    """Serve until killed; the first line of output is the URL."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, required=True)
    parser.add_argument("--events", type=int, default=0)
    arguments = parser.parse_args()
    server = PodServer([render_pod(number) for number in range(arguments.pods)], events=arguments.events)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
