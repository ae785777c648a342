"""The socket that the plugin calls: the last step of coild's start, and the first to be undone."""

import asyncio

from structlog.typing import FilteringBoundLogger

from coil.cnirpc.call_gate import CallLimits, CallMetrics
from coil.cnirpc.messages import CniBase
from coil.cnirpc.server import serve_cni
from coil.runtime.process import Process
from coild.model.keyed_executor import KeyedExecutor
from coild.settings import Settings

LIMITS = CallLimits(running=512, queued=0)
"""An ADD that waits for the API server costs a coroutine; what works on the kernel is bounded by its threads."""

GRACE = 3.0
"""Seconds that calls have to end after a stop was asked for."""


async def serve_plugin(
    service: CniBase, settings: Settings, process: Process, *, executor: KeyedExecutor, log: FilteringBoundLogger
) -> None:
    """Serve until the process stops; then what has begun comes to its end, within bounds."""
    process.stack.push_async_callback(_settle, executor, log)
    calls = CallMetrics(process.registry)
    await process.stack.enter_async_context(
        serve_cni(service, path=settings.socket, limits=LIMITS, grace=GRACE, metrics=calls)
    )
    process.add_readiness("socket", lambda: None if settings.socket.is_socket() else f"{settings.socket} is gone")


async def _settle(executor: KeyedExecutor, log: FilteringBoundLogger) -> None:
    try:
        async with asyncio.timeout(GRACE):
            await executor.settle()
    except TimeoutError:
        log.warning("stopping with operations under way; the next start recovers from the kernel")
