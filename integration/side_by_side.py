"""`python -m integration.side_by_side SESSION...`: nox sessions at the same time, each line of theirs with its name."""

import asyncio
import sys
from collections.abc import Sequence

_LINE_LIMIT = 1 << 20


async def run_side_by_side(sessions: Sequence[str]) -> int:
    """0 when all have succeeded, 1 otherwise. All are run to their ends: a failure of one says nothing of the others.

    An interrupt of the terminal reaches the sessions as well; this returns when they have cleaned up.
    """
    codes = await asyncio.gather(*(_run(session) for session in sessions))
    for session, code in zip(sessions, codes, strict=True):
        print(f"{session}: {'passed' if code == 0 else f'failed, exit code {code}'}", flush=True)
    return int(any(codes))


async def _run(session: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nox", "--session", session),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_LINE_LIMIT,
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            print(f"{session}: {line.decode(errors='replace')}", end="", flush=True)
    finally:
        code = await process.wait()
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(run_side_by_side(sys.argv[1:])))
