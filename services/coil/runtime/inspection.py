"""`/ip-manager`: what a process holds at this moment, as JSON for `curl` and as a page for people.

In the flow: a service looks at itself (synchronously, at what it has in memory, so that the picture is of one moment)
and describes what it saw, `coil.page` makes text of that, `visitor` decides who gets it. It changes nothing and asks
nobody.

Looking must not disturb the work. All but the look itself is done in a thread, one visitor at a time, and who comes
while many wait is sent away. And a port that is taken ends no process: that one can be looked at is not worth a node's
network. It is tried again, for it may be the predecessor's.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiohttp import hdrs, web
from structlog.typing import FilteringBoundLogger

from coil.page.document import Document, render_json
from coil.page.frame import PATH, POLICY
from coil.page.query import Query, parse_query
from coil.reconcile.backoff import Backoff
from coil.runtime.flag import Endpoint
from coil.runtime.http_server import ListenError, Page, serve_pages
from coil.runtime.process import Process
from coil.runtime.visitor import guard

_HTML = ("text/html", "text/*")
_JSON = ("application/json", "application/*", "*/*")


def prefers_html(accept: str) -> bool:
    """True for a browser, which names HTML; False for curl, whose `*/*` means that anything will do, and for nonsense.

    Of the two that both are named, the one of greater weight, and HTML when they weigh the same.
    """
    weights = _parse(accept)
    html = _weight(weights, _HTML)
    return html > 0 and html >= _weight(weights, _JSON)


def _weight(weights: dict[str, float], names: tuple[str, ...]) -> float:
    return next((weights[name] for name in names if name in weights), 0.0)


def _parse(accept: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        try:
            weights[name] = float(weight)
        except ValueError:
            continue
    return weights


D = TypeVar("D", bound=Document)

WAITING = 16
"""Visitors whose answer may be under way at a time."""

LISTEN_BACKOFF = Backoff(base=1.0, cap=60.0, jitter=0.0)


@dataclass(frozen=True, slots=True)
class Inspection(Generic[D]):
    """What there is to see. `look` is called in the event loop's thread; what it returns, and `render`, in another."""

    look: Callable[[], Callable[[], D]]
    render: Callable[[D, Query], str]


class InspectionPages(Generic[D]):
    """The pages of one process, on however many ports."""

    def __init__(self, inspection: Inspection[D]) -> None:
        self._inspection = inspection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inspection")
        self._waiting = 0

    @property
    def pages(self) -> Mapping[str, Page]:
        return {"/": self._home, PATH: self._page}

    def close(self) -> None:
        """End the thread, after the text that it is making. Idempotent."""
        self._thread.shutdown(cancel_futures=True)

    async def _home(self, _request: web.Request) -> web.Response:
        return web.Response(status=302, headers={hdrs.LOCATION: PATH})

    async def _page(self, request: web.Request) -> web.Response:
        if self._waiting >= WAITING:
            raise web.HTTPServiceUnavailable(text="Too many visitors at once.\n", headers={hdrs.RETRY_AFTER: "1"})
        self._waiting += 1
        try:
            return await self._answer(request)
        finally:
            self._waiting -= 1

    async def _answer(self, request: web.Request) -> web.Response:
        html = prefers_html(request.headers.get(hdrs.ACCEPT, ""))
        query = parse_query(request.query.get("q", ""))
        describe, render = self._inspection.look(), self._inspection.render

        def make() -> str:
            return render(describe(), query) if html else render_json(describe())

        text = await asyncio.get_running_loop().run_in_executor(self._thread, make)
        answer = web.Response(text=text, content_type="text/html" if html else "application/json")
        answer.headers[hdrs.VARY] = hdrs.ACCEPT
        if html:
            answer.headers["Content-Security-Policy"] = POLICY
        return answer


def start_inspection(
    process: Process, inspection: Inspection[D], endpoints: Mapping[str, Endpoint | None], *, log: FilteringBoundLogger
) -> None:
    """Serve it on each of the named endpoints, but those that are None, until the process stops."""
    pages = InspectionPages(inspection)
    process.stack.callback(pages.close)
    for name, endpoint in endpoints.items():
        if endpoint is not None:
            process.spawn(name, keep_serving(endpoint, pages.pages, log=log))


async def keep_serving(
    endpoint: Endpoint, pages: Mapping[str, Page], *, log: FilteringBoundLogger, backoff: Backoff = LISTEN_BACKOFF
) -> None:
    """Serve pages to visitors of this machine, for ever; cancel it to stop. Logs where, and why not yet."""
    for attempt in itertools.count():
        try:
            async with serve_pages(endpoint, pages, middlewares=[guard(endpoint.host)]) as bound:
                log.info("inspection", url=f"http://{bound}{PATH}")
                await asyncio.get_running_loop().create_future()
        except ListenError as error:
            if attempt == 0:
                log.warning("no inspection for now, trying again", error=str(error))
        await asyncio.sleep(backoff.delay(attempt, lambda: 0.0))
