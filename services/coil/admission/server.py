"""Answers the API server's reviews over HTTPS: one path, one judge.

Everything that can come over the network is bounded: connections, requests at work and in line, the size of a body,
the time for all of a request. What cannot be read is refused with a sentence; a judge that fails costs its own
request only. Every refusal of ours refuses the change (`failurePolicy: Fail`), so none is silent.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.typing import FilteringBoundLogger

from coil.admission.review import (
    AdmissionRequest,
    Allowed,
    Denied,
    Invalid,
    ReviewError,
    Unjudged,
    Verdict,
    decode_review,
    encode_review,
)
from coil.admission.serving_context import ServingContext
from coil.runtime.flag import Endpoint
from coil.runtime.http_server import ListenError


class AdmissionMetrics:
    """One per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reviews = Counter(
            "coil_admission_reviews",
            "Reviews by path and answer: allowed, invalid, denied, unjudged, or error when there was none.",
            ["path", "answer"],
            registry=registry,
        )
        self.seconds = Histogram(
            "coil_admission_review_seconds",
            "How long an answer took, from the request's first line on.",
            ["path"],
            registry=registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2.0, 8.0),
        )
        self.certificate_end = Gauge(
            "coil_admission_certificate_end_timestamp_seconds",
            "When the certificate that is served ends, in seconds since 1970; 0 before there is one.",
            registry=registry,
        )


Judge: TypeAlias = Callable[[AdmissionRequest], Awaitable[Verdict]]
"""Raises ReviewError for an object that cannot be read. Cancelled when the time for the request is over."""

JSON = "application/json"
_IDLE_SECONDS = 120.0  # longer than the API server keeps an idle connection: it is the one to close it
_HANDSHAKE_SECONDS = 5.0
_SHUTDOWN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ReviewLimits:
    """`body` in bytes: the API server takes documents of 3 MiB, and a review holds the old one as well.

    `seconds` for a request, less than the `timeoutSeconds` of the webhooks; `line` is how many may wait for a turn.
    """

    body: int = 7 * 1024 * 1024
    seconds: float = 8.0
    at_work: int = 8
    line: int = 64
    connections: int = 256


DEFAULT_LIMITS = ReviewLimits()


class _RequestLimiter:
    """Where one path's requests are judged; the limits are common to all paths."""

    def __init__(self, *, limits: ReviewLimits, metrics: AdmissionMetrics, log: FilteringBoundLogger) -> None:
        self._limits = limits
        self._turn = asyncio.Semaphore(limits.at_work)
        self._present = 0
        self._metrics = metrics
        self._log = log

    async def answer(self, judge: Judge, request: web.Request) -> web.Response:
        if self._present >= self._limits.at_work + self._limits.line:
            return self._refuse(request, 503, "too many reviews at once; try again")
        self._present += 1
        try:
            with self._metrics.seconds.labels(request.path).time():
                async with asyncio.timeout(self._limits.seconds), self._turn:
                    return await self._judge(judge, request)
        except TimeoutError:
            return self._refuse(request, 503, f"no answer within {self._limits.seconds:g} s; try again")
        finally:
            self._present -= 1

    async def _judge(self, judge: Judge, request: web.Request) -> web.Response:
        if request.content_type != JSON:
            return self._refuse(request, 415, f"a body of type {JSON} is expected")
        try:
            review = decode_review(await request.read())
            verdict = await judge(review)
        except ReviewError as error:
            return self._refuse(request, 400, str(error))
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(request, 413, f"a review of more than {self._limits.body} bytes is not read")
        except Exception as error:
            self._log.error("a review failed", path=request.path, exc_info=error)
            return self._refuse(request, 500, "the review failed; the log of the webhook's server says why")
        self._metrics.reviews.labels(request.path, _name(verdict)).inc()
        if not isinstance(verdict, Allowed):
            self._log.info("refused", path=request.path, name=review.name, reason=_reason(verdict))
        return web.Response(body=encode_review(review, verdict), content_type=JSON)

    def _refuse(self, request: web.Request, status: int, text: str) -> web.Response:
        self._metrics.reviews.labels(request.path, "error").inc()
        self._log.warning("a request was not answered", path=request.path, status=status, error=text)
        return web.Response(status=status, text=text + "\n")


class _OverLimit(asyncio.Protocol):
    """What a connection gets that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


@asynccontextmanager
async def serve_reviews(
    endpoint: Endpoint,
    judges: Mapping[str, Judge],
    *,
    serving: ServingContext,
    metrics: AdmissionMetrics,
    log: FilteringBoundLogger,
    limits: ReviewLimits = DEFAULT_LIMITS,
) -> AsyncIterator[Endpoint]:
    """Answer POSTs to the paths in `judges`; yields the endpoint with the port that was bound.

    An empty host is every address of the machine. Left, also by cancellation: no new connection, two seconds for
    running requests, then all are closed. Raises ListenError.
    """
    desk = _RequestLimiter(limits=limits, metrics=metrics, log=log)
    application = web.Application(client_max_size=limits.body)
    for path, judge in judges.items():
        application.router.add_post(path, _handler(desk, judge))
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        auto_decompress=False,
        keepalive_timeout=_IDLE_SECONDS,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    try:
        server = await _listen(runner, endpoint, serving, limits.connections)
        try:
            host, port = server.sockets[0].getsockname()[:2]
            yield Endpoint(host, port)
        finally:
            server.close()
    finally:
        await runner.cleanup()


def _handler(desk: _RequestLimiter, judge: Judge) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        return await desk.answer(judge, request)

    return handle


async def _listen(
    runner: web.AppRunner, endpoint: Endpoint, serving: ServingContext, connections: int
) -> asyncio.Server:
    aiohttp_server = runner.server
    if aiohttp_server is None:
        raise RuntimeError("the runner is not set up")

    def greet() -> asyncio.Protocol:
        return aiohttp_server() if len(aiohttp_server.connections) < connections else _OverLimit()

    try:
        return await asyncio.get_running_loop().create_server(
            greet,
            endpoint.host or None,
            endpoint.port,
            ssl=serving.context,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
        )
    except OSError as error:
        raise ListenError(f"cannot listen on {endpoint}: {error.strerror or error}") from error


def _name(verdict: Verdict) -> str:
    return type(verdict).__name__.lower()


def _reason(verdict: Invalid | Denied | Unjudged) -> str:
    match verdict:
        case Invalid(errors):
            return "; ".join(str(error) for error in errors)
        case Denied(reason) | Unjudged(reason):
            return reason
