"""Holds back what may come from a pod that has just started, until the kernel has the pod.

As long as the node's pods are known, an element of a set that expires lets unknown sources pass (`coil.eip.eip_table`).
It is deleted as soon as the API server tells of a pod that a policy selects and that has no address yet, and comes
again when the pod's address is in the kernel. It is not refreshed while the API server cannot be watched, and of course
not when this process has died: then it expires, and unknown sources are held back as well.

What this cannot see is a pod that starts before the API server has told the agent of it. Kubelet has a sandbox to make
after it was told, which takes longer than the way of an event.
"""

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from coil.kube.errors import ApiError
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Tables, bounded, sentence
from coil_egress_agent.eip.metric import NodeMetrics
from coil_egress_agent.eip.node_pods import NodePods

PASS_SECONDS: Final = 15.0
"""How long the kernel lets unknown sources pass once it was told to."""
REFRESH_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 1.0


class Watched(Protocol):
    """What is asked of a cache."""

    @property
    def synced(self) -> bool: ...

    @property
    def last_error(self) -> ApiError | None:
        """Why it is not up to date."""
        ...


class PodHold:
    """Run `run` in one task; the rest is synchronous."""

    def __init__(
        self,
        pods: NodePods,
        tables: Tables,
        *,
        caches: Collection[Watched],
        metrics: NodeMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._pods = pods
        self._tables = tables
        self._caches = caches
        self._metrics = metrics
        self._log = log
        self._entered: int | None = None
        self._entering = asyncio.Event()
        self._changed = asyncio.Event()
        pods.on_change(self._changed.set)

    def enter(self, version: int) -> None:
        """The kernel has the node's pods as they were at that version."""
        self._entered = version
        self._changed.set()
        self._entering.set()
        self._entering = asyncio.Event()

    async def wait_entered(self, version: int) -> None:
        """Return once the kernel has the node's pods as they were at that version, or later."""
        while self._entered is None or self._entered < version:
            entering = self._entering
            await entering.wait()

    async def run(self) -> None:
        """Tell the kernel whether unknown sources may pass, until cancelled. Then that expires."""
        passing = True  # a predecessor may have let them
        while True:
            self._changed.clear()
            may_pass = self._may_pass()
            self._metrics.set_awaited(self._pods.awaited)
            pause = REFRESH_SECONDS
            if may_pass or passing:
                try:
                    await bounded(self._tables.let_pass(PASS_SECONDS if may_pass else 0.0))
                    passing = may_pass
                except KERNEL_ERRORS as error:
                    # Before anything was entered, there may be no tables yet.
                    report = self._log.debug if self._entered is None else self._log.warning
                    report("whether unknown sources may pass was not told", error=sentence(error))
                    pause = RETRY_SECONDS
            await self._wait(pause)

    def _may_pass(self) -> bool:
        healthy = all(cache.synced and cache.last_error is None for cache in self._caches)
        return healthy and not self._pods.awaited and self._entered is not None and self._entered >= self._pods.settled

    async def _wait(self, pause: float) -> None:
        """For a change, so long at most."""
        try:
            async with asyncio.timeout(pause):
                await self._changed.wait()
        except TimeoutError:
            pass
