"""A small service, run as a process of its own by the tests of the frame. Its argument says how it behaves."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from coil.runtime.flag import Endpoint, parse_settings, parse_text, variable
from coil.runtime.process import Process, run
from coil.runtime.settings import FrameSettings, health_flag, metrics_flag


@dataclass(frozen=True, kw_only=True)
class Settings(FrameSettings):
    metrics_addr: Endpoint = metrics_flag("127.0.0.1:0")
    health_addr: Endpoint = health_flag("127.0.0.1:0")
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


async def fail_soon(_process: Process) -> None:
    raise ConnectionError("the far end is gone")


async def end_soon(_process: Process) -> None:
    pass


async def stubborn(process: Process) -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            process.log.info("refusing to stop")


async def fail_while_stopping(_process: Process) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("cannot put it back")


async def cancel_itself(_process: Process) -> None:
    raise asyncio.CancelledError


async def fail_to_close() -> None:
    raise OSError("cannot let go")


async def block_loop(process: Process) -> None:
    process.log.info("blocking")
    while True:
        time.sleep(0.01)  # noqa: ASYNC251 - the misbehaviour under test


TASKS: dict[str, Callable[[Process], Coroutine[Any, Any, None]]] = {
    "mule": stubborn,
    "link": fail_soon,
    "short": end_soon,
    "moody": cancel_itself,
    "messy": fail_while_stopping,
    "hog": block_loop,
}


async def assemble(settings: Settings, process: Process) -> None:
    process.spawn("first", forever(process, "first"))
    await process.stack.enter_async_context(resource(process))
    process.spawn("second", forever(process, "second"))
    match settings.behaviour:
        case "good":
            pass
        case "unready":
            process.add_readiness("cache", lambda: "not synced yet")
        case "dead":
            process.add_liveness("disk", lambda: "read-only")
        case "start-fails":
            raise LookupError("no such pool")
        case "start-hangs":
            process.log.info("hanging")
            await asyncio.Event().wait()
        case "resource-fails":
            process.stack.push_async_callback(fail_to_close)
        case "thread-stuck":
            asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        case name:
            process.spawn(name, TASKS[name](process))


def main() -> int:
    settings = parse_settings(
        Settings, sys.argv[1:], os.environ, program="program", about="A process that misbehaves on demand."
    )
    return run(partial(assemble, settings), name="program", settings=settings)


if __name__ == "__main__":
    sys.exit(main())
