"""What hangs on a link: addresses, neighbour entries, and what it answers for."""

from dataclasses import dataclass
from ipaddress import IPv6Address

from coil.kernel.family import Family, IPAddress, IPInterface
from coil.kernel.link import LinkName, MacAddress


@dataclass(frozen=True, slots=True)
class Address:
    """An address on a link, with its prefix length. IPv6 addresses are always set without duplicate address
    detection.
    """

    device: LinkName
    interface: IPInterface

    @property
    def family(self) -> Family:
        return Family.of(self.interface)

    def __str__(self) -> str:
        return f"address {self.interface} on {self.device}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A permanent entry of the ARP or neighbour discovery table: `address` is at `mac` on `device`, without
    asking.
    """

    device: LinkName
    address: IPAddress
    mac: MacAddress

    @property
    def family(self) -> Family:
        return Family.of(self.address)

    def __str__(self) -> str:
        return f"neighbour {self.address} at {self.mac} on {self.device}"


@dataclass(frozen=True, slots=True)
class NeighbourProxy:
    """`device` answers neighbour solicitations for `address`, which is not its own. In IPv4 nothing of the kind is
    needed: a node answers ARP for all its addresses on every link.
    """

    device: LinkName
    address: IPv6Address

    def __str__(self) -> str:
        return f"neighbour proxy for {self.address} on {self.device}"
