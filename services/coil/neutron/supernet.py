"""Which addresses a namespace gets: a prefix of a fixed length out of the cluster's supernet."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import islice

from coil.kernel.family import IPNetwork


class SupernetExhaustedError(Exception):
    """No prefix of the supernet is free; the message has the numbers."""


@dataclass(frozen=True, slots=True)
class Supernet:
    """Of one family. `length` is the prefix length of each part. Raises ValueError where there would be no parts."""

    network: IPv4Network | IPv6Network
    length: int

    def __post_init__(self) -> None:
        # A pod needs an address beside those of the network, the gateway and, for IPv4, the broadcast.
        longest = self.network.max_prefixlen - 2
        if not self.network.prefixlen <= self.length <= longest:
            raise ValueError(
                f"/{self.length} is no part of {self.network}: from /{self.network.prefixlen} to /{longest} are"
            )

    @property
    def size(self) -> int:
        """How many parts there are."""
        return 1 << (self.length - self.network.prefixlen)

    def choose(self, taken: Iterable[IPNetwork]) -> IPv4Network | IPv6Network:
        """The first part that overlaps none of `taken`. Raises SupernetExhaustedError.

        `taken` may be of any family and size. The work grows with `taken`, not with the supernet: each that overlaps
        the supernet takes a run of indexes.
        """
        index = 0
        for first, last in sorted(self._runs(taken)):
            if first > index:
                break
            index = max(index, last + 1)
        if index >= self.size:
            raise SupernetExhaustedError(
                f"all {self.size} parts /{self.length} of the supernet {self.network} are taken"
            )
        return self._part(index)

    def count_taken(self, taken: Iterable[IPNetwork]) -> int:
        """How many of the parts overlap any of `taken`."""
        count = index = 0
        for first, last in sorted(self._runs(taken)):
            count += max(0, last + 1 - max(first, index))
            index = max(index, last + 1)
        return count

    def _runs(self, taken: Iterable[IPNetwork]) -> Iterable[tuple[int, int]]:
        base = int(self.network.network_address)
        shift = self.network.max_prefixlen - self.length
        for network in taken:
            if network.version != self.network.version or not network.overlaps(self.network):
                continue
            first = max(int(network.network_address), base) - base
            last = min(int(network.broadcast_address), int(self.network.broadcast_address)) - base
            yield first >> shift, last >> shift

    def _part(self, index: int) -> IPv4Network | IPv6Network:
        shift = self.network.max_prefixlen - self.length
        address = int(self.network.network_address) + (index << shift)
        return ip_network((address, self.length))


def overlap(networks: Collection[IPNetwork], others: Collection[IPNetwork]) -> tuple[IPNetwork, IPNetwork] | None:
    """A pair out of both that overlaps; None if there is none."""
    pairs = (
        (one, other) for one in networks for other in others if one.version == other.version and one.overlaps(other)
    )
    return next(islice(pairs, 1), None)
