"""`/healthz` and `/readyz`: is this process worth keeping, and is it worth sending work to.

Both are sets of named checks. A check is a synchronous look at what is known already: it answers None when
all is well and otherwise a sentence saying what is wrong; one that raises counts as wrong. That the answer
comes at all shows that the event loop runs, since the pages are served by it: the kubelet's probe timeout
is the check for a stuck one.
"""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from aiohttp import web

Check: TypeAlias = Callable[[], str | None]


class ProbeChecks:
    """The named checks of one page."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        """Raises ValueError when there is a check of that name."""
        if name in self._checks:
            raise ValueError(f"there is a check named {name!r} already")
        self._checks[name] = check

    def failing(self) -> Mapping[str, str]:
        """What is wrong, by the name of the check; empty when all is well."""
        wrong: dict[str, str] = {}
        for name, check in self._checks.items():
            try:
                reason = check()
            except Exception as error:
                reason = f"the check failed: {type(error).__name__}: {error}"
            if reason is not None:
                wrong[name] = reason
        return MappingProxyType(wrong)

    async def page(self, _request: web.Request) -> web.Response:
        """200 or 503, and a JSON body `{"status": "ok" | "failing", "checks": {name: "ok" | reason}}`."""
        wrong = self.failing()
        body = {
            "status": "failing" if wrong else "ok",
            "checks": {name: wrong.get(name, "ok") for name in self._checks},
        }
        return web.Response(
            status=503 if wrong else 200,
            text=json.dumps(body, ensure_ascii=False) + "\n",
            content_type="application/json",
            headers={"Cache-Control": "no-store"},
        )
