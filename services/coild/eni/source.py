"""Addresses of the node's elastic network interfaces: an implementation of `coild.model.address_source`.

Which address: a free one of `coild.eni.store`, or the next that EC2 gives or that has cooled down. Nothing of the pod
decides about it, so an ADD asks nobody.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from coil.eni.ledger import InUseError
from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress
from coil.podnet.host_link import PodAlias
from coild.eni.store import EniStore
from coild.model.address_source import NONE_ENDED, Ended, PodWiring
from coild.model.attachment import AddRequest, Attachment, PodName

TAG: Final = "@aws-eni"
"""In the aliases of the pods' links; no pool can have that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EniSource:
    """Implements `AddressSource`."""

    store: EniStore
    wiring: PodWiring[Any]
    log: FilteringBoundLogger
    collectors: Collection[Collector] = ()

    def owns(self, alias: PodAlias) -> bool:
        """See `AddressSource`."""
        return alias.tag == TAG

    async def identify(self, key: AttachmentKey, pod: PodName, *, deadline: float) -> AttachmentKey:
        """See `AddressSource`."""
        return key

    def recognizes(self, tag: str, address: IPAddress) -> bool:
        """See `AddressSource`."""
        return tag == TAG and self.store.place(address) is not None

    def pod_of(self, key: AttachmentKey) -> PodName | None:
        """See `AddressSource`. The journal knows."""
        return self.store.journal.holder(key).pod

    def holding(self, key: AttachmentKey) -> tuple[IPAddress, ...]:
        """See `AddressSource`."""
        held = self.store.find(key)
        return () if held is None else (held.address,)

    async def recover(self, found: Sequence[Attachment], ended: Ended = NONE_ENDED) -> None:
        """Adopt what the kernel holds, whatever EC2 says; then go on with the journal.

        An attachment without an address that it could have is logged, and not in the ledger.
        """
        for attachment in found:
            own = [address for address in attachment.addresses if address.version == self.store.version]
            if not own:
                self.log.error("a pod has no address that could be an interface's", container=attachment.container)
            for address in own:
                try:
                    self.store.adopt(attachment.key, address)
                except InUseError as error:
                    self.log.error("a pod's address is not its own", container=attachment.container, error=str(error))
        self.store.resume(ended)

    async def acquire(self, key: AttachmentKey, request: AddRequest, *, timeout: float) -> Attachment:
        """See `AddressSource`. Waits for EC2, or for a cooldown to end, while none is free."""
        deadline = asyncio.get_running_loop().time() + timeout
        allocation = await self.store.take(key, request.pod, deadline=deadline)
        alias = PodAlias(TAG, key.container_id, key.ifname)
        return Attachment.of(request, key=key, addresses=(allocation.address,), alias=alias)

    def revoke(self, key: AttachmentKey) -> None:
        """See `AddressSource`."""
        self.store.revoke(key)

    def release(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """See `AddressSource`."""
        self.store.release(key, ended=ended)

    def held(self) -> frozenset[AttachmentKey]:
        """See `AddressSource`."""
        return frozenset(allocation.key for allocation in self.store.held())

    async def collect(self) -> None:
        """See `AddressSource`. The provisioner gives back what is too many, all the time."""

    def metrics(self) -> Collection[Collector]:
        """See `AddressSource`."""
        return self.collectors
