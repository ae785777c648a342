"""The kernel's part of the binding `bridge`, without blocking the event loop.

One thread, in the namespace of the process: tables and links are changed in the order in which that was asked for, so
no port is plugged in before the tables that filter it are there.
"""

from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from coil.kernel.bridge import Bridge
from coil.kernel.family import IPAddress
from coil.kernel.link import LinkName, ParentLink
from coil.kernel.nft_element import ElementChanges, Elements
from coil.kernel.nft_table import TableFamily
from coil.netlink import port_network
from coil.netlink.connection import Connection
from coil.netlink.monitor import NETLINK_NETFILTER, TableWatch, open_event_socket, unique_thread_name
from coil.netlink.worker import Worker, open_worker
from coil.neutron.node_bridge import BridgedPort, NodeBridge
from coil.neutron.overlay_filter import TABLE, plan_overlay_table
from coil.neutron.port_filter import plan_port_table
from coil.neutron.port_rules import RuleSet
from coil.neutron.resource import NetworkId
from coil.nft.element_sync import TableReconciler

R = TypeVar("R")


class BridgeNetwork:
    """Implements `coild.neutron.bridge.BridgeKernel` for the process's namespace, or the one at `netns`.

    `udp_port` is that of VXLAN, the same on all nodes; `checksum_offload` is of its links.

    An async context manager; leaving it waits for running calls and leaves the kernel's state as it is.
    """

    def __init__(self, *, udp_port: int, checksum_offload: bool = True, netns: Path | None = None) -> None:
        self.udp_port = udp_port
        self.checksum_offload = checksum_offload
        self._netns = netns
        self._stack = AsyncExitStack()
        self._worker: Worker
        self._watch: TableWatch
        self._tables: TableReconciler
        self._rule_sets: Collection[RuleSet] = frozenset()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            threads = unique_thread_name()
            self._worker = await stack.enter_async_context(open_worker(threads, self._netns))
            self._tables = await self._worker.run(self._reconciler, self._rule_sets)
            stack.callback(self._close_tables)
            events = await self._worker.run(open_event_socket, NETLINK_NETFILTER)
            families = (TableFamily.INET, TableFamily.BRIDGE)
            self._watch = TableWatch(events, [(family, TABLE) for family in families], own=threads)
            stack.callback(self._watch.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def node_links(self, local: IPAddress | None) -> Collection[ParentLink]:
        """See `BridgeKernel`."""
        return await self._connected(lambda connection: port_network.read_node_links(connection, local))

    async def load(self, elements: Elements, rule_sets: Collection[RuleSet]) -> bool:
        """See `BridgeKernel`."""
        return await self._worker.run(self._load, elements, rule_sets)

    def _load(self, elements: Elements, rule_sets: Collection[RuleSet]) -> bool:
        if rule_sets != self._rule_sets:
            self._tables.close()
            self._tables, self._rule_sets = self._reconciler(rule_sets), rule_sets
        return self._tables.load(elements)

    def _close_tables(self) -> None:
        self._tables.close()

    def _reconciler(self, rule_sets: Collection[RuleSet]) -> TableReconciler:
        return TableReconciler([plan_overlay_table(udp_port=self.udp_port), plan_port_table(rule_sets)])

    async def change(self, changes: ElementChanges) -> None:
        """See `BridgeKernel`."""
        await self._worker.run(self._tables.change, changes)

    async def sync_network(self, plan: NodeBridge, peers: Collection[IPAddress]) -> Collection[LinkName]:
        """See `BridgeKernel`."""
        return await self._connected(lambda connection: port_network.sync_network(plan, peers, connection))

    async def plug_port(self, changes: ElementChanges, bridge: Bridge, port: BridgedPort) -> None:
        """See `BridgeKernel`."""

        def job(connection: Connection) -> None:
            self._tables.change(changes)
            port_network.plug_port(bridge, port, connection)

        await self._connected(job)

    async def unplug_port(self, network: NetworkId, port: BridgedPort) -> None:
        """See `BridgeKernel`."""
        await self._connected(lambda connection: port_network.unplug_port(network, port, connection))

    async def release_ports(self, network: NetworkId, keep: Collection[LinkName]) -> Collection[LinkName]:
        """See `BridgeKernel`."""
        names = frozenset(keep)
        return await self._connected(lambda connection: port_network.release_ports(network, names, connection))

    async def remove_network(self, network: NetworkId) -> None:
        """See `BridgeKernel`."""
        await self._connected(lambda connection: port_network.remove_network(network, connection))

    async def networks(self) -> frozenset[NetworkId]:
        """See `BridgeKernel`."""
        return await self._connected(port_network.read_networks)

    async def tables_changed(self) -> None:
        """See `BridgeKernel`."""
        await self._watch.changed()

    async def _connected(self, function: Callable[[Connection], R]) -> R:
        def job() -> R:
            with Connection() as connection:
                return function(connection)

        return await self._worker.run(job)
