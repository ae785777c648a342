"""The table of host ports in the kernel, without blocking the event loop.

One thread, in the namespace of the process. Other programs' changes of tables are listened to from the first `sync` on:
on a node without host ports neither that nor libnftables costs anything.
"""

import asyncio
import socket
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from coil.kernel.family import IPAddress
from coil.kernel.nft_element import ElementChanges, Elements
from coil.netlink.conntrack import forget_flows, read_udp_flows
from coil.netlink.monitor import NETLINK_NETFILTER, TableWatch, open_event_socket, unique_thread_name
from coil.netlink.namespace import Namespace
from coil.netlink.worker import Worker
from coil.nft.element_sync import TableReconciler, read_elements
from coil.nft.netfilter import NftError, has_nftables
from coil.podnet.host_port import TABLE, plan_host_port_table


class KernelTable:
    """Implements `coild.hostports.host_ports.HostPortTable` for the process's namespace, or the one at `netns`.

    An async context manager; leaving it waits for running calls and leaves the table as it is.
    """

    def __init__(self, *, netns: Path | None = None) -> None:
        self._netns = netns
        self._table = plan_host_port_table()
        self._stack = AsyncExitStack()
        self._threads = unique_thread_name()
        self._worker: Worker
        self._reconciler = TableReconciler([self._table])
        self._watch: asyncio.Future[TableWatch]

    async def __aenter__(self) -> "KernelTable":
        async with AsyncExitStack() as stack:
            home = stack.enter_context(Namespace(self._netns) if self._netns is not None else Namespace.current())
            self._watch = asyncio.get_running_loop().create_future()
            stack.callback(self._reconciler.close)
            self._worker = Worker(self._threads, home, threads=1)
            stack.push_async_callback(self._worker.aclose)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def read(self) -> Elements | None:
        """See `HostPortTable`. A kernel without nf_tables has no table, and pods without host ports need none."""
        return await self._worker.run(self._read)

    def _read(self) -> Elements | None:
        return read_elements(self._table) if has_nftables() else None

    async def sync(self, elements: Elements) -> bool:
        """See `HostPortTable`."""
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
        watch = TableWatch(events, [(self._table.family, TABLE)], own=self._threads)
        self._stack.callback(watch.close)
        self._watch.set_result(watch)

    async def change(self, changes: ElementChanges) -> None:
        """See `HostPortTable`."""
        await self._worker.run(self._reconciler.change, changes)

    async def changed(self) -> None:
        """See `HostPortTable`."""
        watch = await asyncio.shield(self._watch)
        await watch.changed()

    async def forget_udp(self, ports: Mapping[IPAddress, frozenset[int]]) -> None:
        """See `HostPortTable`."""
        await self._worker.run(_forget_udp, ports)


def _forget_udp(ports: Mapping[IPAddress, Iterable[int]]) -> None:
    pods: dict[int, set[IPAddress]] = {}
    for pod, found in ports.items():
        for port in found:
            pods.setdefault(port, set()).add(pod)
    stale = [
        flow
        for port, addresses in pods.items()
        for flow in read_udp_flows(port)
        if flow.target.address in addresses or (flow.target, flow.seen) == (flow.destination, flow.source)
    ]
    forget_flows(stale)
