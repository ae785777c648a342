"""Wires pods that have addresses of interfaces: a veth like any pod's, and the rule that leads what the pod sends to
its interface.

The rule is there before the veth, and goes after it: what a pod sends never leaves by an interface that does not have
its address. Routes to pods and their neighbours that others delete are put back as soon as the kernel tells of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.eni.interface import InterfaceId
from coil.kernel.family import IPAddress
from coil.netlink.error import NetlinkError
from coil.netlink.host import NetnsPath
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import PodPlan
from coil.reconcile.backoff import Backoff
from coild.eni.node_network import NodeNetwork
from coild.model.address_source import NONE_ENDED, AddressSource, Ended, Exclusively, PodWiring
from coild.model.attachment import Attachment, InterfaceUnknownError
from coild.model.pod_network import PodNetwork

_SETTLE_SECONDS: Final = 0.05
_PACE: Final = Backoff(base=0.1, cap=10.0)

InterfaceOf = Callable[[IPAddress], InterfaceId | None]
"""Which interface has the address; None where none of those that are known has."""


class EniWiring:
    """Implements `coild.model.address_source.PodWiring`. One per process.

    `veth` makes the pods' links, with a policy that leaves the lookup of the pod table to `node`.
    """

    def __init__(
        self,
        veth: PodWiring[PodPlan],
        node: NodeNetwork,
        network: PodNetwork,
        *,
        interface_of: InterfaceOf,
        random: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._veth = veth
        self._node = node
        self._network = network
        self._interface_of = interface_of
        self._random = random
        self._log = log

    async def prepare(self) -> None:
        """See `PodWiring`. The interfaces' part of the node is `NodeNetwork`'s."""
        await self._node.prepare()
        await self._veth.prepare()

    def plan(self, attachment: Attachment) -> PodPlan:
        """See `PodWiring`."""
        return self._veth.plan(attachment)

    async def attach(self, attachment: Attachment, plan: PodPlan, netns: NetnsPath) -> Attachment:
        """See `PodWiring`."""
        try:
            for address in attachment.addresses:
                await self._node.add_pod(address, self._interface(address))
            return await self._veth.attach(attachment, plan, netns)
        except BaseException:
            # What cannot be undone now is not among what is wanted any more, and goes with the next comparison.
            with suppress(NetlinkError):
                await self._remove_rules(attachment)
            raise

    async def check(self, attachment: Attachment, plan: PodPlan, netns: NetnsPath) -> None:
        """See `PodWiring`."""
        await self._veth.check(attachment, plan, netns)
        for address in attachment.addresses:
            await self._node.check_pod(address, self._interface(address))

    async def detach(self, attachment: Attachment) -> None:
        """See `PodWiring`."""
        for address in attachment.addresses:
            self._node.expect_end(address)
        await self._veth.detach(attachment)
        await self._remove_rules(attachment)

    async def aliases(self) -> frozenset[PodAlias]:
        """See `PodWiring`."""
        return await self._veth.aliases()

    async def recover(self, source: AddressSource, ended: Ended = NONE_ENDED) -> list[Attachment]:
        """See `PodWiring`. Rules that serve no pod any more are deleted."""
        attachments = await self._veth.recover(source, ended)
        addresses = [address for attachment in attachments for address in attachment.addresses]
        found = {address: interface for address in addresses if (interface := self._interface_of(address)) is not None}
        unplaced = [address for address in addresses if address not in found]
        for address in unplaced:
            self._log.warning("no rule for a pod", address=str(address), error=str(self._explain(address)))
        await self._node.adopt(found, unplaced=unplaced)
        return attachments

    async def restore(self, attachments: Collection[Attachment], exclusively: Exclusively) -> None:
        """See `PodWiring`."""
        await self._veth.restore(attachments, exclusively)
        if numbers := self._node.lost_neighbours:
            aliases = await self._network.pods_in(numbers)
            self._node.forget_lost_neighbours(numbers)
            failed: list[Attachment] = []
            for attachment in attachments:
                if attachment.alias in aliases:
                    await exclusively(attachment.key, partial(self._restore_neighbours, attachment, failed))
            if failed:
                self._node.remember_lost_neighbours(numbers)

    async def follow(self, restore: Callable[[], Awaitable[None]]) -> None:
        """Call `restore`, the engine's, as soon as somebody has taken something away from a pod, for ever."""
        clock = asyncio.get_running_loop().time
        # A pod with NET_ADMIN deletes its own neighbour as often as it likes: what is to be done for all pods then
        # becomes rarer.
        attempt, last = 0, clock()
        while True:
            await self._node.pods_disturbed.wait()
            if clock() - last > 2 * _PACE.cap:
                attempt = 0
            await asyncio.sleep(_SETTLE_SECONDS)
            self._node.pods_disturbed.clear()
            try:
                await restore()
            except NetlinkError as error:
                self._log.warning("pods may miss routes or neighbours", error=str(error))
                self._node.pods_disturbed.set()
            last = clock()
            await asyncio.sleep(_PACE.delay(attempt, self._random))
            attempt += 1

    async def _restore_neighbours(self, attachment: Attachment, failed: list[Attachment]) -> None:
        plan = self._veth.plan(attachment)
        if attachment.alias is None:
            return
        try:
            missing = await self._network.ensure_pod_neighbours(plan.pod.neighbours, attachment.alias)
        except NetlinkError as error:
            self._log.warning("a pod's neighbours may be missing", link=attachment.link, error=str(error))
            failed.append(attachment)
            return
        if missing:
            self._log.warning("a pod's neighbours were missing and are back", link=attachment.link)

    async def _remove_rules(self, attachment: Attachment) -> None:
        for address in attachment.addresses:
            await self._node.remove_pod(address)

    def _interface(self, address: IPAddress) -> InterfaceId:
        interface = self._interface_of(address)
        if interface is None:
            raise self._explain(address)
        return interface

    def _explain(self, address: IPAddress) -> NetlinkError:
        """Why there is no interface for it."""
        if self._node.interfaces_known:
            return NetlinkError(f"no interface of this node has the address {address}")
        return InterfaceUnknownError(f"which interface has {address} is not known until EC2 answers")
