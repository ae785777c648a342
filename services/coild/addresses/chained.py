"""Addresses by another plugin, and wired by another plugin: coild behind it adds egress NAT (`--enable-ipam=false`).

    ADD:  the host's end of the pod's veth gets an alias with the pod's UID
    DEL:  nothing to take away: what is made for egress is in a namespace that goes

Nothing here deletes, and nothing routes. The alias is for the next process, which finds the pod's namespace by it, and
by its UID the pod. So an attachment is its pod's UID and interface, and a new sandbox of a pod takes the place of the
one before. A pod whose UID nobody knows cannot be found again; its container is as good a name as any until then.
"""

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import IPAddress
from coil.kernel.link import parse_link_name
from coil.netlink.error import PodCheckError
from coil.netlink.host import NetnsPath
from coil.podnet.host_link import PodAlias, render_alias
from coild.model.address_source import NONE_ENDED, AddressSource, Ended, Exclusively
from coild.model.attachment import AddRequest, Attachment, InvalidPodError, PodName, alias_key
from coild.model.pod_network import PodNetwork

TAG = ""
"""In the place of a pool's name in an alias."""

FindUid = Callable[[PodName, float], Awaitable[str]]


class ChainedSource:
    """Implements `AddressSource`: the addresses are those of the result before, and no ledger has them.

    `uid_of` finds a pod's UID by a deadline, where the runtime does not pass it; "" for an unknown pod.
    """

    def __init__(self, network: PodNetwork, *, uid_of: FindUid, log: FilteringBoundLogger) -> None:
        self.wiring = ForeignWiring(network, log=log)
        self._uid_of = uid_of

    def owns(self, alias: PodAlias) -> bool:
        """See `AddressSource`."""
        return alias.tag == TAG

    async def identify(self, key: AttachmentKey, pod: PodName, *, deadline: float = math.inf) -> AttachmentKey:
        """See `AddressSource`."""
        uid = pod.uid
        if not uid and pod.name:
            uid = await self._uid_of(pod, deadline)
        return AttachmentKey(ContainerId(uid), key.ifname) if uid else key

    def recognizes(self, tag: str, address: IPAddress) -> bool:
        """See `AddressSource`."""
        return tag == TAG

    async def recover(self, found: Sequence[Attachment], ended: Ended = NONE_ENDED) -> None:
        """See `AddressSource`."""

    def pod_of(self, key: AttachmentKey) -> PodName | None:
        """See `AddressSource`. Its UID alone."""
        return PodName("", "", key.container_id)

    def holding(self, key: AttachmentKey) -> tuple[IPAddress, ...]:
        """See `AddressSource`."""
        return ()

    async def acquire(self, key: AttachmentKey, request: AddRequest, *, timeout: float) -> Attachment:
        """See `AddressSource`."""
        alias = PodAlias(TAG, key.container_id, key.ifname) if key != request.key else None
        return Attachment.of(request, key=key, addresses=request.addresses, alias=alias)

    def revoke(self, key: AttachmentKey) -> None:
        """See `AddressSource`."""

    def release(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """See `AddressSource`."""

    def held(self) -> frozenset[AttachmentKey]:
        """See `AddressSource`."""
        return frozenset()

    async def collect(self) -> None:
        """See `AddressSource`."""

    def metrics(self) -> Collection[Collector]:
        """See `AddressSource`."""
        return ()


class ForeignWiring:
    """Implements `PodWiring` for pods that another plugin wired: it names the host's end, and no more."""

    def __init__(self, network: PodNetwork, *, log: FilteringBoundLogger) -> None:
        self._network = network
        self._log = log

    async def prepare(self) -> None:
        """See `PodWiring`. The other plugin has seen to it."""

    def plan(self, attachment: Attachment) -> None:
        """See `PodWiring`."""
        if attachment.alias is not None:
            try:
                render_alias(attachment.alias)
            except ValueError as error:
                raise InvalidPodError(str(error)) from error

    async def attach(self, attachment: Attachment, plan: None, netns: NetnsPath) -> Attachment:
        """See `PodWiring`."""
        link = None
        if attachment.alias is not None:
            ifname = parse_link_name(attachment.key.ifname)
            link = await self._network.name_host_end(ifname, attachment.alias, netns)
        if link is not None:
            return attachment
        self._log.warning(
            "pod cannot be recognised after a restart: its interface has no other end here, or its UID is unknown",
            container=attachment.container,
        )
        return replace(attachment, alias=None)

    async def check(self, attachment: Attachment, plan: None, netns: NetnsPath) -> None:
        """See `PodWiring`."""
        if attachment.alias is None:
            return
        namespace = await self._network.open_pod_namespace(attachment.alias)
        if namespace is None:
            raise PodCheckError((f"the link with the alias of pod {attachment.alias.container_id}",))
        namespace.close()

    async def detach(self, attachment: Attachment) -> None:
        """See `PodWiring`. The other plugin takes away what it made."""

    async def aliases(self) -> frozenset[PodAlias]:
        """See `PodWiring`."""
        return frozenset(link.alias for link in await self._network.pod_links())

    async def recover(self, source: AddressSource, ended: Ended = NONE_ENDED) -> list[Attachment]:
        """See `PodWiring`. Neither the addresses nor the container are known any more."""
        aliases = [alias for alias in await self.aliases() if source.owns(alias)]
        found = [Attachment(key=alias_key(alias), pod=None, addresses=(), alias=alias) for alias in aliases]
        await source.recover(found, ended)
        return found

    async def restore(self, attachments: Collection[Attachment], exclusively: Exclusively) -> None:
        """See `PodWiring`."""
