"""The binding `bridge`: a pod's veth becomes a port of a Linux bridge, whose uplink leads to the other nodes by VXLAN.

    coild.neutron.wiring ─► bind, unbind, prepare ─┐
    coild.neutron.node_peers ─► set_underlay ──────┼─► plans of coil.neutron ─► BridgeKernel
    whoever changes the tables ────────────────────┘

What it expects of the pod's wiring: the host's end of the veth in the node's namespace, with IPv6 disabled and without
addresses; in the pod the port's hardware address, its addresses with the prefix lengths of their subnets, and for IPv6
a link-local address, as the kernel adds it.

Invariants. A veth is a port of a bridge only while the tables know it: they are loaded before it is plugged in, and
forget it after it was unplugged. What is not known (the node's own address, a segmentation ID) is a refusal with a
sentence, never a guess. The first network of a process that it does not know is not taken for a leftover before
`prepare` has said what is bound.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from coil.kernel.family import IPAddress
from coil.kernel.link import LinkName, ParentLink
from coil.kernel.nft_element import Elements
from coil.kernel.nft_table import NftTable
from coil.netlink.error import NetlinkError
from coil.neutron.handoff import Handoff
from coil.neutron.node_address import node_address
from coil.neutron.node_bridge import (
    BridgedPort,
    NetworkRefusedError,
    NodeBridge,
    plan_network,
    refuse_conflicts,
)
from coil.neutron.overlay_filter import plan_overlay_elements, plan_overlay_table
from coil.neutron.port_filter import plan_port_table
from coil.neutron.resource import NetworkId
from coil.neutron.underlay import Underlay
from coil.nft.netfilter import NftError
from coil.reconcile.backoff import Backoff
from coild.model.port_error import BindError, BindTimeoutError
from coild.neutron.binding import PortBinding

KERNEL_ERRORS: Final = (NetlinkError, NftError)
REAPPLY_SECONDS: Final = 60.0
"""Between two comparisons at most: of what no event tells."""
_UNTOLD: Final = "this node's InternalIP is not known yet: coild has not received the Nodes from the API server"
_PACE: Final = Backoff(base=0.1, cap=30.0)
"""Between two comparisons of which the first has failed, or has found something to repair."""


class BridgeKernel(Protocol):
    """The kernel; `coild.neutron.bridge_kernel.BridgeNetwork`. Calls take turns in the order in which they were made,
    are idempotent, and may take effect after a cancellation. They raise NetlinkError, `load` NftError.
    """

    async def node_links(self) -> Collection[ParentLink]:
        """The node's own links that are up, with their addresses."""
        ...

    async def load(self, tables: tuple[NftTable, ...], elements: Elements) -> bool:
        """Make the tables what is wanted, with these elements and no others; whether they were not."""
        ...

    async def sync_network(self, plan: NodeBridge, peers: Collection[IPAddress]) -> Collection[LinkName]:
        """Make one network what is planned; returns the ports whose links are not there."""
        ...

    async def release_ports(self, network: NetworkId, keep: Collection[LinkName]) -> Collection[LinkName]:
        """Have no links but `keep` and the uplink be ports of the network's bridge; returns those that were."""
        ...

    async def remove_network(self, network: NetworkId) -> None:
        """Delete the links of the network."""
        ...

    async def networks(self) -> frozenset[NetworkId]:
        """The networks of which the node has links."""
        ...

    async def tables_changed(self) -> None:
        """Wait until something else has changed the tables. For one task."""
        ...


class BridgeBinding:
    """Implements `coild.neutron.binding.Binding`. One per process; all methods belong to the event loop's thread.

    `udp_port` is that of VXLAN, the same on all nodes.
    """

    def __init__(
        self,
        kernel: BridgeKernel,
        *,
        udp_port: int,
        random: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._kernel = kernel
        self._udp_port = udp_port
        self._random = random
        self._log = log
        self._underlay: Underlay | None = None
        self._told = asyncio.Event()
        """Whether there is an underlay."""
        self._ports: dict[LinkName, Handoff] = {}
        self._adopted = False
        self._lock = asyncio.Lock()
        self._disturbed = asyncio.Event()

    # --- what is known

    def set_underlay(self, underlay: Underlay) -> None:
        """From now on these are the nodes. `run` brings it about."""
        if underlay != self._underlay:
            self._underlay = underlay
            self._told.set()
            self._disturbed.set()

    # --- Binding

    async def prepare(self, bound: Collection[PortBinding]) -> None:
        """See `Binding`. Raises BindError where the tables cannot be loaded; what else cannot be made, `run`
        tries again. Bridges of networks without a port go with the first call.
        """
        async with self._lock:
            if not self._adopted:
                self._ports = {each.ifname: each.port for each in bound}
                self._adopted = True
            try:
                await self._sync()
            except KERNEL_ERRORS as error:
                self._disturbed.set()
                raise BindError(f"networks of ports cannot be kept apart: {error}") from error

    async def bind(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`. It waits for the node's underlay, which takes a moment after the start of the process."""
        port = binding.port
        try:
            async with asyncio.timeout(timeout):
                await self._told.wait()
                async with self._lock:
                    await self._plug_in(binding.ifname, port)
        except TimeoutError:
            why = "" if self._told.is_set() else f": {_UNTOLD}"
            raise BindTimeoutError(f"the port {port.port} was not plugged in within {timeout:g} s{why}") from None
        except NetworkRefusedError as error:
            raise BindError(str(error)) from error
        except KERNEL_ERRORS as error:
            raise BindError(f"the port {port.port} was not plugged in: {error}") from error

    async def unbind(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`."""
        port = binding.port
        try:
            async with asyncio.timeout(timeout), self._lock:
                await self._unplug(binding.ifname, port.network)
        except TimeoutError:
            raise BindTimeoutError(f"the port {port.port} was not unplugged within {timeout:g} s") from None
        except KERNEL_ERRORS as error:
            raise BindError(f"the port {port.port} was not unplugged: {error}") from error

    # --- one port

    async def _plug_in(self, ifname: LinkName, port: Handoff) -> None:
        if self._underlay is None:
            raise NetworkRefusedError(_UNTOLD)
        links = await self._kernel.node_links()
        refuse_conflicts(ifname, port, self._ports, links)
        ports = {**self._of_network(port.network), ifname: port}
        plan = self._plan(ports, self._underlay, links)
        before = self._ports.get(ifname)
        self._ports[ifname] = port
        try:
            await self._load()
            missing = await self._kernel.sync_network(plan, self._underlay.peers)
            if ifname in missing:
                raise NetlinkError(f"there is no link {ifname}")
        except BaseException:
            if before is None:
                await self._undo(ifname, port.network)
            raise

    async def _undo(self, ifname: LinkName, network: NetworkId) -> None:
        """What cannot be undone now, `run` does."""
        try:
            await self._unplug(ifname, network)
        except KERNEL_ERRORS as error:
            self._log.warning("a port was not unplugged, trying again", link=ifname, error=str(error))

    async def _unplug(self, ifname: LinkName, network: NetworkId) -> None:
        self._ports.pop(ifname, None)
        self._disturbed.set()  # whatever happens now, all of it is looked at once more
        rest = self._of_network(network)
        await self._kernel.release_ports(network, rest.keys())
        if not rest:
            await self._kernel.remove_network(network)
        elif (plan := await self._planned(rest)) is not None:
            await self._kernel.sync_network(plan, self._underlay.peers if self._underlay is not None else ())
        await self._load()

    # --- all of it

    async def run(self) -> None:
        """Keep everything what it should be, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._note_table_changes())
            tasks.create_task(self._mend_for_ever())

    async def _note_table_changes(self) -> None:
        while True:
            await self._kernel.tables_changed()
            self._disturbed.set()

    async def _mend_for_ever(self) -> None:
        attempts = 0
        while True:
            try:
                async with asyncio.timeout(REAPPLY_SECONDS):
                    await self._disturbed.wait()
            except TimeoutError:
                pass
            self._disturbed.clear()
            if not self._adopted:
                continue
            try:
                async with self._lock:
                    mended = await self._sync()
            except KERNEL_ERRORS as error:
                self._log.warning("networks of ports are not complete", error=str(error))
                self._disturbed.set()
                mended = True
            attempts = attempts + 1 if mended else 0
            if mended:
                await asyncio.sleep(_PACE.delay(attempts, self._random))

    async def _sync(self) -> bool:
        """Compare all of it; whether something could not be made, or the tables were not right.

        Raises where the tables cannot be loaded: then no port is plugged in. Of networks one does not wait for another.
        """
        mended = await self._load()
        failed = False
        networks = {port.network for port in self._ports.values()}
        for network in sorted(networks | await self._kernel.networks()):
            try:
                await self._sync_network(network)
            except (*KERNEL_ERRORS, NetworkRefusedError) as error:
                self._log.warning("a network of ports is not complete", network=network, error=str(error))
                failed = True
        return mended or failed

    async def _sync_network(self, network: NetworkId) -> None:
        ports = self._of_network(network)
        await self._kernel.release_ports(network, ports.keys())
        if not ports:
            await self._kernel.remove_network(network)
        elif (plan := await self._planned(ports)) is not None and self._underlay is not None:
            missing = await self._kernel.sync_network(plan, self._underlay.peers)
            if missing:
                self._log.debug("ports without a link", network=network, links=sorted(missing))

    async def _load(self) -> bool:
        peers = self._underlay.peers if self._underlay is not None else frozenset[IPAddress]()
        sources = {
            each.interface.ip: node_address(each.interface) for port in self._ports.values() for each in port.addresses
        }
        ports = [BridgedPort.of(ifname, port) for ifname, port in self._ports.items()]
        tables = plan_overlay_table(udp_port=self._udp_port), plan_port_table(ports)
        return await self._kernel.load(tables, plan_overlay_elements(peers, sources))

    async def _planned(self, ports: Mapping[LinkName, Handoff]) -> NodeBridge | None:
        """None while nobody knows the node's own address: what an earlier process has made stays as it is."""
        if self._underlay is None:
            return None
        return self._plan(ports, self._underlay, await self._kernel.node_links())

    def _plan(self, ports: Mapping[LinkName, Handoff], underlay: Underlay, links: Collection[ParentLink]) -> NodeBridge:
        parent = next((link for link in links if link.has(underlay.local)), None)
        if parent is None:
            raise NetworkRefusedError(
                f"no Ethernet link of this node that is up has its InternalIP {underlay.local}, from which other nodes "
                "expect its packets"
            )
        return plan_network(ports, local=underlay.local, parent=parent, udp_port=self._udp_port)

    def _of_network(self, network: NetworkId) -> dict[LinkName, Handoff]:
        return {name: port for name, port in self._ports.items() if port.network == network}
