"""Addresses of ports in OpenStack's Neutron: an implementation of `coild.model.address_source`.

Which address: that of the port which coil-raven has made for the pod. The pod's annotation names it, or CNI_ARGS do. So
nothing is chosen here and no address cools down, as Neutron gives it again; but two pods never have one port.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from prometheus_client.registry import Collector

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress
from coil.kernel.link import LinkName
from coil.neutron.handoff import Handoff
from coil.neutron.port_arguments import (
    PortArguments,
    PortArgumentsError,
    complete_port,
    missing_keys,
    parse_port_arguments,
)
from coil.neutron.resource import PortId
from coil.podnet.host_link import PodAlias, derive_mac
from coild.model.address_source import NONE_ENDED, Ended, PodWiring
from coild.model.attachment import (
    AddRequest,
    AddressUnavailableError,
    Attachment,
    InvalidPodError,
    PodName,
    PodUnknownError,
    host_link_name,
)
from coild.model.port_error import HandoffUnreadableError, PodForbiddenError, PortGoneError
from coild.neutron.handoffs import PodHandoffs
from coild.neutron.ledger import PortLedger
from coild.neutron.unplugging import Unplugging

_TAG: Final = "@neutron."
"""Begins the tags of the pods' links; no pool can have such a name. The port's ID follows: who looks at a link sees it,
and it is found again by that where the journal was lost.
"""


def render_tag(port: PortId) -> str:
    """The tag of a link that is that port."""
    return _TAG + port


def parse_tag(tag: str) -> PortId | None:
    """The port of a tag; None for another source's."""
    return PortId(tag.removeprefix(_TAG)) if tag.startswith(_TAG) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeutronSource:
    """Implements `AddressSource`. `mtu`, in bytes, is for ports of which CNI_ARGS alone tell, as they tell no MTU."""

    ledger: PortLedger
    handoffs: PodHandoffs
    unplugging: Unplugging
    wiring: PodWiring[Any]
    mtu: int
    compat_calico: bool = False
    collectors: Collection[Collector] = ()

    def owns(self, alias: PodAlias) -> bool:
        """See `AddressSource`."""
        return parse_tag(alias.tag) is not None

    async def identify(self, key: AttachmentKey, pod: PodName, *, deadline: float) -> AttachmentKey:
        """See `AddressSource`."""
        return key

    def recognizes(self, tag: str, address: IPAddress) -> bool:
        """See `AddressSource`."""
        port = parse_tag(tag)
        return any(address in _addresses(holding.port) for holding in self.ledger.held() if holding.port.port == port)

    def pod_of(self, key: AttachmentKey) -> PodName | None:
        """See `AddressSource`. The journal knows."""
        holding = self.ledger.find(key)
        return None if holding is None else holding.pod

    def holding(self, key: AttachmentKey) -> tuple[IPAddress, ...]:
        """See `AddressSource`."""
        holding = self.ledger.find(key)
        return () if holding is None else _addresses(holding.port)

    async def recover(self, found: Sequence[Attachment], ended: Ended = NONE_ENDED) -> None:
        """See `AddressSource`. Ports of attachments that are gone are unplugged in the background."""
        self.ledger.resume([attachment.key for attachment in found])

    async def acquire(self, key: AttachmentKey, request: AddRequest, *, timeout: float) -> Attachment:
        """See `AddressSource`. Waits until the pod's annotation names a port, unless CNI_ARGS say all of it.

        Raises InvalidPodError for CNI_ARGS that cannot be used, PodUnknownError, and any PortError, as well.
        """
        holding = self.ledger.find(key)
        if holding is None:
            deadline = asyncio.get_running_loop().time() + timeout
            bare = Attachment(key=key, pod=request.pod, addresses=())
            link = host_link_name(bare, compat_calico=self.compat_calico)
            pod, port, reported = await self._find(request, link, deadline=deadline)
            await self.unplugging.settle(port.port)
            holding = self.ledger.take(key, pod, link, port, reported=reported)
        elif (noted := self.handoffs.find(request.pod)) is not None and noted.port != holding.port.port:
            # It was unplugged before this was asked for (see `address_source`), and this pod is not to have another.
            self.ledger.drop(key)
            raise PortGoneError(f"the port {holding.port.port} was replaced by {noted.port}")
        alias = PodAlias(render_tag(holding.port.port), key.container_id, key.ifname)
        made = Attachment.of(request, key=key, addresses=_addresses(holding.port), alias=alias)
        return replace(made, link=holding.link)

    def revoke(self, key: AttachmentKey) -> None:
        """See `AddressSource`."""
        self.ledger.drop(key)

    def release(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """See `AddressSource`."""
        self.ledger.drop(key)

    def held(self) -> frozenset[AttachmentKey]:
        """See `AddressSource`."""
        return frozenset(holding.key for holding in self.ledger.held())

    async def collect(self) -> None:
        """See `AddressSource`. `Unplugging` gives back what was left, all the time."""

    def metrics(self) -> Collection[Collector]:
        """See `AddressSource`."""
        return self.collectors

    async def _find(self, request: AddRequest, link: LinkName, *, deadline: float) -> tuple[PodName, Handoff, bool]:
        """The pod with its UID, its port, and whether its annotation will tell whether that is ACTIVE."""
        try:
            given = parse_port_arguments(request.arguments)
        except PortArgumentsError as error:
            raise InvalidPodError(str(error)) from error
        if given is None:
            pod = await self.handoffs.identify(request.pod, deadline=deadline)
            return pod, await self.handoffs.wait(pod, deadline=deadline), True
        pod, noted = await self._find_noted(given, request.pod, deadline=deadline)
        port = complete_port(given, noted, pod_uid=pod.uid, mac=derive_mac(link, end="pod"), mtu=self.mtu)
        return pod, port, noted is not None and noted.port == given.port

    async def _find_noted(
        self, given: PortArguments, pod: PodName, *, deadline: float
    ) -> tuple[PodName, Handoff | None]:
        """What the annotation adds to CNI_ARGS: it is waited for only where these are not enough."""
        noted = self.handoffs.find(pod)
        if not (missing := missing_keys(given, noted)):
            return pod, noted
        try:
            pod = await self.handoffs.identify(pod, deadline=deadline)
            return pod, await self.handoffs.wait(
                pod, deadline=deadline, enough=lambda found: not missing_keys(given, found)
            )
        except (AddressUnavailableError, HandoffUnreadableError, PodForbiddenError, PodUnknownError) as error:
            raise InvalidPodError(f"CNI_ARGS lack {', '.join(missing)} of the port {given.port}: {error}") from error


def _addresses(port: Handoff) -> tuple[IPAddress, ...]:
    return tuple(address.interface.ip for address in port.addresses)
