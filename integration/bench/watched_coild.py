"""`python -m integration.bench.watched_coild SOCKET FLAG…`: coild as it is, and in its loop a task that watches that.

For what only the process itself can see. The task wakes a thousand times a second, so nothing else is to be measured of
a process that runs it.
"""

import os
import sys
from functools import partial
from pathlib import Path

from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coild.main import assemble
from coild.settings import Settings
from integration.bench.loop_watch import LoopWatch


def main() -> int:
    path, flags = Path(sys.argv[1]), sys.argv[2:]
    settings = parse_settings(Settings, flags, os.environ, program="coild", about="Watched.")
    return run(partial(_assemble, path, settings), name="coild", settings=settings)


async def _assemble(path: Path, settings: Settings, process: Process) -> None:
    process.spawn("loop watch", LoopWatch(path).run())
    await assemble(settings, process)


if __name__ == "__main__":
    sys.exit(main())
