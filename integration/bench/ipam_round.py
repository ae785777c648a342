"""One round of the main scale figure: every node wants a block, and all requests are answered as fast as can be.

Both sides begin with the same store: the requests are there, the side is running and connected, and has read whatever
it wants to read. A watch sees the last answer of either. So the time is that of 3 writes for each node, and of what the
side does between them, which on ours is the whole controller: its queue, its caches that follow each write, its logs,
metrics, status writes and Events.
"""

import asyncio
import sys
import time
from dataclasses import dataclass

from coil.crd.names import PoolName
from coil_ipam_controller.block_request_reconciler import WORKERS
from integration.bench.ipam_stage import CONTROLLER, Stage
from integration.bench.process_state import resident_megabytes

_STOP_SECONDS = 20.0
_CONFIRM_SECONDS = 1.0
"""For the controller's watch to bring the last requests, before it may work."""


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds from the lease to the last answer; megabytes at most by then, and after it."""

    seconds: float
    peak_mb: float
    rss_mb: float


async def take_our_round(stage: Stage, pool: PoolName, subnet: str) -> Round:
    """A controller that has just started, and holds the lease from the moment on that is the beginning."""
    await stage.add_pool(pool, subnet)
    controller, _ = await stage.start_controller()
    try:
        await stage.add_requests(pool)
        await asyncio.sleep(_CONFIRM_SECONDS)
        async with stage.answers(pool) as answered:
            began = await stage.hand_over()
            seconds = await answered - began
        peak, rss = (resident_megabytes(controller.pid, field) for field in ("VmHWM", "VmRSS"))
    finally:
        await asyncio.to_thread(controller.stop, timeout=_STOP_SECONDS)
    await stage.hold_lease()
    await stage.remove_requests()
    return Round(seconds, peak, rss)


async def take_peer_round(stage: Stage, pool: PoolName, subnet: str) -> float:
    """The bare client's seconds, with as many connections as the controller has workers."""
    await stage.add_pool(pool, subnet)
    await stage.add_requests(pool)
    kubeconfig = await asyncio.to_thread(stage.plane.kubeconfig_for, CONTROLLER)
    command = ["-m", "integration.bench.ipam_peer", str(kubeconfig), pool, str(WORKERS)]
    peer = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert peer.stdin is not None
        assert peer.stdout is not None
        if (await peer.stdout.readline()).strip() != b"ready":
            raise RuntimeError(f"the peer ended with code {await peer.wait()}")
        await asyncio.sleep(_CONFIRM_SECONDS)
        async with stage.answers(pool) as answered:
            began = time.perf_counter()
            peer.stdin.write(b"\n")
            seconds = await answered - began
        await peer.wait()
    finally:
        if peer.returncode is None:
            peer.kill()
            await peer.wait()
    await stage.remove_requests()
    return seconds
