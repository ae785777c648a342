"""Has the real API server answer 429 to everybody but administrators, by taking all the places it has for requests.

With `FLAGS` it works on so many requests at a time and refuses the rest (`Retry-After: 1`). A write takes its place
while its body is awaited, so a body that does not come holds one. A list for a revision of the future holds one until
the API server gives up waiting for it, after three seconds. Neither costs anybody anything.
"""

import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from coil.kube.transport import client_context
from integration.apiserver.bare_node import GROUP_PATH
from integration.cluster.control_plane import ControlPlane

READS, WRITES = 8, 6
FLAGS = (
    f"--max-requests-inflight={READS}",
    f"--max-mutating-requests-inflight={WRITES}",
    "--enable-priority-and-fairness=false",  # which would queue them instead
)

_FUTURE = 2**62
_WAIT = 2.9  # seconds that a list for the future holds its place
_TIMEOUT = 5.0
# Everybody who is authenticated may ask this (the role system:basic-user).
_WRITE_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_READ_PATH = f"{GROUP_PATH}/addressblocks?resourceVersion={_FUTURE}"


class Overload:
    """`token_file` is of a service account that may list address blocks."""

    def __init__(self, plane: ControlPlane, token_file: Path) -> None:
        self._plane = plane
        self._token = token_file.read_text().strip()
        self._context = client_context(plane.credentials.authority.certificate)

    def last(self, seconds: float) -> None:
        """Take the places for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            round_ends = time.monotonic() + min(left, _WAIT)
            with ExitStack() as taken:
                # Another fault may have taken the API server away; then there is nothing to overload.
                with suppress(OSError):
                    self._take_places(taken)
                time.sleep(max(0.0, round_ends - time.monotonic()))

    def _take_places(self, stack: ExitStack) -> None:
        for _ in range(WRITES):
            self._send(stack, f"POST {_WRITE_PATH}", "Content-Type: application/json\r\nContent-Length: 1000")
        for _ in range(READS):
            self._send(stack, f"GET {_READ_PATH}", "Accept: application/json")

    def _send(self, stack: ExitStack, request: str, headers: str) -> None:
        address = self._plane.address
        raw = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6)
        # Wrapped before it connects: wrapping a socket that is being reset loses its file descriptor.
        connection = stack.enter_context(self._context.wrap_socket(raw, server_hostname=str(address)))
        connection.settimeout(_TIMEOUT)
        connection.connect((str(address), self._plane.port))
        head = f"{request} HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {self._token}\r\n{headers}\r\n\r\n"
        connection.sendall(head.encode())
