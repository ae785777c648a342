"""A stand-in of MidoNet's agent, from the public description of its REST API: `PUT` and `DELETE /binding/PORT` on a
Unix socket.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer


class Midolman:
    """`bindings` are the links by port. Make one with `start`."""

    def __init__(self) -> None:
        self.bindings: dict[str, str] = {}
        self.broken = False
        """Answers 500 to each PUT, and has bound the port."""
        self.hanging = threading.Event()
        self.released = threading.Event()
        self.released.set()
        """Unless it is set, a PUT is not answered after it has bound the port."""

    @classmethod
    @contextmanager
    def start(cls, socket: Path) -> Iterator["Midolman"]:
        """Serving. Ends with the context."""
        agent = cls()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                agent.bindings[self._port()] = body["interfaceName"]
                if not agent.released.is_set():
                    agent.hanging.set()
                    agent.released.wait()
                self._answer(500 if agent.broken else 200, b"no such port" if agent.broken else b"")

            def do_DELETE(self) -> None:
                found = agent.bindings.pop(self._port(), None)
                self._answer(404 if found is None else 204, b"")

            def _port(self) -> str:
                _, word, port = self.path.split("/")
                assert word == "binding"
                return port

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self) -> str:
                return "socket"

            def log_request(self, code: object = "-", size: object = "-") -> None:
                pass

        class Server(ThreadingMixIn, UnixStreamServer):
            daemon_threads = True

        with Server(str(socket), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield agent
            finally:
                agent.released.set()
                server.shutdown()
                thread.join()
