"""`python -m integration.soak.counted_coild SOCKET FLAG…`: coild as it is, and a socket that counts its memory.

What a process has resident grows in steps of a mebibyte, and a thousand forgotten things fit into one. The interpreter
knows how many blocks of memory it has given out; after a collection, with coild at rest, that number says exactly
whether anything was forgotten.
"""

import asyncio
import gc
import os
import socket
import sys
from functools import partial, wraps
from heapq import heapify
from pathlib import Path
from typing import Any
from weakref import WeakSet

from aiohttp import BaseConnector
from grpclib.server import Server

from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coild.main import assemble
from coild.settings import Settings

_SECONDS = 60.0
_TURNS = 20
_SERVERS: WeakSet[Any] = WeakSet()
_CONNECTORS: WeakSet[Any] = WeakSet()


def main() -> int:
    path, flags = Path(sys.argv[1]), sys.argv[2:]
    _remember(Server, _SERVERS)
    _remember(BaseConnector, _CONNECTORS)
    settings = parse_settings(Settings, flags, os.environ, program="coild", about="Counted.")
    return run(partial(_assemble, path, settings), name="coild", settings=settings)


async def _assemble(path: Path, settings: Settings, process: Process) -> None:
    path.unlink(missing_ok=True)
    await process.stack.enter_async_context(await asyncio.start_unix_server(_answer, path))
    await assemble(settings, process)


async def _answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    _give_back()
    for _ in range(_TURNS):  # the ends of connections take some of the loop
        await asyncio.sleep(0)
    gc.collect()
    writer.write(str(sys.getallocatedblocks()).encode())
    writer.close()
    await writer.wait_closed()


def _remember(kind: type[Any], into: WeakSet[Any]) -> None:
    make = kind.__init__

    @wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        into.add(self)

    kind.__init__ = init


def _give_back() -> None:
    """Let go of what libraries keep for a while, on purpose and within bounds.

    That is up to a hundred timers that were cancelled (asyncio), ten connections that are closed (grpclib), and as many
    open ones to the API server as there were requests at a time (aiohttp): more than a thousand forgotten things have.
    """
    loop: Any = asyncio.get_running_loop()
    loop._scheduled = [timer for timer in loop._scheduled if not timer.cancelled()]
    loop._timer_cancelled_count = 0
    heapify(loop._scheduled)
    for server in _SERVERS:
        server.__gc_collect__()
    for connector in _CONNECTORS:
        for idle in connector._conns.values():
            for protocol, _ in idle:
                protocol.abort()
        connector._conns.clear()


def count_blocks(path: Path) -> int:
    """Ask: how many blocks of memory are given out by the interpreter of the coild at that socket. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(str(path))
        with connection.makefile("rb") as answer:
            return int(answer.read())


if __name__ == "__main__":
    sys.exit(main())
