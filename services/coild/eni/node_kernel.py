"""The kernel's part of the node's network for interfaces, without blocking the event loop.

Two threads: a pod's rule does not wait for nftables. Within the one for rtnetlink jobs run in the order in which they
were asked for; so a rule that is added while everything is compared is compared after it, or before it was wanted.
"""

import socket
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from coil.eni.interface import InterfaceId
from coil.eni.nat_plan import TABLE
from coil.eni.node_plan import AttachedInterface
from coil.kernel.family import IPAddress
from coil.kernel.link import Link, LinkName
from coil.kernel.nft_element import Elements
from coil.kernel.nft_table import NftTable, TableFamily
from coil.kernel.rule import Rule
from coil.netlink.connection import Connection
from coil.netlink.eni_link import NodeSync, add_source_rule, delete_source_rule, has_source_rule, sync_node
from coil.netlink.eni_routing import read_diversions
from coil.netlink.eni_sysctl import accepts_advertised_routes, keep_advertised_default_route
from coil.netlink.monitor import NETLINK_NETFILTER, TableWatch, open_event_socket, unique_thread_name
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.node_watch import Listener, NodeWatch
from coil.netlink.worker import Worker, open_worker
from coil.nft.element_sync import TableReconciler


class NodeKernel:
    """Implements `coild.eni.node_network.EniKernel` for the process's namespace, or the one at `netns`.

    An async context manager; leaving it waits for running calls and leaves the kernel's state as it is.
    """

    def __init__(self, *, netns: Path | None = None, sysctls: NodeSysctls | None = None) -> None:
        self._netns = netns
        self._sysctls = sysctls or NodeSysctls()
        self._stack = AsyncExitStack()
        self._worker: Worker
        self._tables: Worker
        self._table_watch: TableWatch
        self._table: NftTable | None = None
        self._reconciler: TableReconciler | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self._close_reconciler)
            self._worker = await stack.enter_async_context(open_worker("eni", self._netns))
            threads = unique_thread_name()
            self._tables = await stack.enter_async_context(open_worker(threads, self._netns))
            events = await self._tables.run(open_event_socket, NETLINK_NETFILTER)
            self._table_watch = TableWatch(events, [(TableFamily.INET, TABLE)], own=threads)
            stack.callback(self._table_watch.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def keep_default_route(self) -> None:
        """See `EniKernel`."""

        def job() -> None:
            with Connection() as connection:
                keep_advertised_default_route(connection, self._sysctls)

        await self._worker.run(job)

    async def keeps_advertised_routes(self, link: LinkName) -> bool:
        """See `EniKernel`."""
        return await self._worker.run(accepts_advertised_routes, link)

    async def sync(
        self,
        interfaces: Collection[AttachedInterface],
        pods: Collection[tuple[IPAddress, InterfaceId]] | None,
        *,
        pod_table: int,
        mtu: int | None,
    ) -> NodeSync:
        """See `EniKernel`."""

        def job() -> NodeSync:
            with Connection() as connection:
                return sync_node(
                    interfaces, pods, pod_table=pod_table, mtu=mtu, connection=connection, sysctls=self._sysctls
                )

        return await self._worker.run(job)

    async def find_diversions(
        self, interfaces: Collection[AttachedInterface], links: Mapping[InterfaceId, Link]
    ) -> tuple[str, ...]:
        """See `coild.eni.diversion_watch.RoutingReader`."""

        def job() -> tuple[str, ...]:
            with Connection() as connection:
                return read_diversions(interfaces, links, connection)

        return await self._worker.run(job)

    async def add_rule(self, rule: Rule) -> None:
        """See `EniKernel`."""

        def job() -> None:
            with Connection() as connection:
                add_source_rule(rule, connection)

        await self._worker.run(job)

    async def delete_rule(self, rule: Rule) -> None:
        """See `EniKernel`."""

        def job() -> None:
            with Connection() as connection:
                delete_source_rule(rule, connection)

        await self._worker.run(job)

    async def has_rule(self, rule: Rule) -> bool:
        """See `EniKernel`."""

        def job() -> bool:
            with Connection() as connection:
                return has_source_rule(rule, connection)

        return await self._worker.run(job)

    async def sync_table(self, table: NftTable, elements: Elements) -> bool:
        """See `EniKernel`."""
        return await self._tables.run(self._sync_table, table, elements)

    def _sync_table(self, table: NftTable, elements: Elements) -> bool:
        if table != self._table or self._reconciler is None:
            self._close_reconciler()
            self._table, self._reconciler = table, TableReconciler([table])
        return self._reconciler.load(elements)

    def _close_reconciler(self) -> None:
        if self._reconciler is not None:
            self._reconciler.close()
            self._reconciler = None

    async def table_changed(self) -> None:
        """See `EniKernel`."""
        await self._table_watch.changed()

    async def watch(self, listener: Listener) -> bool:
        """See `EniKernel`."""
        node, pods = await self._worker.run(_open_sockets)
        try:
            watch = NodeWatch(node, pods, listener)
        except BaseException:
            node.close()
            pods.close()
            raise
        self._stack.callback(watch.close)
        return watch.hears_pods


def _open_sockets() -> tuple[socket.socket, socket.socket]:
    node = open_event_socket()
    try:
        return node, open_event_socket()
    except BaseException:
        node.close()
        raise
