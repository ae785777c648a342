"""etcd's JSON gateway in memory, for one member: ranges of one revision, pages, users, and what goes wrong with them.

The answers are those of etcd 3.4 (etcd's documentation, "gRPC gateway"; api/etcdserverpb/rpc.proto).
"""

import base64
import ssl
from typing import Any

from aiohttp import web

Answer = dict[str, Any]


class EtcdGateway:
    """An asynchronous context manager that listens on 127.0.0.1. `url` is where, without a path."""

    def __init__(self, *, api: str = "/v3", tls: ssl.SSLContext | None = None) -> None:
        self.keys: dict[bytes, bytes] = {}
        self.revision = 10
        self.users: dict[str, str] = {}
        self.compactions = 0
        """So many times the next reads of an old revision meet a compaction."""
        self.questions: list[Answer] = []
        self.body: bytes | None = None
        """Every answer, if set."""
        self.url = ""
        self._tls = tls
        application = web.Application()
        application.router.add_post(f"{api}/kv/range", self._range)
        application.router.add_post(f"{api}/auth/authenticate", self._authenticate)
        self._runner = web.AppRunner(application)

    async def __aenter__(self) -> "EtcdGateway":
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _range(self, request: web.Request) -> web.Response:
        if self.body is not None:
            return web.Response(body=self.body)
        question = await request.json()
        self.questions.append(question)
        if self.users and request.headers.get("Authorization") not in {_token(user) for user in self.users}:
            return _refuse(400, "etcdserver: user name is empty")
        if int(question["revision"]) and self.compactions:
            self.compactions -= 1
            return _refuse(400, "etcdserver: mvcc: required revision has been compacted")
        first, end = base64.b64decode(question["key"]), base64.b64decode(question["range_end"])
        matching = sorted(
            (key, value) for key, value in self.keys.items() if first <= key and (key < end or end == b"\0")
        )
        page = matching[: question["limit"]]
        # Zero values and empty lists are left out; 64-bit numbers are text.
        answer: Answer = {"header": {"cluster_id": "1", "revision": str(self.revision)}}
        if page:
            answer["kvs"] = [_key_value(key, value) for key, value in page]
        if matching:
            answer["count"] = str(len(matching))
        if len(matching) > len(page):
            answer["more"] = True
        return web.json_response(answer)

    async def _authenticate(self, request: web.Request) -> web.Response:
        question = await request.json()
        if self.users.get(question["name"]) != question["password"]:
            return _refuse(400, "etcdserver: authentication failed, invalid user ID or password")
        return web.json_response({"header": {}, "token": _token(question["name"])})


def _token(user: str) -> str:
    return f"token-of-{user}"


def _refuse(status: int, words: str) -> web.Response:
    return web.json_response({"error": words, "message": words, "code": 3}, status=status)


def _key_value(key: bytes, value: bytes) -> Answer:
    found = {"key": base64.b64encode(key).decode(), "mod_revision": "3", "version": "1"}
    return found | ({"value": base64.b64encode(value).decode()} if value else {})
