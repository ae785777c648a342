"""Answers the API server's reviews over HTTPS: one handler for each path.

Everything that can come over the network is bounded: connections, requests at work and in line, the size of a body,
the time for a request to arrive and to be answered. Anybody in the cluster may connect, so nobody can use up a bound
alone (`coil.admission.listener`, `coil.admission.fair_semaphore`). What cannot be read is refused with a sentence; a
handler that fails costs its own request only. Every refusal of ours refuses the change (`failurePolicy: Fail`), so none
is silent.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.typing import FilteringBoundLogger

from coil.admission.certificate import CertificateError, KeyPair
from coil.admission.fair_semaphore import FairSemaphore, OverloadedError
from coil.admission.listener import Dropped, Listener
from coil.admission.review import (
    AdmissionRequest,
    Allowed,
    Denied,
    Invalid,
    ReviewError,
    Unavailable,
    Verdict,
    decode_review,
    encode_review,
)
from coil.runtime.flag import Endpoint


class ServingContext:
    """The TLS of a server whose certificate is replaced while it runs.

    The listening context never changes; with each handshake it hands over to the context of the newest certificate. So
    connections that are open go on undisturbed, the next one sees the new certificate, and a pair that cannot be used
    never gets in the way of the one that can. (Loading a pair into a context that has one already would leave the old
    one there beside it, when their keys are of different kinds.)

    TLS 1.2 and newer. With `client_ca`, a file of authorities, only clients that have a certificate of one of them
    get through the handshake; it is read with each `load`. Until the first `load` every handshake fails.
    """

    def __init__(self, *, client_ca: Path | None = None) -> None:
        self.context = _new_context()
        self.context.sni_callback = self._hand_over
        if client_ca is not None:
            # Whether a certificate is asked for, the handshake takes from here; whom to trust, from the newest.
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._client_ca = client_ca
        self._loaded: tuple[KeyPair, str] | None = None
        self._newest: ssl.SSLContext | None = None

    @property
    def loaded(self) -> bool:
        """Whether there is a certificate to show."""
        return self._newest is not None

    def load(self, pair: KeyPair) -> bool:
        """Show this certificate from the next handshake on; False if it is the one that is shown already, and clients'
        authorities are those of before.

        Raises CertificateError when it or the authorities cannot be used, and goes on with those before.
        """
        authorities = self._read_client_ca()
        if (pair, authorities) == self._loaded:
            return False
        context = _new_context()
        try:
            with _in_memory(pair) as path:
                # A password that fits nothing, or OpenSSL would ask for one on the terminal.
                context.load_cert_chain(path, password="")
        except (ssl.SSLError, ValueError, OSError) as error:
            raise CertificateError(f"the certificate cannot be served: {error}") from error
        if self._client_ca is not None:
            try:
                context.load_verify_locations(cadata=authorities)
            except (ssl.SSLError, ValueError) as error:
                raise CertificateError(
                    f"authorities of clients in {self._client_ca} cannot be used: {error}"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        self._newest, self._loaded = context, (pair, authorities)
        return True

    def _read_client_ca(self) -> str:
        if self._client_ca is None:
            return ""
        try:
            return self._client_ca.read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            raise CertificateError(f"authorities of clients in {self._client_ca} cannot be read: {error}") from error

    def _hand_over(self, tls: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        """Called in each handshake, whether the client names a server or not."""
        if self._newest is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        tls.context = self._newest
        return None


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@contextmanager
def _in_memory(pair: KeyPair) -> Iterator[str]:
    """A path to the pair, since OpenSSL's wrapper reads files only; the key touches no disk."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pair.certificate.rstrip() + b"\n" + pair.key)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


class AdmissionMetrics:
    """One per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reviews = Counter(
            "coil_admission_reviews",
            "Reviews by path and answer: allowed, invalid, denied, unjudged, or error if there was no answer.",
            ["path", "answer"],
            registry=registry,
        )
        self.seconds = Histogram(
            "coil_admission_review_seconds",
            "Time until the answer.",
            ["path"],
            registry=registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2.0, 8.0),
        )
        self.dropped = Counter(
            "coil_admission_dropped_connections",
            "Connections that were closed from this side: crowded (idle, while too many were open) or slow (a request "
            "that did not arrive in time).",
            ["reason"],
            registry=registry,
        )
        for reason in Dropped:
            self.dropped.labels(reason.value)
        self.certificate_end = Gauge(
            "coil_admission_certificate_end_timestamp_seconds",
            "When the serving certificate expires, in seconds since 1970; 0 if there is none yet.",
            registry=registry,
        )


AdmissionHandler: TypeAlias = Callable[[AdmissionRequest], Awaitable[Verdict]]
"""Raises ReviewError for an object that cannot be read. Cancelled when the time for the request is over."""

JSON = "application/json"
_IDLE_SECONDS = 120.0  # longer than the API server keeps an idle connection: it is the one to close it
_SHUTDOWN_SECONDS = 2.0
_SHARE: Final = 4
"""The part of the connections that one source may have where all are taken: a quarter."""
_SMALL_BODY: Final = 256 * 1024
"""Bytes. Whoever sends less takes nobody's turn by being slow; all connections together may send as much."""


@dataclass(frozen=True, slots=True)
class ReviewLimits:
    """`body` in bytes: the API server takes documents of 3 MiB, and a review holds the old one as well.

    `arrival_seconds` for a request to arrive, `seconds` for its answer, together less than the `timeoutSeconds` of the
    webhooks allow for what usually happens; `queue_length` is how many may wait besides those in flight.
    """

    body: int = 7 * 1024 * 1024
    arrival_seconds: float = 5.0
    seconds: float = 8.0
    max_in_flight: int = 8
    queue_length: int = 64
    connections: int = 256


DEFAULT_LIMITS = ReviewLimits()


class _RequestLimiter:
    """Reviews requests within the limits, which are common to all paths."""

    def __init__(
        self, listener: Listener, *, limits: ReviewLimits, metrics: AdmissionMetrics, log: FilteringBoundLogger
    ) -> None:
        self._listener = listener
        self._limits = limits
        self._in_flight = FairSemaphore(limits.max_in_flight, queue_length=limits.queue_length)
        self._large_bodies = FairSemaphore(limits.max_in_flight, queue_length=limits.queue_length)
        self._metrics = metrics
        self._log = log

    @web.middleware
    async def watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Around every request, whether or not there is a handler for it."""
        connection = self._listener.connection(request)
        try:
            return await handler(request)
        finally:
            if connection is not None:
                connection.answered()

    async def answer(self, handler: AdmissionHandler, request: web.Request) -> web.Response:
        if request.content_type != JSON:
            return self._refuse(request, 415, f"a body of type {JSON} is expected")
        connection = self._listener.connection(request)
        if connection is None:
            return self._refuse(request, 503, "the connection is closed")
        try:
            with self._metrics.seconds.labels(request.path).time():
                async with AsyncExitStack() as stack:
                    if (request.content_length or self._limits.body) > _SMALL_BODY:
                        await stack.enter_async_context(self._large_bodies.slot(connection.source))
                    body = await request.read()
                    connection.arrived()
                    async with asyncio.timeout(self._limits.seconds), self._in_flight.slot(connection.source):
                        return await self._review(handler, request, body)
        except OverloadedError:
            return self._refuse(request, 503, "too many reviews at once; try again")
        except TimeoutError:
            return self._refuse(request, 503, f"no answer within {self._limits.seconds:g} s; try again")
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(request, 413, f"a review of more than {self._limits.body} bytes is not read")

    async def _review(self, handler: AdmissionHandler, request: web.Request, body: bytes) -> web.Response:
        try:
            review = decode_review(body)
            verdict = await handler(review)
        except ReviewError as error:
            return self._refuse(request, 400, str(error))
        except Exception as error:
            self._log.error("a review failed", path=request.path, exc_info=error)
            return self._refuse(request, 500, "the review failed; the log of the webhook's server says why")
        self._metrics.reviews.labels(request.path, _answer_label(verdict)).inc()
        if not isinstance(verdict, Allowed):
            self._log.info("refused", path=request.path, name=review.name, reason=_reason(verdict))
        return web.Response(body=encode_review(review, verdict), content_type=JSON)

    def _refuse(self, request: web.Request, status: int, text: str) -> web.Response:
        self._metrics.reviews.labels(request.path, "error").inc()
        self._log.warning("a request was not answered", path=request.path, status=status, error=text)
        return web.Response(status=status, text=text + "\n")


@asynccontextmanager
async def serve_reviews(
    endpoint: Endpoint,
    handlers: Mapping[str, AdmissionHandler],
    *,
    serving: ServingContext,
    metrics: AdmissionMetrics,
    log: FilteringBoundLogger,
    limits: ReviewLimits = DEFAULT_LIMITS,
) -> AsyncIterator[Endpoint]:
    """Answer POSTs to the paths in `handlers`; yields the endpoint with the port that was bound.

    An empty host is every address of the machine. Left, also by cancellation: no new connection, two seconds for
    running requests, then all are closed. Raises ListenError.
    """
    listener = Listener(
        serving.context,
        limit=limits.connections,
        share=max(1, limits.connections // _SHARE),
        seconds=limits.arrival_seconds,
        dropped=lambda reason: metrics.dropped.labels(reason.value).inc(),
        log=log,
    )
    limiter = _RequestLimiter(listener, limits=limits, metrics=metrics, log=log)
    application = web.Application(client_max_size=limits.body, middlewares=[limiter.watch])
    for path, handler in handlers.items():
        application.router.add_post(path, _endpoint(limiter, handler))
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
        if runner.server is None:
            raise RuntimeError("the runner is not set up")
        async with listener.listen(runner.server, endpoint) as bound:
            yield bound
    finally:
        await runner.cleanup()
        await listener.close()


def _endpoint(limiter: _RequestLimiter, handler: AdmissionHandler) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        return await limiter.answer(handler, request)

    return handle


def _answer_label(verdict: Verdict) -> str:
    match verdict:
        case Allowed():
            return "allowed"
        case Invalid():
            return "invalid"
        case Denied():
            return "denied"
        case Unavailable():
            return "unjudged"


def _reason(verdict: Invalid | Denied | Unavailable) -> str:
    match verdict:
        case Invalid(errors):
            return "; ".join(str(error) for error in errors)
        case Denied(reason) | Unavailable(reason):
            return reason
