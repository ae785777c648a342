"""The node's nftables tables, without blocking the event loop, and the one rule that iptables may need.

Two threads: a refresh of what keeps the EIPs alive never queues behind the elements of a hundred thousand pods. Within
the kernel it still waits for the transaction that runs, so large changes are carried out in steps
(`coil.eip.change_steps`).

That rule belongs into iptables' chain FORWARD where its policy is DROP (Docker's, some CNIs'): an nftables table cannot
let a packet pass that another table drops. A flag asks for it; it is inserted at the start and with each comparison,
and deleted by `--cleanup`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from coil.eip.change_steps import split_changes
from coil.eip.eip_table import POD_TIMEOUTS, TABLE, TIMEOUTS, EipTableOptions, plan_eip_tables
from coil.eip.gateway_lease import MARGIN
from coil.kernel.nft_element import ElementChanges, Elements
from coil.kernel.nft_table import TableFamily
from coil.netlink.monitor import NETLINK_NETFILTER, TableWatch, open_event_socket, unique_thread_name
from coil.netlink.worker import Worker, open_worker
from coil.nft.element_sync import TableReconciler, refresh_timeouts
from coil.nft.netfilter import NetfilterSocket
from coil.nft.table_sync import delete_table
from coil_egress_agent.eip.kernel import bounded


class KernelTables:
    """Implements `Tables` for the process's namespace, or the one at `netns`. An async context manager; leaving it
    waits for running calls and leaves the kernel's state as it is. All methods raise NftError, and BusyError where far
    too many calls wait.
    """

    def __init__(self, options: EipTableOptions, *, netns: Path | None = None) -> None:
        self._netns = netns
        self._tables = plan_eip_tables(options)
        self._stack = AsyncExitStack()
        self._worker: Worker
        self._refresher: Worker
        self._refresh_socket = NetfilterSocket()
        self._watch: TableWatch
        self._reconciler: TableReconciler

    async def __aenter__(self) -> "KernelTables":
        async with AsyncExitStack() as stack:
            threads = unique_thread_name()
            stack.callback(self._refresh_socket.close)
            self._refresher = await stack.enter_async_context(open_worker(threads, self._netns))
            events = await self._refresher.run(open_event_socket, NETLINK_NETFILTER)
            self._watch = TableWatch(events, [(table.family, table.name) for table in self._tables], own=threads)
            stack.callback(self._watch.close)
            self._reconciler = TableReconciler(self._tables, transaction=self._watch.unheard, split=split_changes)
            stack.callback(self._reconciler.close)
            self._worker = await stack.enter_async_context(open_worker(threads, self._netns))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def sync(self, elements: Elements) -> bool:
        """See `Tables`. The first one reads what is there by libnftables, which would not come to an end beside a
        `refresh`.
        """
        return await self._worker.run(self._reconciler.load, elements)

    async def change(self, changes: ElementChanges) -> None:
        """See `Tables`. One transaction for each step."""
        for step in await self._worker.run(self._reconciler.split, changes):
            await bounded(self._worker.run(self._reconciler.change, step))

    async def refresh(self, remaining: Callable[[], float]) -> None:
        """See `Tables`. Whole milliseconds, rounded down."""
        await self._refresher.run(self._refresh, remaining)

    async def let_pass(self, seconds: float) -> None:
        """See `Tables`. Whole milliseconds, rounded down."""
        await self._refresher.run(refresh_timeouts, POD_TIMEOUTS, int(seconds * 1000), self._refresh_socket)

    def _refresh(self, remaining: Callable[[], float]) -> None:
        # The kernel counts from when it carries out the transaction. What it has waited for is taken off at once, by a
        # second one.
        for _ in range(2):
            asked = time.monotonic()
            milliseconds = int(max(0.0, remaining()) * 1000)
            refresh_timeouts(TIMEOUTS, milliseconds, self._refresh_socket)
            if not milliseconds or time.monotonic() - asked < MARGIN / 2:
                return

    async def changed(self) -> None:
        """See `Tables`."""
        await self._watch.changed()

    async def clean_up(self) -> None:
        """See `Tables`. Idempotent."""
        for family in (TableFamily.INET, TableFamily.ARP):
            await self._worker.run(delete_table, TABLE, family)


PROGRAMS: Final = ("iptables", "ip6tables")
CALL_SECONDS: Final = 10.0

RunProgram = Callable[[Sequence[str]], Awaitable[int]]
"""Runs a program with its arguments; its exit code. Raises OSError where there is no such program."""


async def run_program(command: Sequence[str]) -> int:
    """A `RunProgram` for the real ones. Raises TimeoutError after CALL_SECONDS, and the program is killed."""
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


async def ensure_shim(rules: Sequence[Sequence[str]], *, run: RunProgram = run_program) -> None:
    """Have each rule once at the head of FORWARD, in both families. Idempotent. Raises OSError with what failed."""
    for program in PROGRAMS:
        for rule in rules:
            if await run([program, "-w", "5", "-C", "FORWARD", *rule]) == 0:
                continue
            code = await run([program, "-w", "5", "-I", "FORWARD", "1", *rule])
            if code != 0:
                raise OSError(f"{program} -I FORWARD {' '.join(rule)}: exit code {code}")


async def remove_shim(rules: Sequence[Sequence[str]], *, run: RunProgram = run_program) -> None:
    """Take the rules out again, however often they are there. Where there is no iptables there is none. Idempotent."""
    for program in PROGRAMS:
        for rule in rules:
            try:
                while await run([program, "-w", "5", "-D", "FORWARD", *rule]) == 0:
                    pass
            except FileNotFoundError:
                break
