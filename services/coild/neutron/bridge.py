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
from dataclasses import dataclass, replace
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from coil.kernel.bridge import Bridge
from coil.kernel.family import IPAddress, IPInterface
from coil.kernel.link import LinkName, ParentLink
from coil.kernel.nft_element import ElementChanges, Elements
from coil.kernel.vxlan import Vxlan
from coil.netlink.error import NetlinkError
from coil.neutron.handoff import Handoff
from coil.neutron.node_address import NodeAddressError, node_address
from coil.neutron.node_bridge import (
    BridgedPort,
    NetworkRefusedError,
    NodeBridge,
    plan_network,
    refuse_conflicts,
)
from coil.neutron.overlay_filter import plan_overlay_elements
from coil.neutron.port_filter import plan_port_elements
from coil.neutron.port_rules import RuleSet
from coil.neutron.resource import NetworkId
from coil.neutron.underlay import Underlay
from coil.nft.netfilter import NftError
from coil.reconcile.backoff import Backoff
from coild.model.port_error import BindError, BindTimeoutError
from coild.neutron.binding import PortBinding
from coild.neutron.port_elements import PortElements

KERNEL_ERRORS: Final = (NetlinkError, NftError)
REAPPLY_SECONDS: Final = 60.0
"""Between two comparisons at most: of what no event tells."""
_UNTOLD: Final = "this node's InternalIP is not known yet: coild has not received the Nodes from the API server"
_PEERS: Final = ("peers",)
"""The owner of what the tables have of the other nodes. The other owners are names of links."""
_PACE: Final = Backoff(base=0.1, cap=30.0)
"""Between two comparisons of which the first has failed, or has found something to repair."""


class BridgeKernel(Protocol):
    """The kernel; `coild.neutron.bridge_kernel.BridgeNetwork`. Calls take turns in the order in which they were made,
    are idempotent but for `change`, and may take effect after a cancellation. They raise NetlinkError, `load` and
    `change` NftError.
    """

    @property
    def udp_port(self) -> int:
        """That of VXLAN."""
        ...

    @property
    def checksum_offload(self) -> bool:
        """Whether checksums in VXLAN are left to the node's network interface."""
        ...

    async def node_links(self, local: IPAddress | None, /) -> Collection[ParentLink]:
        """The node's own links that are up, with their addresses; the one by which packets of `local` leave has that,
        too.
        """
        ...

    async def load(self, elements: Elements, rule_sets: Collection[RuleSet]) -> bool:
        """Make the tables what is wanted, with the chains for these rules, and with these elements and no others;
        whether they were not.
        """
        ...

    async def change(self, changes: ElementChanges) -> None:
        """Change elements of tables that are right. Raises NftError where they are not: then `load` is the way on."""
        ...

    async def sync_network(self, plan: NodeBridge, peers: Collection[IPAddress]) -> Collection[LinkName]:
        """Make one network what is planned; returns the ports whose links are not there."""
        ...

    async def plug_port(self, changes: ElementChanges, bridge: Bridge, port: BridgedPort) -> None:
        """Change elements as `change` does, and then plug one port into a bridge that is right. After an error the
        elements may have changed, or not.
        """
        ...

    async def unplug_port(self, network: NetworkId, port: BridgedPort) -> None:
        """Have one port be none of the network's any more."""
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


@dataclass(frozen=True, slots=True)
class _Port:
    """A port that is plugged in, or is to be; `elements` are its own in the tables."""

    handoff: Handoff
    bridged: BridgedPort
    elements: Elements

    @classmethod
    def of(cls, ifname: LinkName, handoff: Handoff) -> "_Port":
        bridged = BridgedPort.of(ifname, handoff)
        sources = {interface.ip: node_address(interface) for interface in bridged.addresses}
        return cls(handoff, bridged, {**plan_overlay_elements((), sources), **plan_port_elements([bridged])})


@dataclass(frozen=True, slots=True)
class _Made:
    """A network as it was made: what of it does not depend on which ports it has."""

    bridge: Bridge
    uplink: Vxlan
    addresses: frozenset[IPInterface]
    underlay: Underlay

    @classmethod
    def of(cls, plan: NodeBridge, underlay: Underlay) -> "_Made":
        return cls(plan.bridge, plan.uplink, plan.addresses, underlay)

    def has_room(self, port: _Port, underlay: Underlay) -> bool:
        """Whether it stays as it is if that port becomes one of its ports."""
        return (
            self.underlay == underlay
            and self.uplink.vni == port.handoff.segmentation
            and self.bridge.mtu >= port.handoff.mtu
            and self.addresses >= port.bridged.node_addresses
        )


class BridgeBinding:
    """Implements `coild.neutron.binding.Binding`. One per process; all methods belong to the event loop's thread.

    A port costs what is its own. All ports of the node are compared with the kernel at the start, when something has
    been disturbed, and once a minute.
    """

    def __init__(
        self,
        kernel: BridgeKernel,
        *,
        random: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._kernel = kernel
        self._random = random
        self._log = log
        self._underlay: Underlay | None = None
        self._told = asyncio.Event()
        """Whether there is an underlay."""
        self._ports: dict[LinkName, _Port] = {}
        self._elements = PortElements()
        """What the tables are to have."""
        self._loaded = False
        """Whether they have what was taken of that."""
        self._rule_sets: frozenset[RuleSet] = frozenset()
        """The rules that the tables have chains for."""
        self._made: dict[NetworkId, _Made] = {}
        """The networks that were complete when they were looked at last."""
        self._links: Collection[ParentLink] | None = None
        """The node's own, as they were at the last comparison."""
        self._adopted = False
        self._lock = asyncio.Lock()
        self._disturbed = asyncio.Event()

    # --- what is known

    def set_underlay(self, underlay: Underlay) -> None:
        """From now on these are the nodes. `run` brings it about."""
        if underlay != self._underlay:
            self._underlay = underlay
            self._elements.write(_PEERS, plan_overlay_elements(underlay.peers, {}))
            self._told.set()
            self._disturbed.set()

    # --- Binding

    async def prepare(self, bound: Collection[PortBinding]) -> None:
        """See `Binding`. Raises BindError where the tables cannot be loaded; what else cannot be made, `run`
        tries again. Bridges of networks without a port go with the first call.
        """
        async with self._lock:
            if not self._adopted:
                self._adopt(bound)
                self._adopted = True
            try:
                await self._sync()
            except KERNEL_ERRORS as error:
                self._disturbed.set()
                raise BindError(f"networks of ports cannot be kept apart: {error}") from error

    def _adopt(self, bound: Collection[PortBinding]) -> None:
        for each in bound:
            try:
                self._know(each.ifname, _Port.of(each.ifname, each.port))
            except NodeAddressError as error:
                # It was refused when it came. The comparison that follows takes it off the bridge.
                self._log.error("a port stays cut off", link=each.ifname, port=each.port.port, error=str(error))

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

    async def apply_rules(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`."""
        port = binding.port
        try:
            async with asyncio.timeout(timeout), self._lock:
                known = self._ports.get(binding.ifname)
                if known is not None and known.handoff.port == port.port:
                    self._know(binding.ifname, _Port.of(binding.ifname, replace(known.handoff, rules=port.rules)))
                    await self._update()
        except TimeoutError:
            raise BindTimeoutError(f"the rules of the port {port.port} do not hold after {timeout:g} s") from None
        except KERNEL_ERRORS as error:
            raise BindError(f"the rules of the port {port.port} do not hold: {error}") from error

    async def unbind(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`."""
        port = binding.port
        try:
            async with asyncio.timeout(timeout), self._lock:
                await self._unplug(binding.ifname, port)
        except TimeoutError:
            raise BindTimeoutError(f"the port {port.port} was not unplugged within {timeout:g} s") from None
        except KERNEL_ERRORS as error:
            raise BindError(f"the port {port.port} was not unplugged: {error}") from error

    # --- one port

    async def _plug_in(self, ifname: LinkName, port: Handoff) -> None:
        if self._underlay is None:
            raise NetworkRefusedError(_UNTOLD)
        if self._links is None:
            self._links = await self._kernel.node_links(self._underlay.local)
        refuse_conflicts(ifname, port, {name: each.handoff for name, each in self._ports.items()}, self._links)
        underlay, made, before = self._underlay, self._made.get(port.network), self._ports.get(ifname)
        try:
            added = _Port.of(ifname, port)
        except NodeAddressError as error:
            raise NetworkRefusedError(str(error)) from None
        plan = None
        if made is None or not made.has_room(added, underlay):
            plan = self._plan({**self._of_network(port.network), ifname: port}, underlay, self._links)
        self._know(ifname, added)
        try:
            if made is not None and plan is None and await self._plug_at_once(made.bridge, added):
                return
            await self._update()
            if plan is None:
                self._links = await self._kernel.node_links(underlay.local)
                plan = self._plan(self._of_network(port.network), underlay, self._links)
            if ifname in await self._make(plan, underlay):
                raise NetlinkError(f"there is no link {ifname}")
        except BaseException:
            if before is None:
                await self._undo(ifname, port)
            raise

    async def _plug_at_once(self, bridge: Bridge, port: _Port) -> bool:
        """Plug the port into a bridge that was complete, in one job with its elements. False where bridge or tables
        are not what they were.
        """
        if not self._is_loaded():
            await self._load()
        changes = self._take_changes()
        try:
            await self._kernel.plug_port(changes, bridge, port.bridged)
        except KERNEL_ERRORS as error:
            # Whether the tables have the elements is not known, so they are loaded before anything is plugged in.
            self._log.warning("a port was not plugged in at once", link=port.bridged.ifname, error=str(error))
            return False
        self._loaded = True
        return True

    async def _make(self, plan: NodeBridge, underlay: Underlay) -> Collection[LinkName]:
        """The whole network; returns the ports whose links are not there."""
        self._made.pop(plan.network, None)
        missing = await self._kernel.sync_network(plan, underlay.peers)
        self._made[plan.network] = _Made.of(plan, underlay)
        return missing

    async def _undo(self, ifname: LinkName, port: Handoff) -> None:
        """What cannot be undone now, `run` does."""
        try:
            await self._unplug(ifname, port)
        except KERNEL_ERRORS as error:
            self._log.warning("a port was not unplugged, trying again", link=ifname, error=str(error))

    async def _unplug(self, ifname: LinkName, port: Handoff) -> None:
        network = port.network
        self._forget(ifname)
        rest = self._of_network(network)
        try:
            if rest and network in self._made:
                await self._kernel.unplug_port(network, BridgedPort.of(ifname, port))
            else:
                self._made.pop(network, None)
                await self._kernel.release_ports(network, rest.keys())
                if not rest:
                    await self._kernel.remove_network(network)
            await self._update()
        except BaseException:
            self._disturbed.set()
            raise

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
        self._links = await self._kernel.node_links(self._underlay.local if self._underlay is not None else None)
        failed = False
        networks = {port.handoff.network for port in self._ports.values()}
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
            self._made.pop(network, None)
            await self._kernel.remove_network(network)
        # While nobody knows the node's own address, what an earlier process has made stays as it is.
        elif self._underlay is not None and self._links is not None:
            missing = await self._make(self._plan(ports, self._underlay, self._links), self._underlay)
            if missing:
                self._log.debug("ports without a link", network=network, links=sorted(missing))

    async def _update(self) -> None:
        """Have the tables know the ports as they are, by what has changed since they were right."""
        if self._is_loaded():
            changes = self._take_changes()
            try:
                await self._kernel.change(changes)
            except NftError as error:
                self._log.warning("the tables of ports are not what they were, loading them", error=str(error))
            else:
                self._loaded = True
                return
        await self._load()

    async def _load(self) -> bool:
        """Compare the tables with what they should be; whether they were not."""
        wanted, rule_sets = self._elements.elements(), self._planned_rule_sets()
        self._take_changes()
        changed = await self._kernel.load(wanted, rule_sets)
        self._loaded, self._rule_sets = True, rule_sets
        return changed

    def _is_loaded(self) -> bool:
        """Whether the tables lack nothing but what has changed since."""
        return self._loaded and self._planned_rule_sets() == self._rule_sets

    def _take_changes(self) -> ElementChanges:
        """What is carried out next. Until it is, nobody knows what the tables have."""
        self._loaded = False
        return self._elements.take_changes()

    def _know(self, ifname: LinkName, port: _Port) -> None:
        self._ports[ifname] = port
        self._elements.write(ifname, port.elements)

    def _forget(self, ifname: LinkName) -> None:
        self._ports.pop(ifname, None)
        self._elements.remove(ifname)

    def _planned_rule_sets(self) -> frozenset[RuleSet]:
        return frozenset(port.handoff.rules for port in self._ports.values() if port.handoff.rules is not None)

    def _plan(self, ports: Mapping[LinkName, Handoff], underlay: Underlay, links: Collection[ParentLink]) -> NodeBridge:
        parent = next((link for link in links if link.has(underlay.local)), None)
        if parent is None:
            raise NetworkRefusedError(
                f"no Ethernet link of this node that is up has its InternalIP {underlay.local}, from which other nodes "
                "expect its packets"
            )
        return plan_network(
            ports,
            local=underlay.local,
            parent=parent,
            udp_port=self._kernel.udp_port,
            checksum_offload=self._kernel.checksum_offload,
        )

    def _of_network(self, network: NetworkId) -> dict[LinkName, Handoff]:
        return {name: each.handoff for name, each in self._ports.items() if each.handoff.network == network}
