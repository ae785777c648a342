"""A tiny `AddressSource`: pairs of addresses counted from the first one, in a dictionary. It needs no API server."""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from prometheus_client.registry import Collector

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress
from coil.podnet.host_link import PodAlias
from coild.model.address_source import NONE_ENDED, Ended, PodWiring
from coild.model.attachment import AddRequest, AddressUnavailableError, Attachment, PodName

FIRST = IPv4Address("10.64.0.1"), IPv6Address("fd64::1")


class ListedSource:
    """`tag` is what its pods' aliases carry; `wiring` is any."""

    def __init__(self, wiring: PodWiring[Any], *, tag: str, size: int) -> None:
        self.wiring = wiring
        self._tag = tag
        self._size = size
        self._allocated: dict[AttachmentKey, tuple[IPAddress, ...]] = {}

    def owns(self, alias: PodAlias) -> bool:
        return alias.tag == self._tag

    async def identify(self, key: AttachmentKey, pod: PodName, *, deadline: float) -> AttachmentKey:
        return key

    def recognizes(self, tag: str, address: IPAddress) -> bool:
        return any(address in pair for pair in self._pairs())

    async def recover(self, found: Sequence[Attachment], ended: Ended = NONE_ENDED) -> None:
        self._allocated = {attachment.key: attachment.addresses for attachment in found}

    def pod_of(self, key: AttachmentKey) -> PodName | None:
        return None

    def holding(self, key: AttachmentKey) -> tuple[IPAddress, ...]:
        return self._allocated.get(key, ())

    async def acquire(self, key: AttachmentKey, request: AddRequest, *, timeout: float) -> Attachment:
        if key not in self._allocated:
            taken = {address for addresses in self._allocated.values() for address in addresses}
            free = [pair for pair in self._pairs() if not taken & {*pair}]
            if not free:
                raise AddressUnavailableError(f"{self._size} pods have all addresses")
            self._allocated[key] = free[0]
        alias = PodAlias(self._tag, key.container_id, key.ifname)
        return Attachment.of(request, key=key, addresses=self._allocated[key], alias=alias)

    def revoke(self, key: AttachmentKey) -> None:
        self._allocated.pop(key, None)

    def release(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        self._allocated.pop(key, None)

    def held(self) -> frozenset[AttachmentKey]:
        return frozenset(self._allocated)

    async def collect(self) -> None:
        pass

    def metrics(self) -> tuple[Collector, ...]:
        return ()

    def _pairs(self) -> Iterator[tuple[IPAddress, IPAddress]]:
        return ((FIRST[0] + number, FIRST[1] + number) for number in range(self._size))
