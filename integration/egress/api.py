"""The tests' own way to the API server: one connection that stays, as administrator. kubectl is slow there.

Knows no kinds: paths and documents are the API's own.
"""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any, Protocol

from coil.kube.transport import client_context

_SECONDS = 60.0
_MERGE_PATCH = "application/merge-patch+json"

Document = dict[str, Any]


class Access(Protocol):
    """Where the API server is, and the administrator's identity."""

    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def authority(self) -> Path: ...
    @property
    def admin_certificate(self) -> Path: ...
    @property
    def admin_key(self) -> Path: ...


class ApiError(Exception):
    """The API server refused; the message is its own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """Not for several threads at once."""

    def __init__(self, access: Access) -> None:
        context = client_context(Path(access.authority))
        context.load_cert_chain(access.admin_certificate, access.admin_key)
        self._connection = http.client.HTTPSConnection(access.address, access.port, timeout=_SECONDS, context=context)

    def get(self, path: str) -> Document:
        """An object or a list. Raises ApiError."""
        return self._call("GET", path)

    def find(self, path: str) -> Document | None:
        """An object, or None where there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return None

    def items(self, path: str) -> list[Document]:
        """What is in a list."""
        items: list[Document] = self.get(path)["items"]
        return items

    def create(self, path: str, document: Document) -> Document:
        """Raises ApiError."""
        return self._call("POST", path, document)

    def patch(self, path: str, document: Document) -> Document:
        """A merge patch (RFC 7386). Raises ApiError."""
        return self._call("PATCH", path, document, kind=_MERGE_PATCH)

    def delete(self, path: str, *, grace: int | None = None) -> None:
        """Raises ApiError; what is not there is fine."""
        options: Document = {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            self._call("DELETE", path, options)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def close(self) -> None:
        self._connection.close()

    def _call(self, method: str, path: str, document: Document | None = None, *, kind: str = "") -> Document:
        body = None if document is None else json.dumps(document)
        try:
            answer = self._exchange(method, path, body, kind)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            # The server closes what was idle for long; nothing was done then.
            answer = self._exchange(method, path, body, kind)
        status, text = answer
        if status >= http.client.BAD_REQUEST:
            raise ApiError(status, text)
        parsed: Document = json.loads(text)
        return parsed

    def _exchange(self, method: str, path: str, body: str | None, kind: str) -> tuple[int, str]:
        try:
            self._connection.request(method, path, body, {"Content-Type": kind or "application/json"})
            response = self._connection.getresponse()
            return response.status, response.read().decode()
        except BaseException:
            # Whoever cleans up after an interruption does not get the other half of this answer.
            self._connection.close()
            raise
