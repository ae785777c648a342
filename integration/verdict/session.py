"""Runs a session of the noxfile to its end and gathers what its tests have left; those of one step side by side."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from integration.uplink_watch import LEAKED
from integration.verdict.result import REPOSITORY, load_results, results_path
from integration.verdict.verdict import SessionRun

RUN_VARIABLE: Final = "COIL_RUN"
"""Environment variable: the name that a run's records have in place of the session's."""

SESSION_SECONDS: Final = 3600.0
"""A bound for what no bound of a test ends."""

_CLEANUP_SECONDS = 60.0
_LINE_LIMIT = 1 << 20


async def run_step(sessions: Sequence[str]) -> list[SessionRun]:
    """Run the sessions at the same time; each line of theirs begins with the session's name if there are several.

    All are run to their ends: a failure of one says nothing of the others. An interrupt of the terminal reaches the
    sessions as well; this returns when they have cleaned up.
    """
    return await asyncio.gather(*(run_session(session, prefix=len(sessions) > 1) for session in sessions))


async def run_session(session: str, *arguments: str, name: str = "", prefix: bool = False) -> SessionRun:
    """Run one, narrowed down by pytest's `arguments`. Its records have the `name`, by default the session's."""
    name = name or session
    results_path(name).unlink(missing_ok=True)
    began = time.monotonic()
    leak = ""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nox", "--session", session, *(["--", *arguments] if arguments else [])),
        cwd=REPOSITORY,
        env={**os.environ, RUN_VARIABLE: name},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_LINE_LIMIT,
    )
    try:
        async with asyncio.timeout(SESSION_SECONDS):
            leak = await _print_lines(process, f"{session}: " if prefix else "")
            await process.wait()
    except TimeoutError:
        print(f"{session}: no end after {SESSION_SECONDS:.0f} s", flush=True)
    finally:
        await _end(process)
    code = process.returncode if process.returncode is not None else 1
    seconds = time.monotonic() - began
    return SessionRun(session=session, code=code, seconds=seconds, results=load_results(results_path(name)), leak=leak)


async def _print_lines(process: asyncio.subprocess.Process, prefix: str) -> str:
    """Until its end. Returns the first thing that it says of packets that have left the machine."""
    assert process.stdout is not None
    leak = ""
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:
            continue  # a line beyond the limit is dropped
        if not line:
            return leak
        text = line.decode(errors="replace")
        if LEAKED in text:
            leak = leak or text[text.index(LEAKED) :].strip()
        print(f"{prefix}{text}", end="", flush=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """As the terminal's interrupt does it, so that what the session has started is cleaned up."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), _CLEANUP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
