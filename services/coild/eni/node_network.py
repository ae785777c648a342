"""The node's network for pods with addresses of interfaces, kept what it should be.

    coild.eni.provisioner ─► apply(NodeState) ─┐
    coild.eni.wiring ─► add_pod, remove_pod ───┼─► coil.eni.node_plan, nat_plan ─► the kernel: links, tables, rules, NAT
    the kernel: somebody has changed it ───────┘

An ADD costs one message, and none for a pod of the primary interface. Everything else is a comparison of all of it:
when the interfaces or the VPC's CIDRs have changed, when the kernel tells of a change that is not ours, and
periodically. What others change is put right at once the first time; whoever undoes that again and again meets an ever
slower answer. Rules, routes and tables of others are left alone.

What is told of a change depends on what is wanted at that moment, so a pod is entered before its rule is made, and
leaves before its rule does.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from coil.eni.interface import InterfaceId
from coil.eni.nat_plan import PrimaryLink, SecondaryLink, plan_nat_elements, plan_nat_table
from coil.eni.node_plan import (
    ANSWER_PRIORITY,
    PROTOCOL,
    RULE_CLAIM,
    SHARED_CLAIM,
    TABLES,
    AttachedInterface,
    NodeState,
    plan_answer_rule,
    plan_node,
    plan_source_rule,
)
from coil.kernel.family import IPAddress
from coil.kernel.link import Link, LinkName, LinkState
from coil.kernel.nft_element import Elements
from coil.kernel.nft_table import NftTable
from coil.kernel.rule import Rule
from coil.netlink.eni_link import NodeSync
from coil.netlink.eni_sysctl import LOOSE
from coil.netlink.error import NetlinkError, PodCheckError
from coil.netlink.node_watch import (
    ALL_LINKS,
    AddressEvent,
    EventsLost,
    LinkEvent,
    Listener,
    NeighbourEvent,
    NodeEvent,
    PathFilterEvent,
    RouteEvent,
    RuleEvent,
)
from coil.nft.netfilter import NftError
from coil.podnet.plan import LINK_LOCAL
from coil.reconcile.backoff import Backoff
from coild.eni.diversion_watch import DiversionWatch, Interfaces, RoutingReader

REAPPLY_SECONDS: Final = 60.0
"""Between two comparisons at most: of what no event tells, such as most sysctls."""
_SETTING_SECONDS: Final = 1.0
"""Between two looks at the one sysctl that must not be wrong for longer: while it is, a router is not listened to."""
_SETTLE_SECONDS: Final = 0.05
"""Changes that come together, such as those of a table that is flushed, are one."""
_PACE: Final = Backoff(base=0.1, cap=10.0)
"""Between two repairs, when there is one after the other."""
_LOOK_PACE: Final = Backoff(base=0.05, cap=0.5)
"""Between two looks that find nothing to repair, as when so much happens that the kernel cannot tell all of it."""
_EXAMPLES: Final = 5
_GATEWAYS: Final = frozenset(address.ip for address in (LINK_LOCAL.ipv4, LINK_LOCAL.ipv6) if address is not None)
"""Of which pods have a neighbour (`coild.settings.refuse_contradictions`)."""


class EniKernel(RoutingReader, Protocol):
    """The kernel; `coild.eni.node_kernel.NodeKernel`. Calls but for `sync_table` take turns in the order in which they
    were made, raise NetlinkError, and may take effect after a cancellation.
    """

    async def keep_default_route(self) -> None:
        """Have the kernel keep the default route that a router has advertised, although it is about to forward; see
        `coil.netlink.eni_sysctl`. Idempotent.
        """
        ...

    async def keeps_advertised_routes(self, link: LinkName) -> bool:
        """Whether it takes default routes from routers on that link although it forwards."""
        ...

    async def sync(
        self,
        interfaces: Collection[AttachedInterface],
        pods: Collection[tuple[IPAddress, InterfaceId]] | None,
        *,
        pod_table: int,
        mtu: int | None,
    ) -> NodeSync:
        """Make links, tables and rules what is wanted; see `coil.netlink.eni_link.sync_node`. Idempotent."""
        ...

    async def add_rule(self, rule: Rule) -> None:
        """Add one. Idempotent."""
        ...

    async def delete_rule(self, rule: Rule) -> None:
        """Delete one. Idempotent."""
        ...

    async def has_rule(self, rule: Rule) -> bool:
        """Whether it is there."""
        ...

    async def sync_table(self, table: NftTable, elements: Elements) -> bool:
        """Make the table, with these elements and no others; whether it was not so. Idempotent. Raises NftError."""
        ...

    async def table_changed(self) -> None:
        """Wait until something else has changed the table. For one task."""
        ...

    async def watch(self, listener: Listener) -> bool:
        """Tell of events from now on, and whether those of pods' namespaces are among them. Once."""
        ...


class NodeNetwork:
    """One per process. `pod_table` has the routes to the pods; `mtu` is for the links of interfaces, None: that of the
    primary one's. All methods belong to the event loop's thread.
    """

    def __init__(
        self,
        kernel: EniKernel,
        *,
        pod_table: int,
        mtu: int | None,
        random: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._kernel = kernel
        self._pod_table = pod_table
        self._mtu = mtu
        self._random = random
        self._log = log
        self._state: NodeState | None = None
        self._links: Mapping[InterfaceId, Link] = {}
        self.own_addresses: frozenset[IPAddress] = frozenset()
        """Addresses of the interfaces' ranges that the node itself has, on any link: no pod is to get them."""
        self._pods: dict[IPAddress, InterfaceId] = {}
        self._adopted = False
        self._unplaced: set[IPAddress] = set()
        """Of pods whose interface nobody has named yet."""
        self._leaving: set[IPAddress] = set()
        self._told: frozenset[InterfaceId] = frozenset()
        """What `apply` has answered last."""
        self._shared_rules = frozenset(rule.lookup for rule in plan_node((), {}, (), pod_table=pod_table).rules)
        self._disturbed = asyncio.Event()
        self._lost_neighbours: set[int] = set()
        self._diversions = DiversionWatch(kernel, self._find_interfaces, log=log)
        self.links_changed = asyncio.Event()
        """An interface's link has appeared, gone, or come up or down, or `own_addresses` have changed, since this was
        cleared.
        """
        self.pods_disturbed = asyncio.Event()
        """Something of a single pod's is not there any more: its route, or its neighbour."""

    # --- interfaces

    async def prepare(self) -> None:
        """To be called before the node forwards, whatever is known of its interfaces. Idempotent. Raises
        NetlinkError.
        """
        await self._kernel.keep_default_route()

    async def apply(self, state: NodeState) -> frozenset[InterfaceId]:
        """Have the network made for these interfaces; returns those whose links are there, up, and can send.

        Idempotent. Raises NetlinkError or NftError for the first thing that could not be done, after having tried the
        rest; what could not is tried again by `run`. A cancelled call may still take effect.
        """
        self._state = state
        self._place(state)
        try:
            await self._sync(state)
        except BaseException:
            self._disturbed.set()
            raise
        self._told = self._able()
        self._diversions.look_soon()
        return self._told

    @property
    def diversions(self) -> tuple[str, ...] | None:
        """What routing of others catches what pods send, a sentence for each; None before the first look."""
        return self._diversions.found

    def _find_interfaces(self) -> Interfaces | None:
        return (self._state.interfaces, self._links) if self._state is not None else None

    def _able(self) -> frozenset[InterfaceId]:
        return frozenset(interface for interface, link in self._links.items() if _can_send(link))

    async def adopt(self, pods: Mapping[IPAddress, InterfaceId], *, unplaced: Collection[IPAddress] = ()) -> None:
        """From now on it is known which pods there are, these before all; rules of others that earlier processes made
        are deleted. Of `unplaced` ones nobody knows the interface: while the state is not complete, which may be why,
        what earlier processes made is left alone. Once. Raises as `apply`.
        """
        self._pods |= pods
        self._unplaced |= set(unplaced)
        self._adopted = True
        if self._state is not None:
            await self.apply(self._state)

    def _place(self, state: NodeState) -> None:
        for address in list(self._unplaced):
            places = (each.interface for each in state.interfaces)
            found = next((each.id for each in places if any(address in network for network in each.ranges)), None)
            if found is not None:
                self._unplaced.discard(address)
                self._pods[address] = found

    @property
    def _pods_known(self) -> bool:
        """Whether a rule that serves none of `_pods` serves nobody."""
        return self._adopted and (not self._unplaced or self.interfaces_known)

    @property
    def interfaces_known(self) -> bool:
        """Whether EC2 has named the node's interfaces: an address that none of them has is not the node's."""
        return self._state is not None and self._state.complete

    # --- one pod

    async def add_pod(self, address: IPAddress, interface: InterfaceId) -> None:
        """Have what a pod with that address sends leave by the interface. Idempotent.

        Raises NetlinkError, and then nothing is left of it, or is about to be.
        """
        rule = plan_source_rule(address, self._attached(interface))
        self._pods[address] = interface
        self._unplaced.discard(address)
        self._leaving.discard(address)
        if rule is None:
            return
        try:
            await self._kernel.add_rule(rule)
        except BaseException:
            self._pods.pop(address, None)
            self._disturbed.set()
            raise

    def expect_end(self, address: IPAddress) -> None:
        """The pod's routes are about to go: nobody needs to put them back."""
        self._leaving.add(address)

    async def remove_pod(self, address: IPAddress) -> None:
        """The pod is gone. Idempotent. Raises NetlinkError, and may be called again then."""
        if address in self._unplaced:
            self._unplaced.discard(address)
            self._disturbed.set()  # its rule is nobody's now
        interface = self._pods.pop(address, None)
        attached = self._state.find(interface) if self._state is not None and interface is not None else None
        rule = plan_source_rule(address, attached) if attached is not None else None
        try:
            if rule is not None:
                await self._kernel.delete_rule(rule)
        except BaseException:
            if interface is not None:
                self._pods.setdefault(address, interface)
            raise
        self._leaving.discard(address)

    async def check_pod(self, address: IPAddress, interface: InterfaceId) -> None:
        """Raises PodCheckError where the pod's rule is missing, NetlinkError where that cannot be said."""
        rule = plan_source_rule(address, self._attached(interface))
        if rule is not None and not await self._kernel.has_rule(rule):
            raise PodCheckError((str(rule),))

    def _attached(self, interface: InterfaceId) -> AttachedInterface:
        attached = self._state.find(interface) if self._state is not None else None
        if attached is None:
            raise NetlinkError(f"the node's network is not made for the interface {interface}")
        return attached

    @property
    def lost_neighbours(self) -> frozenset[int]:
        """The numbers of the namespaces in which somebody has deleted a neighbour."""
        return frozenset(self._lost_neighbours)

    def forget_lost_neighbours(self, numbers: Collection[int]) -> None:
        """They are being seen to."""
        self._lost_neighbours.difference_update(numbers)

    def remember_lost_neighbours(self, numbers: Collection[int]) -> None:
        """They have not been put back, and somebody has to try again."""
        self._lost_neighbours.update(numbers)
        self.pods_disturbed.set()

    # --- what others do

    async def run(self) -> None:
        """Keep the network what it should be, for ever."""
        if not await self._kernel.watch(self.note):
            self._log.warning(
                "not told of pods' neighbours that others delete: the capability NET_BROADCAST is missing"
            )
        # By what has happened before.
        self._disturbed.set()
        self.pods_disturbed.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._note_table_changes())
            tasks.create_task(self._note_setting_changes())
            tasks.create_task(self._diversions.run())
            tasks.create_task(self._mend_for_ever())

    async def _note_table_changes(self) -> None:
        while True:
            await self._kernel.table_changed()
            self._disturbed.set()

    async def _note_setting_changes(self) -> None:
        while True:
            await asyncio.sleep(_SETTING_SECONDS)
            primary = self._state.primary if self._state is not None else None
            link = self._links.get(primary.interface.id) if primary is not None else None
            # A kernel that is too busy to be asked is asked the next time.
            with suppress(NetlinkError):
                if link is not None and not await self._kernel.keeps_advertised_routes(link.name):
                    self._disturbed.set()

    async def _mend_for_ever(self) -> None:
        clock = asyncio.get_running_loop().time
        repairs, last = 0, clock()
        looks, looked = 0, clock()
        while True:
            try:
                async with asyncio.timeout(REAPPLY_SECONDS):
                    await self._disturbed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(_SETTLE_SECONDS)
            self._disturbed.clear()
            if self._state is None:
                continue
            if clock() - last > 2 * _PACE.cap:
                repairs = 0
            try:
                changes = await self._sync(self._state)
            except (NetlinkError, NftError) as error:
                self._log.warning("the node's network is not complete", error=str(error))
                self._disturbed.set()
            else:
                if not changes:
                    looks = looks + 1 if clock() - looked < 2 * _LOOK_PACE.cap else 0
                    looked = clock()
                    await asyncio.sleep(_LOOK_PACE.delay(looks, self._random))
                    continue
                examples = changes[:_EXAMPLES]
                self._log.warning("the node's network was not as it should be, and is now", changes=examples)
            finally:
                if self._able() != self._told:
                    self.links_changed.set()
            last = clock()
            await asyncio.sleep(_PACE.delay(repairs, self._random))
            repairs += 1

    async def _sync(self, state: NodeState) -> tuple[str, ...]:
        """Returns what was not as it should be, in words."""
        pods = tuple(self._pods.items()) if self._pods_known else None
        result = await self._kernel.sync(state.interfaces, pods, pod_table=self._pod_table, mtu=self._mtu)
        self._links = result.links
        self._note_own(result.addresses, state)
        primary = state.primary
        link = result.links.get(primary.interface.id) if primary is not None else None
        if primary is None or link is None:
            raise NetlinkError("the primary interface has no link: nothing is translated to its address")
        table = plan_nat_table(
            PrimaryLink(link.name, primary.interface.primary),
            [
                SecondaryLink(found.name, each.mark)
                for each in state.interfaces
                if each.mark is not None and (found := result.links.get(each.interface.id)) is not None
            ],
            external_snat=state.external_snat,
            metadata_access=state.metadata_access,
            snat_ports=state.snat_ports,
        )
        different = await self._kernel.sync_table(table, plan_nat_elements(state.ranges, state.inside))
        return (*result.changes, *([str(table)] if different else ()))

    def _note_own(self, addresses: frozenset[IPAddress], state: NodeState) -> None:
        ranges = state.ranges
        own = frozenset(address for address in addresses if any(address in network for network in ranges))
        if own == self.own_addresses:
            return
        if new := own - self.own_addresses:
            # Such as by a tool that configures all addresses of an interface.
            self._log.warning("the node itself has addresses of pods; they are not given", addresses=_texts(new))
        self.own_addresses = own
        self.links_changed.set()

    def note(self, event: NodeEvent) -> None:
        """Something has happened; if it concerns what is wanted, it is looked at."""
        self._diversions.note(event)
        match event:
            case EventsLost():
                # A link that is not what it was is found by that look.
                self._disturbed.set()
                self.pods_disturbed.set()
            case LinkEvent():
                self._note_link(event)
            case AddressEvent(index, address, gone):
                if (gone and self._is_interface(index)) or self._is_of_pods(address):
                    self._disturbed.set()
            case PathFilterEvent(index, value):
                # Off for a link is strict if it is strict for all.
                if value != int(LOOSE) and (index == ALL_LINKS or self._is_interface(index)):
                    self._disturbed.set()
            case RuleEvent(rule, gone):
                claim = RULE_CLAIM if self._pods_known else SHARED_CLAIM
                if claim.covers(rule) and self._wants(rule) is gone:
                    self._disturbed.set()
            case RouteEvent():
                self._note_route(event)
            case NeighbourEvent(namespace, address) if address in _GATEWAYS:
                # Of others that it cannot reach, a pod makes as many as it likes, and the kernel deletes them.
                self._lost_neighbours.add(namespace)
                self.pods_disturbed.set()

    def _is_of_pods(self, address: IPAddress) -> bool:
        """Whether pods may get it."""
        return self._state is not None and any(address in network for network in self._state.ranges)

    def _is_interface(self, index: int) -> bool:
        return any(link.index == index for link in self._links.values())

    def _note_link(self, event: LinkEvent) -> None:
        for attached in self._state.interfaces if self._state is not None else ():
            interface, link = attached.interface, event.link
            known = self._links.get(interface.id)
            if link.mac != interface.mac and (known is None or known.index != link.index):
                continue
            if known is not None and known.index != link.index and known.mac == link.mac:
                continue  # another one with its hardware address, such as a VLAN
            if event.gone or known is None or _can_send(known) is not _can_send(link):
                self.links_changed.set()
            if event.gone or known is None or known != link:
                self._disturbed.set()

    def _wants(self, rule: Rule) -> bool:
        if SHARED_CLAIM.covers(rule):
            return rule.lookup in self._shared_rules
        if self._state is None:
            return False
        if rule.priority == ANSWER_PRIORITY:
            wanted_rules = map(plan_answer_rule, self._state.interfaces)
            return rule.lookup in {wanted.lookup for wanted in wanted_rules if wanted is not None}
        if rule.source is None or rule.source.num_addresses != 1:
            return False
        address = rule.source.network_address
        own = next((each for each in self._state.interfaces if each.interface.primary == address), None)
        pod = self._pods.get(address)
        attached = own or (self._state.find(pod) if pod is not None else None)
        wanted = plan_source_rule(address, attached) if attached is not None else None
        return wanted is not None and wanted.lookup == rule.lookup

    def _note_route(self, event: RouteEvent) -> None:
        ours = event.protocol == PROTOCOL
        if event.table in TABLES and ours is event.gone:
            self._disturbed.set()
        elif event.table == self._pod_table and event.gone and event.destination.num_addresses == 1:
            address = event.destination.network_address
            if address in self._pods and address not in self._leaving:
                self.pods_disturbed.set()


def _texts(addresses: Collection[IPAddress]) -> list[str]:
    return sorted(map(str, addresses))[:_EXAMPLES]


def _can_send(link: Link) -> bool:
    return link.state is LinkState.UP and link.carrier
