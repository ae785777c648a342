"""Wires pods that are ports of Neutron's networks: a veth with the port's hardware address, MTU and addresses, whose
host's end is plugged into the network by the binding of the port's type.

    ADD:  veth ─► bind ─► the journal: bound ─► Neutron: ACTIVE         undone from the right if a step fails
    DEL:  unbind ─► veth                                                the veth goes even if the port stays plugged in

Recovery reads the aliases of links, and the journal for all else; where that was lost, the pod's annotation. What was
bound and has no link any more is unplugged in the background (`coild.neutron.unplugging`).
"""

import asyncio
from collections.abc import Collection

from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.link import LinkName, parse_link_name
from coil.netlink.error import NetlinkError, PodCheckError
from coil.netlink.host import NetnsPath, PodLink
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import Assignment, PodPlan, plan_port
from coild.model.address_source import NONE_ENDED, AddressSource, Ended, Exclusively
from coild.model.attachment import Attachment, InvalidPodError, alias_key, first_of_each_family
from coild.model.pod_network import PodNetwork
from coild.model.port_error import BindError, PortError
from coild.neutron.bindings import Bindings
from coild.neutron.handoffs import PodHandoffs
from coild.neutron.journal import PortHolding
from coild.neutron.ledger import PortLedger
from coild.neutron.rule_follower import RuleFollower
from coild.neutron.source import parse_tag


class NeutronWiring:
    """Implements `coild.model.address_source.PodWiring`, and raises PortErrors as well. One per process.

    `active_timeout` is how long an ADD waits for ACTIVE, in seconds; 0 for not at all.
    """

    def __init__(
        self,
        network: PodNetwork,
        *,
        ledger: PortLedger,
        bindings: Bindings,
        handoffs: PodHandoffs,
        rules: RuleFollower,
        active_timeout: float,
        log: FilteringBoundLogger,
    ) -> None:
        self._network = network
        self._ledger = ledger
        self._bindings = bindings
        self._handoffs = handoffs
        self._rules = rules
        self._active_timeout = active_timeout
        self._log = log
        self._recovered = False

    async def prepare(self) -> None:
        """See `PodWiring`. Once it is known what is plugged in; before, nothing is taken away from anybody."""
        if self._recovered:
            await self._bindings.prepare(self._ledger.bound())

    # --- one pod

    def plan(self, attachment: Attachment) -> PodPlan:
        """See `PodWiring`."""
        holding = self._ledger.find(attachment.key)
        if holding is None or attachment.alias is None:
            raise InvalidPodError("nobody knows any more which port the pod has; it has to be created anew")
        port = holding.port
        try:
            return plan_port(
                host_name=attachment.link or holding.link,
                ifname=parse_link_name(attachment.key.ifname),
                alias=attachment.alias,
                mac=port.mac,
                assignments=[
                    Assignment(interface=address.interface, gateway=address.gateway) for address in port.addresses
                ],
                mtu=port.mtu,
                nameservers=port.nameservers,
            )
        except ValueError as error:
            raise InvalidPodError(str(error)) from error

    async def attach(self, attachment: Attachment, plan: PodPlan, netns: NetnsPath) -> Attachment:
        """See `PodWiring`. On return the port is plugged in and, unless nobody can tell, ACTIVE."""
        holding = self._ledger.find(attachment.key)
        if holding is None:
            raise NetlinkError("the pod has given its port back")
        await self._network.attach_pod(plan, netns)
        try:
            await self._plug(holding)
        except BaseException:
            await self._remove_link(plan.host.name)
            raise
        return attachment

    async def check(self, attachment: Attachment, plan: PodPlan, netns: NetnsPath) -> None:
        """See `PodWiring`. What a binding has made is its own affair; here it counts that it has."""
        holding = self._ledger.find(attachment.key)
        if holding is None or not holding.bound:
            raise PodCheckError((f"the port of {plan.host.name} plugged in",))
        await self._network.check_pod(plan, netns)

    async def detach(self, attachment: Attachment) -> None:
        """See `PodWiring`. A port that cannot be unplugged is left to the background, and does not keep the pod."""
        holding = self._ledger.find(attachment.key)
        if holding is not None:
            await self._unplug(holding)
        if attachment.link is not None:
            await self._network.detach_pod(attachment.link)

    async def _plug(self, holding: PortHolding) -> None:
        """Bind, and wait for ACTIVE; undone if that fails, or left to be undone."""
        try:
            await self._bindings.bind(holding.binding)
        except BindError as error:
            if not error.undone:
                self._ledger.leave(holding.key)
            raise
        except asyncio.CancelledError:
            # It says that it has undone what it did. A second time does no harm, and then it is certain.
            self._ledger.leave(holding.key)
            raise
        try:
            self._ledger.note_bound(holding.key)
            # They may have changed meanwhile, when the port was none that is followed.
            await self._rules.settle(holding.key)
            if holding.reported and self._active_timeout > 0:
                deadline = asyncio.get_running_loop().time() + self._active_timeout
                await self._handoffs.wait_active(holding.pod, holding.port.port, deadline=deadline)
        except BaseException:
            await self._unplug(holding)
            raise

    async def _unplug(self, holding: PortHolding) -> None:
        try:
            await self._bindings.unbind(holding.binding)
        except PortError as error:
            self._log.warning("a port stays plugged in for now", port=holding.port.port, error=str(error))
            self._ledger.leave(holding.key)
        except BaseException:
            self._ledger.leave(holding.key)
            raise
        else:
            self._ledger.note_unbound(holding.key)

    async def _remove_link(self, name: LinkName) -> None:
        try:
            await self._network.detach_pod(name)
        except NetlinkError as error:
            self._log.error("the link of a failed ADD is still there", link=name, error=str(error))

    # --- all pods

    async def aliases(self) -> frozenset[PodAlias]:
        """See `PodWiring`."""
        return frozenset(link.alias for link in await self._network.pod_links())

    async def recover(self, source: AddressSource, ended: Ended = NONE_ENDED) -> list[Attachment]:
        """See `PodWiring`. Of a link whose port nobody knows any more, the addresses are not known either."""
        links: dict[AttachmentKey, PodLink] = {}
        for link in await self._network.pod_links():
            if source.owns(link.alias):
                links.setdefault(alias_key(link.alias), link)
        found = [self._found(key, link) for key, link in links.items()]
        await source.recover(found, ended)
        self._recovered = True
        await self.prepare()
        return found

    async def restore(self, attachments: Collection[Attachment], exclusively: Exclusively) -> None:
        """See `PodWiring`. What others take from a port is its binding's to put back (`prepare`)."""

    def _found(self, key: AttachmentKey, link: PodLink) -> Attachment:
        if self._ledger.find(key) is None:
            self._adopt(key, link)
        holding = self._ledger.find(key)
        return Attachment(
            key=key,
            pod=None,
            addresses=()
            if holding is None
            else first_of_each_family(address.interface.ip for address in holding.port.addresses),
            alias=link.alias,
            link=link.name,
            container=key.container_id,
        )

    def _adopt(self, key: AttachmentKey, link: PodLink) -> None:
        """The journal does not have the link; perhaps an annotation names its port."""
        port = parse_tag(link.alias.tag)
        known = None if port is None else self._handoffs.by_port(port)
        if known is not None and self._ledger.adopt(key, known[0], link.name, known[1]):
            self._log.warning("the journal lacks a pod, which was found by its annotation", link=link.name, port=port)
        else:
            self._log.error(
                "neither the journal nor an annotation knows a pod's port; it will not be unplugged when the pod ends",
                link=link.name,
                port=port,
            )
