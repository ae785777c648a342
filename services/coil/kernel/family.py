"""Address families, under the numbers that rtnetlink uses for them (linux/socket.h)."""

from enum import IntEnum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import TypeAlias

IPAddress: TypeAlias = IPv4Address | IPv6Address
IPInterface: TypeAlias = IPv4Interface | IPv6Interface
IPNetwork: TypeAlias = IPv4Network | IPv6Network


class Family(IntEnum):
    """AF_INET and AF_INET6."""

    IPV4 = 2
    IPV6 = 10

    @classmethod
    def of(cls, value: IPAddress | IPInterface | IPNetwork) -> "Family":
        """The family of an address, an interface address or a network."""
        return cls.IPV4 if value.version == 4 else cls.IPV6
