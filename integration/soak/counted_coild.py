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
from functools import partial
from pathlib import Path

from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coild.main import assemble
from coild.settings import Settings

_SECONDS = 30.0


def main() -> int:
    path, flags = Path(sys.argv[1]), sys.argv[2:]
    settings = parse_settings(Settings, flags, os.environ, program="coild", about="Counted.")
    return run(partial(_assemble, path, settings), name="coild", settings=settings)


async def _assemble(path: Path, settings: Settings, process: Process) -> None:
    path.unlink(missing_ok=True)
    await process.stack.enter_async_context(await asyncio.start_unix_server(_answer, path))
    await assemble(settings, process)


async def _answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    gc.collect()
    writer.write(str(sys.getallocatedblocks()).encode())
    writer.close()
    await writer.wait_closed()


def count_blocks(path: Path) -> int:
    """Ask: how many blocks of memory are given out by the interpreter of the coild at that socket. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(str(path))
        with connection.makefile("rb") as answer:
            return int(answer.read())


if __name__ == "__main__":
    sys.exit(main())
