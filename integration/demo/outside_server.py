"""A host on the nodes' link, no part of the cluster, that says over HTTP who is asking. It knows no way to pods."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import AF_INET6, SO_BINDTODEVICE, SOL_SOCKET
from threading import Thread

from integration.cluster.family import host_in_url
from integration.cluster.network import Network


class _Answer(BaseHTTPRequestHandler):
    timeout = 5

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(self.client_address[0]).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: whoever asks says what was wrong."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _ServerOverIPv6(_Server):
    address_family = AF_INET6


_SERVERS = {4: _Server, 6: _ServerOverIPv6}


@contextmanager
def serve_outside(network: Network) -> Iterator[dict[int, str]]:
    """URLs by IP version, at this machine's addresses of the cluster's families on the link. They answer until the end
    of the block.
    """
    addresses = network.families.pick_texts(network.host4, network.host6)
    with ExitStack() as stack:
        yield {
            version: stack.enter_context(_served(version, address, network.host_link))
            for version, address in addresses.items()
        }


@contextmanager
def _served(version: int, address: str, link: str) -> Iterator[str]:
    with _SERVERS[version]((address, 0), _Answer) as server:
        # What is for a pod's own address would else leave by the machine's default route.
        server.socket.setsockopt(SOL_SOCKET, SO_BINDTODEVICE, link.encode())
        thread = Thread(target=server.serve_forever, name=f"outside {address}", daemon=True)
        thread.start()
        try:
            yield f"http://{host_in_url(ip_address(address))}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
