"""The frame of a process: it starts what a service is made of, watches it, and takes it apart again.

    def main() -> int:
        settings = parse_settings(Settings, sys.argv[1:], os.environ, program="coild", about=...)
        return run(partial(assemble, settings), name="coild", settings=settings)

    async def assemble(settings: Settings, process: Process) -> None:
        kube = await process.stack.enter_async_context(KubeClient.connect(...))
        process.spawn("nodes", informer.run())
        process.add_readiness("nodes", ...)

Invariants:
* `/healthz`, `/readyz` and `/metrics` answer before the service's own code runs and until it has stopped;
* a spawned task lives as long as the process: one that fails or just ends stops the process, exit code 1,
  with its name and reason in the log;
* whatever was entered on `stack` or spawned is taken apart in the reverse order, each task cancelled and
  awaited before the next step, so that a task may rely until its end on what was there before it;
* a stop, whatever its cause, ends within `stop_timeout` (see `stop`).
"""

import asyncio
import faulthandler
import gc
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from coil.runtime.http_server import Check, MetricsPage, ProbeChecks, make_registry, serve_pages
from coil.runtime.log import make_logger
from coil.runtime.settings import FrameSettings
from coil.runtime.stop import ExitCode, StopDeadline, stop_signals, task_position, thread_positions


class Process:
    """What a service's code gets from the frame. One per process, made by `run`.

    `stopping` is set once the process is to end, before anything is cancelled.
    """

    def __init__(
        self, name: str, *, log: FilteringBoundLogger, registry: CollectorRegistry, stop_timeout: float
    ) -> None:
        self.name = name
        self.log = log
        self.registry = registry
        self.stack = AsyncExitStack()
        self.stopping = asyncio.Event()
        self.failure: str | None = None
        self.liveness = ProbeChecks()
        self.readiness = ProbeChecks()
        self.deadline = StopDeadline(name, timeout=stop_timeout, unstopped=self.unstopped)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._started = False
        self.liveness.add("tasks", self._ended_tasks)
        self.readiness.add("process", self._phase)

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until the process stops; it is then cancelled and awaited. Names are unique.

        Should it end before, by whatever way, the process stops as well.
        """
        if name in self._tasks:
            work.close()
            raise ValueError(f"there is a task named {name!r} already")
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_end)
        self.stack.push_async_callback(self._end, task)

    def add_readiness(self, name: str, check: Check) -> None:
        """A condition of `/readyz`: None when fulfilled, otherwise why not. Answered from what is known already."""
        self.readiness.add(name, check)

    def add_liveness(self, name: str, check: Check) -> None:
        """A condition of `/healthz`, whose failure makes the kubelet restart the process."""
        self.liveness.add(name, check)

    def stop(self, reason: str) -> None:
        """Begin a graceful stop. Idempotent."""
        if not self.stopping.is_set():
            self.log.info("stopping", reason=reason)
            self.deadline.start()
            self.stopping.set()

    def fail(self, reason: str, error: BaseException | None = None) -> None:
        """Begin a graceful stop that ends with exit code 1. The first failure is the process's reason."""
        self.log.error("failed", reason=reason, exc_info=error)
        self.failure = self.failure or reason
        self.stop(reason)

    def unstopped(self) -> list[str]:
        """What still runs and where, the step that holds up the others first. Callable from any thread."""
        tasks = [task for task in list(self._tasks.values()) if not task.done()]
        tasks.sort(key=lambda task: task not in self._ending)
        lines = []
        for task in tasks:
            note = "" if task in self._ending else " (not cancelled yet)"
            lines.append(f"task {task.get_name()} at {task_position(task)}{note}")
        return lines + thread_positions()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        name = task.get_name()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(f"task {name}: {type(error).__name__}: {error}", error)
        elif task not in self._ending:
            how = "was cancelled from within" if task.cancelled() else "ended"
            self.fail(f"task {name} {how}, though it was to run until the process stops")

    async def _end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.cancel()
        await asyncio.wait({task})

    def _ended_tasks(self) -> str | None:
        ended = [name for name, task in self._tasks.items() if task.done()]
        return f"not running any more: {', '.join(ended)}" if ended else None

    def _phase(self) -> str | None:
        if self.stopping.is_set():
            return "stopping"
        return None if self._started else "starting"

    async def live(self, assemble: Callable[["Process"], Awaitable[None]]) -> None:
        """Start the service, wait until it is to stop, take it apart."""
        async with self.stack:
            await self._start(assemble)
            await self.stopping.wait()

    async def _start(self, assemble: Callable[["Process"], Awaitable[None]]) -> None:
        async def start() -> None:
            await assemble(self)

        starting = asyncio.create_task(start(), name="start")
        self._tasks["start"] = starting
        stop = asyncio.create_task(self.stopping.wait())
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        self._ending.add(starting)
        starting.cancel()
        await asyncio.wait({starting, stop})
        del self._tasks["start"]
        if starting.cancelled():
            if not self.stopping.is_set():
                self.fail("the start was cancelled from within")
        elif (error := starting.exception()) is not None:
            self.fail(f"start: {type(error).__name__}: {error}", error)
        else:
            self._started = True
            # What is alive now, modules and caches, stays: no collection needs to look at it again.
            gc.collect()
            gc.freeze()
            self.log.info("started", tasks=list(self._tasks))


def run(assemble: Callable[[Process], Awaitable[None]], *, name: str, settings: FrameSettings) -> int:
    """Be the process `name`; returns its exit code (`ExitCode`). Main thread only.

    `assemble` sets the service up, spawns its tasks and returns; from then on `/readyz` can succeed. It is
    cancelled when the process is to stop earlier.
    """
    faulthandler.enable()
    log = make_logger(name, level=settings.log_level, format=settings.log_format)
    process = Process(name, log=log, registry=make_registry(), stop_timeout=settings.stop_timeout)
    runner = asyncio.Runner()
    loop = runner.get_loop()

    def ask(signal_name: str) -> None:
        with suppress(RuntimeError):  # the loop is closed already: what was asked for is done
            loop.call_soon_threadsafe(process.stop, signal_name)

    try:
        # The deadline and the signals are there until the runner is closed: that waits for threads.
        with stop_signals(process.deadline, ask), runner:
            runner.run(_serve(process, assemble, settings))
    except Exception as error:
        process.fail(f"{type(error).__name__}: {error}", error)
    finally:
        process.deadline.cancel()
    code = ExitCode.STOPPED if process.failure is None else ExitCode.FAILED
    log.info("stopped", reason=process.failure or "asked to", code=code)
    return code


async def _serve(process: Process, assemble: Callable[[Process], Awaitable[None]], settings: FrameSettings) -> None:
    """The service's life, with its pages around it."""
    metrics = {"/metrics": MetricsPage(process.registry).page}
    health = {"/healthz": process.liveness.page, "/readyz": process.readiness.page}
    async with (
        serve_pages(settings.metrics_addr, metrics) as metrics_at,
        serve_pages(settings.health_addr, health) as health_at,
    ):
        process.log.info("starting", metrics=str(metrics_at), health=str(health_at))
        await process.live(assemble)
