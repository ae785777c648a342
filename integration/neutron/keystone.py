"""A small Keystone for tests, in front of Neutron and Octavia, which run without authentication behind it.

    with Keystone.start({"network": neutron.endpoint}) as keystone:
        keystone.write_clouds(path)
        …
        keystone.revoke_tokens()

It gives tokens for an application credential (Identity API v3), and passes on what comes with a valid one. A token is
valid for a number of calls, since seconds are fewer calls on a slow machine. It says that it is valid for an hour, so
that clients find its end out in the middle of their work.
"""

import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import yaml

from integration.neutron.front import FrontHandler, serving
from integration.neutron.neutron_server import PROJECT, account_headers

CLOUD: Final = "stage"
_VALID: Final = 3600.0
_DOMAIN: Final = {"id": "default", "name": "Default"}
_PROJECT: Final = {"id": PROJECT, "name": "stage", "domain": _DOMAIN}
_USER: Final = "raven"


class Keystone:
    """Make one with `start`. `issued` counts tokens, `refused` the calls that came without a valid one.

    `roles` are those of the account in its project.
    """

    def __init__(self, backends: Mapping[str, str], *, token_calls: int) -> None:
        self._backends = {kind: urlsplit(url).netloc for kind, url in backends.items()}
        self._token_calls = token_calls
        self._lock = threading.Lock()
        self._tokens: dict[str, int] = {}
        self._secret = secrets.token_hex(8)
        self._away = False
        self.roles: tuple[str, ...] = ("member", "reader")
        self.issued = 0
        self.refused = 0

    @classmethod
    @contextmanager
    def start(cls, backends: Mapping[str, str], *, token_calls: int = 1 << 30) -> Iterator["Keystone"]:
        """Serving on 127.0.0.1 until the end of the context. `backends` are endpoints by type of service."""
        keystone = cls(backends, token_calls=token_calls)

        class Handler(_Handler):
            owner = keystone

        with serving(Handler, name="keystone") as url:
            keystone._url = url
            yield keystone

    _url = ""

    def write_clouds(self, path: Path) -> Path:
        """clouds.yaml with the credential as it is now."""
        auth = {
            "auth_url": f"{self._url}/v3",
            "application_credential_id": "raven",
            "application_credential_secret": self._secret,
        }
        cloud = {"auth_type": "v3applicationcredential", "auth": auth, "region_name": "one", "interface": "public"}
        path.write_text(yaml.safe_dump({"clouds": {CLOUD: cloud}}))
        return path

    def revoke_tokens(self) -> None:
        """None that was given is valid any more."""
        with self._lock:
            self._tokens.clear()

    def rotate(self) -> None:
        """Another secret from now on, as an administrator replaces it; tokens of the old one are revoked."""
        self._secret = secrets.token_hex(8)
        self.revoke_tokens()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Until the end of the context, it answers 503; tokens stay what they are."""
        self._away = True
        try:
            yield
        finally:
            self._away = False

    def authenticate(self, body: bytes) -> tuple[int, dict[str, Any], str]:
        """Status, document and token of an answer to `POST /v3/auth/tokens`."""
        if self._away:
            return 503, {"error": {"code": 503, "title": "Service Unavailable", "message": "away"}}, ""
        identity = msgspec.json.decode(body)["auth"]["identity"]
        if identity.get("application_credential", {}).get("secret") != self._secret:
            return 401, _UNAUTHORIZED, ""
        token = secrets.token_hex(16)
        with self._lock:
            self._tokens[token] = self._token_calls
            self.issued += 1
        return 201, {"token": self._describe(time.time())}, token

    def accepts(self, token: str | None) -> bool:
        """Whether the token is valid now."""
        with self._lock:
            left = self._tokens.get(token or "", 0)
            if left:
                self._tokens[token or ""] = left - 1
            else:
                self.refused += 1
            return left > 0

    def backend(self, kind: str) -> str | None:
        """Host and port of the service of that type."""
        return self._backends.get(kind)

    def versions(self) -> dict[str, Any]:
        """The answer to `GET /v3`."""
        links = [{"rel": "self", "href": f"{self._url}/v3/"}]
        return {"version": {"id": "v3.14", "status": "stable", "links": links, "media-types": []}}

    def _describe(self, now: float) -> dict[str, Any]:
        catalog = [
            {
                "id": kind,
                "type": kind,
                "name": kind,
                "endpoints": [
                    {
                        "id": kind,
                        "interface": "public",
                        "region": "one",
                        "region_id": "one",
                        "url": f"{self._url}/{kind}",
                    }
                ],
            }
            for kind in self._backends
        ]
        return {
            "methods": ["application_credential"],
            "user": {"id": _USER, "name": _USER, "domain": _DOMAIN},
            "project": _PROJECT,
            "roles": [{"id": role, "name": role} for role in self.roles],
            "issued_at": _date(now),
            "expires_at": _date(now + _VALID),
            "catalog": catalog,
        }


_UNAUTHORIZED: Final = {
    "error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}
}


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class _Handler(FrontHandler):
    owner: Keystone

    def handle_call(self, body: bytes) -> None:
        if self.path.rstrip("/") == "/v3":
            self.answer(200, msgspec.json.encode(self.owner.versions()))
        elif self.path == "/v3/auth/tokens":
            status, document, token = self.owner.authenticate(body)
            self.answer(status, msgspec.json.encode(document), {"X-Subject-Token": token} if token else {})
        else:
            self._pass_on(body)

    def _pass_on(self, body: bytes) -> None:
        kind, _, path = self.path.lstrip("/").partition("/")
        backend = self.owner.backend(kind)
        if backend is None:
            self.answer(404)
        elif not self.owner.accepts(self.headers.get("X-Auth-Token")):
            self.answer(401, msgspec.json.encode(_UNAUTHORIZED))
        else:
            found = self.ask(backend, f"/{path}", body, account_headers(_USER, self.owner.roles))
            self.answer(found.status, found.body, found.headers)
