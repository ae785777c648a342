"""A small service, run as a process of its own by the tests of the frame. Its argument says how it behaves."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from coil.runtime.endpoint import Endpoint
from coil.runtime.flag import parse_settings, parse_text, variable
from coil.runtime.process import Process, run
from coil.runtime.settings import FrameSettings, health_flag, metrics_flag


@dataclass(frozen=True, kw_only=True)
class Settings(FrameSettings):
    metrics_addr: Endpoint = metrics_flag(":0")
    health_addr: Endpoint = health_flag(":0")
    behaviour: str = variable("BEHAVIOUR", parse=parse_text, help="what goes wrong")


async def forever(process: Process, name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        process.log.info("task stopped", task=name)


@asynccontextmanager
async def resource(process: Process) -> AsyncIterator[None]:
    yield
    process.log.info("resource closed")


async def fail_on(trigger: asyncio.Event) -> None:
    await trigger.wait()
    raise ConnectionError("the far end is gone")


async def stubborn(process: Process) -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            process.log.info("refusing to stop")


async def fail_while_stopping() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("cannot put it back")


async def block_loop(process: Process) -> None:
    process.log.info("blocking")
    await asyncio.sleep(0.05)  # lets the line out; not what the test waits for
    while True:
        time.sleep(0.01)  # noqa: ASYNC251 - the misbehaviour under test


async def assemble(settings: Settings, process: Process) -> None:
    process.spawn("first", forever(process, "first"))
    await process.stack.enter_async_context(resource(process))
    process.spawn("second", forever(process, "second"))
    trigger = asyncio.Event()
    match settings.behaviour:
        case "good":
            pass
        case "unready":
            process.add_readiness("cache", lambda: "not synced yet")
        case "dead":
            process.add_liveness("disk", lambda: "read-only")
        case "task-fails":
            process.spawn("link", fail_on(trigger))
            asyncio.get_running_loop().call_soon(trigger.set)
        case "task-ends":
            process.spawn("short", asyncio.sleep(0))
        case "start-fails":
            raise LookupError("no such pool")
        case "start-hangs":
            process.log.info("hanging")
            await asyncio.Event().wait()
        case "stubborn":
            process.spawn("mule", stubborn(process))
        case "stop-fails":
            process.spawn("messy", fail_while_stopping())
        case "loop-blocked":
            process.spawn("hog", block_loop(process))
        case "thread-stuck":
            asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        case other:
            raise AssertionError(other)


def main() -> int:
    settings = parse_settings(
        Settings, sys.argv[1:], os.environ, program="program", about="A process that misbehaves on demand."
    )
    return run(partial(assemble, settings), name="program", settings=settings)


if __name__ == "__main__":
    sys.exit(main())
