"""One HTTPS request at a time to a component, with a certificate or a token: for what kubectl is too slow for."""

from __future__ import annotations

import http.client
from dataclasses import dataclass, field
from pathlib import Path

from coil.kube.transport import client_context
from integration.cluster.pki import KeyPair

_TIMEOUT = 60.0  # seconds
_READY_TIMEOUT = 5.0  # seconds; who does not answer by then is asked again


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that serves HTTPS, the authority it is checked against, and the identity or token shown to it."""

    address: str
    port: int
    authority: Path
    identity: KeyPair | None = None
    token: str = field(default="", repr=False)

    def request(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float = _TIMEOUT
    ) -> tuple[int, bytes]:
        """Status and body of the answer. Raises OSError or http.client.HTTPException when there is none.

        A body is JSON, that of a PATCH a merge patch (RFC 7396).
        `timeout` is for connecting, and for each wait on the socket.
        """
        context = client_context(self.authority)
        if self.identity is not None:
            context.load_cert_chain(self.identity.certificate, self.identity.key)
        headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        connection = http.client.HTTPSConnection(self.address, self.port, timeout=timeout, context=context)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def is_ready(self, path: str) -> bool:
        """Whether ``path`` answers 200."""
        try:
            status, _ = self.request("GET", path, timeout=_READY_TIMEOUT)
        except (OSError, http.client.HTTPException):
            return False
        return status == 200
