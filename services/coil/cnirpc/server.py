"""The shell around coild's CNI service: socket, limits, health, reflection, errors, and an end in bounded time.

What a service must know about its calls:

* It raises `CniError`; anything else is logged here and reaches the runtime as INTERNAL.
* Its task is cancelled when the caller's deadline passes or the caller is gone. What must complete nevertheless
  (an address taken, a link half made) the service has to shield, or undo, itself.
* A plugin that is answered with TRY_AGAIN_LATER, or cut off, is run again by the runtime, first with DEL.

A request is one whole, uncompressed message of a size that a call can have (`coil.cnirpc.stream`). What cannot be read
is the caller's mistake; to grpclib alone it would be a defect of the service.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from google.protobuf import empty_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpclib.config import Configuration
from grpclib.events import RecvRequest, listen
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.health.check import ServiceCheck
from grpclib.health.service import Health
from grpclib.health.v1 import health_pb2
from grpclib.protocol import H2Protocol
from grpclib.reflection.service import ServerReflection
from grpclib.reflection.v1 import reflection_pb2
from grpclib.reflection.v1alpha import reflection_pb2 as reflection_alpha_pb2
from grpclib.server import Server
from prometheus_client import CollectorRegistry

from coil.cnirpc.call_gate import (
    CallGate,
    CallLimits,
    CallMetrics,
    CallRefusedError,
    MeasuredCall,
    answered_within,
    operation_of,
)
from coil.cnirpc.call_log import CallLog
from coil.cnirpc.descriptor import CNI_FILE_DESCRIPTOR
from coil.cnirpc.error import CniError, CniErrorCode, CniStatusCodec, grpc_error
from coil.cnirpc.listener import BACKLOG, Listener
from coil.cnirpc.messages import CniBase
from coil.cnirpc.stream import BoundedStream, CniCodec, GatheredTransport

if TYPE_CHECKING:
    from grpclib._typing import IServable, IServerMethodFunc


def with_reflection(services: Sequence["IServable"]) -> list["IServable"]:
    """The services, and the reflection services (v1, v1alpha) that describe them."""
    pool = DescriptorPool()
    # A file may be added only after those that it imports: cni.proto needs empty.proto.
    for module in (empty_pb2, health_pb2, reflection_pb2, reflection_alpha_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(CNI_FILE_DESCRIPTOR)
    return ServerReflection.extend(services, pool=pool)


log = logging.getLogger(__name__)

_HEALTH_SECONDS = 1.0  # how old an answer of the health service may be
_UNWIND_SECONDS = 1.0  # for cancelled handlers to unwind, twice
# Those that HTTP/2 begins with (RFC 9113, 6.9.2): a plugin's request fits, and no other has to be announced.
_WINDOWS = Configuration(http2_connection_window_size=0xFFFF, http2_stream_window_size=0xFFFF)


@asynccontextmanager
async def serve_cni(
    service: CniBase,
    *,
    path: Path,
    limits: CallLimits = CallLimits(),
    grace: float = 20.0,
    healthy: Callable[[], bool] = lambda: True,
    metrics: CallMetrics | None = None,
    call_log: CallLog | None = None,
) -> AsyncIterator[None]:
    """Serve `service` at the Unix socket `path` (root only) for as long as the block runs.

    Without `metrics` the calls are counted for nobody, and without `call_log` only defects are logged. `healthy`
    answers the standard health service; it must not block. Raises ListenError before anything is served when the path
    is not to be had, and OSError for a missing directory and the like.

    Leaving the block, by its end or by a cancellation, removes the socket file, refuses further calls, waits
    `grace` seconds for those at work, cancels the rest (their callers get TRY_AGAIN_LATER), and is over
    `grace` + 2 seconds later at the latest. A cancellation meanwhile cuts the waiting short, not the clean-up.
    """
    gate = CallGate(limits)
    logging.getLogger(Server.__module__).addFilter(_untraced)  # once, however often this is called

    async def check() -> bool:
        return not gate.closed and healthy()

    health = Health({service: [ServiceCheck(check, check_ttl=_HEALTH_SECONDS)]})
    server = _Server(with_reflection([service, health]), connections=limits.connections)
    _admit_through(
        gate,
        server,
        methods=service.__mapping__().keys(),
        metrics=metrics or CallMetrics(CollectorRegistry()),
        call_log=call_log,
    )
    with Listener(path) as listener:
        # asyncio listens anew, with a backlog of 100 if it is told none.
        await server.start(sock=listener.socket, backlog=BACKLOG)
        try:
            yield
        finally:
            listener.withdraw()
            gate.close()
            try:
                if left := await gate.wait_empty(grace):
                    log.warning("stopping with %d calls unanswered after %g s", left, grace)
            finally:
                await _close(server, gate)


def _untraced(record: logging.LogRecord) -> bool:
    """A line for a request that came when its deadline was over; to grpclib that is a failure, with a traceback.

    Of a handler's TimeoutError it never hears: see `_answer`.
    """
    if record.exc_info and isinstance(record.exc_info[1], TimeoutError):
        record.exc_info = None
        record.msg = "a request came when its deadline was over: coild or the node is overloaded"
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    return True


class _Server(Server):
    """grpclib's server leaves open connections to their clients when it is closed; this one ends them.

    A client that keeps its connection would otherwise go on asking a server that has stopped, though another may
    listen at the same path by then.
    """

    def __init__(self, handlers: Collection["IServable"], *, connections: int) -> None:
        super().__init__(handlers, codec=CniCodec(), status_details_codec=CniStatusCodec(), config=_WINDOWS)
        self._protocols: WeakKeyDictionary[H2Protocol, None] = WeakKeyDictionary()  # the oldest first
        self._connections = connections

    def _protocol_factory(self) -> H2Protocol:
        self._make_room()
        plain = super()._protocol_factory()
        protocol = _Protocol(plain.handler, plain.config, plain.h2_config)
        self._protocols[protocol] = None
        return protocol

    def hang_up(self) -> None:
        """Close every connection. What has been written is still sent."""
        for protocol in self._connected():
            protocol.processor.close("coild is stopping")

    def _make_room(self) -> None:
        """Close as many connections as are too many, of those on which nothing is asked the oldest.

        Calls are bounded by the gate, in number and in time, and so are connections with calls.
        """
        if len(self._protocols) < self._connections:
            return
        connected = self._connected()
        excess = max(0, len(connected) + 1 - self._connections)
        idle = [protocol for protocol in connected if not protocol.processor.streams][:excess]
        if idle:
            log.warning("of %d connections, %d on which nothing is asked are closed", len(connected), len(idle))
        for protocol in idle:
            protocol.processor.close("too many connections")

    def _connected(self) -> list[H2Protocol]:
        # The processor is there once the connection is made; an object outlives its connection by a while.
        made = [protocol for protocol in self._protocols if hasattr(protocol, "processor")]
        return [protocol for protocol in made if not protocol.connection.is_closing()]


class _Protocol(H2Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(GatheredTransport(cast(asyncio.Transport, transport)))


async def _close(server: _Server, gate: CallGate) -> None:
    # Server.close alone cancels handlers without a word to their callers, who would wait on.
    gate.expire()
    try:
        await gate.wait_empty(_UNWIND_SECONDS)
    finally:
        server.close()
        server.hang_up()
    # The bound is for clients that do not read what they asked for; nothing is lost when it passes.
    with suppress(TimeoutError):
        async with asyncio.timeout(_UNWIND_SECONDS):
            await server.wait_closed()
            await asyncio.sleep(0)  # a transport lets go of its socket in the turn after its close


def _admit_through(
    gate: CallGate, server: Server, *, methods: Iterable[str], metrics: CallMetrics, call_log: CallLog | None
) -> None:
    known = frozenset(methods)
    metrics.expect(known)

    async def answer(method: str, handler: "IServerMethodFunc", stream: Any) -> None:
        left = math.inf if stream.deadline is None else stream.deadline.time_remaining()
        bounded, call = BoundedStream(stream), MeasuredCall()
        try:
            with metrics.measure(method, call), answered_within(left):
                await _answer(gate, metrics, call, operation_of(method), partial(handler, cast(Any, bounded)))
        finally:
            if call_log is not None:
                call_log.write(method, bounded.request, call)

    async def on_request(event: RecvRequest) -> None:
        if event.method_name in known:
            event.method_func = partial(answer, event.method_name, event.method_func)

    listen(server, RecvRequest, on_request)


async def _answer(
    gate: CallGate, metrics: CallMetrics, call: MeasuredCall, operation: str, work: Callable[[], Awaitable[None]]
) -> None:
    try:
        await gate.run(work)
    except CniError as error:
        call.outcome, call.error = error.code.name, str(error)
        if isinstance(error, CallRefusedError):
            metrics.refused(error.refusal)
        raise grpc_error(error) from error
    except (GRPCError, StreamTerminatedError) as error:
        call.error = str(error)
        raise
    except Exception as error:
        log.exception("%s failed", operation)
        internal = CniError(CniErrorCode.INTERNAL, "coild failed", f"{type(error).__name__}: {error}")
        call.outcome, call.error = internal.code.name, str(internal)
        raise grpc_error(internal) from error
