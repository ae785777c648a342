"""The one rule that iptables' chain FORWARD needs where its policy is DROP (Docker's, some CNIs').

An nftables table cannot let a packet pass that another table drops, so the rule has to be in that chain. A flag asks
for it; it is inserted at the start and with each comparison, and deleted by `--cleanup`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

PROGRAMS: Final = ("iptables", "ip6tables")
CALL_SECONDS: Final = 10.0

Run = Callable[[Sequence[str]], Awaitable[int]]
"""Runs a program with its arguments; its exit code. Raises OSError where there is no such program."""


async def run_program(command: Sequence[str]) -> int:
    """A `Run` for the real ones. Raises TimeoutError after CALL_SECONDS, and the program is killed."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ensure_shim(rules: Sequence[Sequence[str]], *, run: Run = run_program) -> None:
    """Have each rule once at the head of FORWARD, in both families. Idempotent. Raises OSError with what failed."""
    for program in PROGRAMS:
        for rule in rules:
            if await run([program, "-w", "5", "-C", "FORWARD", *rule]) == 0:
                continue
            code = await run([program, "-w", "5", "-I", "FORWARD", "1", *rule])
            if code != 0:
                raise OSError(f"{program} -I FORWARD {' '.join(rule)}: exit code {code}")


async def remove_shim(rules: Sequence[Sequence[str]], *, run: Run = run_program) -> None:
    """Take the rules out again, however often they are there. Where there is no iptables there is none. Idempotent."""
    for program in PROGRAMS:
        for rule in rules:
            try:
                while await run([program, "-w", "5", "-D", "FORWARD", *rule]) == 0:
                    pass
            except FileNotFoundError:
                break
