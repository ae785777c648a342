"""One nftables table that this process keeps what it should be, without blocking the event loop.

One thread, in the namespace of the process. Other programs' changes of tables are listened to from the first `sync` on:
before it, neither that nor libnftables costs anything.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from coil.kernel.nft_element import ElementChanges, Elements
from coil.kernel.nft_table import NftTable
from coil.netlink.monitor import NETLINK_NETFILTER, TableWatch, open_event_socket, unique_thread_name
from coil.netlink.worker import Worker, open_worker
from coil.nft.element_sync import TableReconciler, read_elements
from coil.nft.netfilter import NftError, has_nftables
from coil.nft.table_sync import CounterValue, delete_table, read_counters
from coil.reconcile.backoff import Backoff

_BACKOFF: Final = Backoff(base=1.0, cap=60.0)
"""Between two tries. The shortest passes after a success, too: whoever writes all the time does not keep coild busy."""


async def undo_changes(
    changed: Callable[[], Awaitable[None]], restore: Callable[[], Awaitable[bool]], *, random: Callable[[], float]
) -> None:
    """For ever: when `changed` returns, call `restore` until it succeeds."""
    while True:
        await changed()
        attempt = 0
        while not await restore():
            await asyncio.sleep(_BACKOFF.delay(attempt, random))
            attempt += 1
        await asyncio.sleep(_BACKOFF.base)


class WatchedTable:
    """The table in the process's namespace, or in the one at `netns`. Calls take turns in the order in which they were
    made, raise NftError or BusyError, and may take effect after a cancellation.

    An async context manager; leaving it waits for running calls and leaves the table as it is.
    """

    def __init__(self, table: NftTable, *, netns: Path | None = None) -> None:
        self._netns = netns
        self._table = table
        self._stack = AsyncExitStack()
        self._threads = unique_thread_name()
        self._worker: Worker
        self._reconciler = TableReconciler([table])
        self._watch: asyncio.Future[TableWatch]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._watch = asyncio.get_running_loop().create_future()
            stack.callback(self._reconciler.close)
            self._worker = await stack.enter_async_context(open_worker(self._threads, self._netns))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def read(self) -> Elements | None:
        """What is in its sets; None if there is no such table, as in a kernel without nf_tables."""
        return await self._worker.run(self._read)

    def _read(self) -> Elements | None:
        return read_elements(self._table) if has_nftables() else None

    async def sync(self, elements: Elements) -> bool:
        """Make the table, with these elements and no others; whether it was not so. Idempotent."""
        if not self._watch.done():
            self._listen(await self._worker.run(self._open_events))
        return await self._worker.run(self._reconciler.load, elements)

    @staticmethod
    def _open_events() -> socket.socket:
        try:
            return open_event_socket(NETLINK_NETFILTER)
        except OSError as error:
            raise NftError(doing="listen to changes of tables", reason=str(error.strerror)) from error

    def _listen(self, events: socket.socket) -> None:
        if self._watch.done():  # two calls came together
            events.close()
            return
        watch = TableWatch(events, [(self._table.family, self._table.name)], own=self._threads)
        self._stack.callback(watch.close)
        self._watch.set_result(watch)

    async def change(self, changes: ElementChanges) -> None:
        """Change the elements, in one transaction. Not idempotent; only after a `sync`."""
        await self._worker.run(self._reconciler.change, changes)

    async def delete(self) -> bool:
        """Delete the table; whether it was there. Idempotent. Not after a `sync`."""
        return await self._worker.run(self._delete)

    def _delete(self) -> bool:
        return has_nftables() and delete_table(self._table.name, self._table.family)

    async def counters(self) -> dict[str, CounterValue]:
        """Those of the table, by name; only after a `sync`."""
        return await self._worker.run(read_counters, self._table.name)

    async def changed(self) -> None:
        """Wait until something else has changed the table; for ever before the first `sync`. For one task."""
        watch = await asyncio.shield(self._watch)
        await watch.changed()
