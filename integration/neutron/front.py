"""An HTTP server in front of Neutron or Octavia, which passes calls on: the part that a test's Keystone and its weather
have in common.
"""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

_SECONDS: Final = 60.0
_PASSED_ON: Final = ("Content-Type", "Accept", "User-Agent", "If-Match")


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a service; `headers` are those that clients read."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class FrontHandler(BaseHTTPRequestHandler):
    """A subclass says in `handle_call` what becomes of a call."""

    protocol_version = "HTTP/1.1"

    def handle_call(self, body: bytes) -> None:
        """Answer, or close the connection."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.handle_call(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server's names

    def log_message(self, *arguments: Any) -> None:
        """Nothing: pytest shows what matters."""

    def ask(self, backend: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """What the service at `backend` (host and port) says to the call. `headers` are added."""
        connection = HTTPConnection(backend, timeout=_SECONDS)
        try:
            kept = {name: value for name in _PASSED_ON if (value := self.headers.get(name))}
            connection.request(self.command, path, body or None, {**kept, **(headers or {})})
            answer = connection.getresponse()
            return Answer(
                answer.status,
                answer.read(),
                {"Content-Type": answer.headers.get("Content-Type", "application/json")},
            )
        finally:
            connection.close()

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed, or waits no longer, is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: type[FrontHandler], *, name: str) -> Iterator[str]:
    """The URL of a server on 127.0.0.1 until the end of the block, with a thread for each connection."""
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name=name)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
