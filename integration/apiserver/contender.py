"""A process that contends for a Lease and writes down when it is at work; run by the tests of the election.

    python -m integration.apiserver.contender KUBECONFIG NAMESPACE NAME LEASE_SECONDS DIARY

The diary's lines are `<seconds> <word>` in the clock of the machine, which all processes share: `begin`, `beat`
some fifty times a second while at work and holding the Lease, `end`. Ends on SIGTERM as a service does.
"""

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TextIO

from coil.kube.client import KubeClient
from coil.kube.lease_lock import LeaseLock
from coil.manager.claim import LeaderTiming, LeaseClaim, boot_clock, new_identity
from coil.manager.election import LeaderElector, Watchdog
from coil.reconcile.metric import ReconcileMetrics
from coil.runtime.flag import Endpoint
from coil.runtime.process import Process, run
from coil.runtime.settings import FrameSettings

BEAT_SECONDS = 0.02
ANY_PORT = Endpoint("127.0.0.1", 0)


def timing_of(lease: int) -> LeaderTiming:
    """About the usual proportions, on a lease of `lease` seconds."""
    return LeaderTiming(lease=lease, renew=lease * 0.6, grace=lease * 0.2, retry=lease * 0.1, call=lease * 0.25)


async def assemble(arguments: list[str], page: TextIO, process: Process) -> None:
    kubeconfig, namespace, name, lease = arguments
    client = await process.stack.enter_async_context(KubeClient.connect(Path(kubeconfig)))
    watchdog = Watchdog(clock=boot_clock)
    process.stack.callback(watchdog.close)
    elector = LeaderElector(
        name,
        LeaseClaim(
            LeaseLock(client=client, namespace=namespace, name=name),
            identity=new_identity(),
            timing=timing_of(int(lease)),
        ),
        watchdog=watchdog,
        metrics=ReconcileMetrics(process.registry),
        log=process.log,
    )
    process.spawn("election", elector.run(lambda: work(elector, page)))


async def work(elector: LeaderElector, page: TextIO) -> None:
    page.write(f"{boot_clock():.4f} begin\n")
    try:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = boot_clock()
            if elector.holds_lease():
                page.write(f"{now:.4f} beat\n")
    finally:
        await asyncio.sleep(BEAT_SECONDS)
        page.write(f"{boot_clock():.4f} end\n")


def main() -> int:
    settings = FrameSettings(metrics_addr=ANY_PORT, health_addr=ANY_PORT)
    *arguments, diary = sys.argv[1:]
    with Path(diary).open("a", buffering=1) as page:
        return run(partial(assemble, arguments, page), name="contender", settings=settings)


if __name__ == "__main__":
    sys.exit(main())
