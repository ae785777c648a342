"""The seam for where a pod's addresses come from.

Address pools are its first tenant (`coild.addresses.pool_source`); interfaces of a cloud and ports of a virtual
network are to follow. `coild.pods.pod_service` drives it and is the only caller:

    recognizes, recover, holding
              once at start, with what the kernel holds: the kernel is the database
    acquire   for an ADD; the same attachment gets the same answer
    revoke    for an ADD that failed later on: the address was never used
    release   for a DEL, after the veth and its routes are gone, so that nobody can hold the address twice
    collect   periodically: give back what is held for no attachment

A source keeps its own books and consults its own back end; it never touches a link. No call holds a lock while it
waits, so a slow back end for one pod does not stand in the way of another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

from coil.crd.names import PoolName
from coil.ipam.node_ledger import AttachmentKey
from coil.kernel.family import IPAddress


@dataclass(frozen=True, slots=True)
class PodName:
    """A pod as CNI_ARGS name it. Runtimes do not always tell its UID."""

    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class PodAddresses:
    """What a source gave: at least one family. `pool` goes into the link's alias, to be found there by `recover`."""

    pool: PoolName
    ipv4: IPv4Address | None
    ipv6: IPv6Address | None

    @property
    def present(self) -> tuple[IPAddress, ...]:
        """The addresses, IPv4 first."""
        return tuple(address for address in (self.ipv4, self.ipv6) if address is not None)


@dataclass(frozen=True, slots=True)
class HeldAddresses:
    """An attachment that the kernel holds."""

    key: AttachmentKey
    addresses: PodAddresses


class AddressUnavailableError(Exception):
    """No address now; the message says of which pool and why. Trying again later may help."""


class AddressSource(Protocol):
    """See the module's docstring for the order of calls."""

    def recognizes(self, pool: PoolName, address: IPAddress) -> bool:
        """Whether it is one of the addresses that this source has here to give, or has given."""

    async def recover(self, held: Iterable[HeldAddresses]) -> None:
        """Take the kernel's attachments into the books; of two that claim one address, the first has it.

        Called once, before any verb that changes the books.
        """

    def holding(self, key: AttachmentKey) -> PodAddresses | None:
        """What the books have for the attachment: no other's, in any case."""

    async def acquire(self, key: AttachmentKey, pod: PodName, *, timeout: float) -> PodAddresses:
        """Addresses for the attachment, within `timeout` seconds.

        Idempotent: a known key gets what it holds. Raises `AddressUnavailableError`. Cancelled, it has acquired
        nothing.
        """

    def revoke(self, key: AttachmentKey) -> None:
        """Undo an `acquire` whose addresses no pod has had. An unknown key is fine."""

    def release(self, key: AttachmentKey) -> None:
        """Take the attachment out of the books; an unknown key is fine. What follows happens in the background."""

    def held(self) -> frozenset[AttachmentKey]:
        """The attachments in the books."""

    async def collect(self) -> None:
        """Give back what serves no attachment."""
