"""The links by which a node is reached: which of them has an address, and where another address would be looked for."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from coil.kernel.family import IPAddress, IPInterface
from coil.kernel.link import LinkName, MacAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentLink:
    """A link that is up and speaks Ethernet, with its addresses and their prefix lengths, in the kernel's order."""

    name: LinkName
    index: int
    mac: MacAddress
    mtu: int
    interfaces: tuple[IPInterface, ...]

    def has(self, address: IPAddress) -> bool:
        """Whether the address is one of its own."""
        return any(interface.ip == address for interface in self.interfaces)

    def reaches(self, address: IPAddress) -> bool:
        """Whether a network on the link contains the address, so that hosts there ask for it on the link."""
        return any(
            address in interface.network and interface.network.prefixlen < interface.max_prefixlen
            for interface in self.interfaces
            if interface.version == address.version
        )


def select_announcers(
    address: IPAddress, links: Iterable[ParentLink], *, parent: LinkName | None
) -> Collection[ParentLink]:
    """The links on which hosts are told of the address: those with a network that contains it, or else the parent.

    Empty where there is neither: a router has to know by other means.
    """
    links = tuple(links)
    reaching = tuple(link for link in links if link.reaches(address))
    return reaching or tuple(link for link in links if link.name == parent)
