"""A Service network and the subnet of Neutron around it.

Kubernetes gives the addresses of the Service network. So that Neutron gives none of them (to its gateway, or to ports
that Octavia makes for itself), the subnet is larger, and what Neutron may give lies in the rest of it.
"""

from dataclasses import dataclass

from coil.kernel.family import IPAddress, IPNetwork


@dataclass(frozen=True, slots=True)
class VipRange:
    """A Service network, and the subnet around it."""

    services: IPNetwork
    subnet: IPNetwork

    def __post_init__(self) -> None:
        """Raises ValueError where the subnet has no room beside the Service network."""
        if self.services.version != self.subnet.version or self.services.prefixlen <= self.subnet.prefixlen:
            raise ValueError(f"{self.subnet} has no room beside the Service network {self.services}")
        if self.services[0] not in self.subnet:
            raise ValueError(f"{self.subnet} does not contain the Service network {self.services}")

    @staticmethod
    def around(services: IPNetwork) -> "VipRange":
        """With the smallest subnet that has room. Raises ValueError for a network that is its family's whole space."""
        if services.prefixlen == 0:
            raise ValueError(f"{services} cannot be a Service network")
        return VipRange(services, services.supernet())

    @property
    def rest(self) -> tuple[IPAddress, IPAddress]:
        """The first and the last address beside the Service network that Neutron may give; the gateway is the first.

        Of the two sides, the longer one.
        """
        first, last = int(self.subnet[0]), int(self.subnet[-1])
        low, high = int(self.services[0]), int(self.services[-1])
        kind = type(self.subnet[0])
        # The first and the last address of an IPv4 subnet are no host's.
        below, above = (first + 1, low - 1), (high + 1, last - 1)
        start, end = max((below, above), key=lambda side: side[1] - side[0])
        return kind(start), kind(end)
