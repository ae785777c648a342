"""A server and two proxies at addresses of a network namespace, which write down who asked whom, and as whom."""

import base64
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET6, create_connection
from socketserver import BaseRequestHandler
from typing import Any

from integration.netns.netns import Netns
from tests.coil.kube.certificate import Authority, KeyPair

SERVER4, SERVER6, PROXY = "192.0.2.10", "2001:db8::10", "192.0.2.20"
"""Addresses on lo, which are none of the loopback's networks."""
TLS_PORT, PLAIN_PORT, PROXY_PORT, OTHER_PROXY_PORT = 6443, 8080, 3128, 3129
NAME = "api.example"
VERSION = b'{"major": "1", "minor": "37", "gitVersion": "v1.37.0"}'
SECONDS = 60.0


class Witness:
    """Everything that was asked since the last look, sorted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: list[str] = []

    def note(self, text: str) -> None:
        with self._lock:
            self._seen.append(text)

    def take(self) -> list[str]:
        """What was seen; nothing is seen after that."""
        with self._lock:
            seen, self._seen = sorted(self._seen), []
            return seen


class _Server(ThreadingHTTPServer):
    address_family = AF_INET6
    daemon_threads = True

    def __init__(self, port: int, handler: type[BaseRequestHandler], witness: Witness, label: str) -> None:
        self.witness, self.label, self.server_name_asked = witness, label, ""
        super().__init__(("::", port), handler)


class _Api(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        proof = _describe(self.headers.get("Authorization", ""))
        peer: Any = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        if peer:
            proof = f"certificate {peer['subject'][0][0][1]}"
        acts = "".join(f" {key}={value}" for key, value in self.headers.items() if key.startswith("Impersonate"))
        self.server.witness.note(f"{self.server.label}: {_without_query(self.path)} as {proof or 'nobody'}{acts}")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(VERSION)))
        self.end_headers()
        self.wfile.write(VERSION)

    def log_message(self, *_: object) -> None:
        pass


class _Proxy(BaseHTTPRequestHandler):
    server: _Server

    def do_CONNECT(self) -> None:
        self._note()
        with create_connection(("::1", int(self.path.rpartition(":")[2])), timeout=SECONDS) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pass_on, args=(there, self.connection))
            back.start()
            _pass_on(self.connection, there)
            back.join(SECONDS)

    def do_GET(self) -> None:
        self._note()
        self.send_response(200)
        self.send_header("Content-Length", str(len(VERSION)))
        self.end_headers()
        self.wfile.write(VERSION)

    def _note(self) -> None:
        proof = _describe(self.headers.get("Proxy-Authorization", ""))
        told = _describe(self.headers.get("Authorization", ""))
        text = f"{self.server.label}: {self.command} {_without_query(self.path)} as {proof or 'nobody'}"
        self.server.witness.note(text + (f", told of {told}" if told else ""))

    def log_message(self, *_: object) -> None:
        pass


def _without_query(path: str) -> str:
    return path.partition("?")[0]  # kubectl's has a timeout


def _describe(header: str) -> str:
    kind, _, value = header.partition(" ")
    return f"Basic {base64.b64decode(value).decode()}" if kind == "Basic" else header


def _pass_on(source: Any, target: Any) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(1)
    except OSError:
        pass  # the other side has gone


class Reaching:
    """What stands in the namespace, and the certificates to get in."""

    def __init__(self, netns: Netns, folder: Path) -> None:
        self.netns = netns
        self.witness = Witness()
        authority = Authority("the cluster's")
        self.ca = authority.certificate
        self.client: KeyPair = authority.issue("somebody")
        self.server = authority.issue(
            "the API server", addresses=(SERVER4, SERVER6, "127.0.0.1", "::1", "127.8.9.1"), host=NAME
        ).write(folder, "server")
        (folder / "ca.crt").write_bytes(self.ca)
        self._folder = folder

    @contextmanager
    def served(self) -> Iterator["Reaching"]:
        """Until the block ends."""
        for address in (f"{SERVER4}/32", f"{SERVER6}/128", f"{PROXY}/32"):
            self.netns.ip("address", "add", address, "dev", "lo", *(["nodad"] if ":" in address else []))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.server)
        context.load_verify_locations(self._folder / "ca.crt")
        context.verify_mode = ssl.CERT_OPTIONAL
        with ExitStack() as stack:
            for port, handler, label in (
                (TLS_PORT, _Api, "server"),
                (PLAIN_PORT, _Api, "plain server"),
                (PROXY_PORT, _Proxy, "proxy"),
                (OTHER_PROXY_PORT, _Proxy, "other proxy"),
            ):
                server = self._start(port, handler, label, context if port == TLS_PORT else None)
                stack.callback(server.server_close)
                stack.callback(server.shutdown)
            yield self

    def _start(
        self, port: int, handler: type[BaseRequestHandler], label: str, context: ssl.SSLContext | None
    ) -> _Server:
        def start() -> _Server:
            server = _Server(port, handler, self.witness, label)
            if context is not None:
                # The handshake is made by the first read, in the connection's own thread.
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            # Threads are in the namespace of whoever starts them.
            threading.Thread(target=server.serve_forever, name=label, daemon=True).start()
            return server

        return self.netns.call(start)
