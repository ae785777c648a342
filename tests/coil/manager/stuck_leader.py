"""A leader whose event loop gets stuck, run as a process of its own: the watchdog must end it."""

import asyncio
import sys
import time

import structlog
from prometheus_client import CollectorRegistry

from coil.kube.lease_lock import Lease
from coil.manager.claim import LeaderTiming, LeaseClaim, boot_clock, new_identity
from coil.manager.election import LeaderElector, Watchdog
from coil.reconcile.metric import ReconcileMetrics
from tests.coil.manager.lease_server import LeaseServer

TIMING = LeaderTiming(lease=2, renew=1.0, grace=0.4, retry=0.2, call=0.3)


class MemoryLock:
    """The server of the tests without a network."""

    def __init__(self) -> None:
        self._server = LeaseServer()

    async def read(self) -> Lease | None:
        return self._server.read()

    async def create(self, lease: Lease, /) -> Lease:
        return self._server.create(lease)

    async def replace(self, lease: Lease, /) -> Lease:
        return self._server.replace(lease)


async def lead() -> None:
    sys.stdout.write("leading\n")
    sys.stdout.flush()
    time.sleep(3600)  # noqa: ASYNC251 - the misbehaviour under test


async def main() -> None:
    elector = LeaderElector(
        "stuck",
        LeaseClaim(MemoryLock(), identity=new_identity(), timing=TIMING),
        watchdog=Watchdog(clock=boot_clock),
        metrics=ReconcileMetrics(CollectorRegistry()),
        log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
    )
    await elector.run(lead)


if __name__ == "__main__":
    asyncio.run(main())
