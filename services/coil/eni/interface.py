"""An elastic network interface as EC2 describes it."""

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import NewType

from coil.kernel.family import IPNetwork
from coil.kernel.link import MacAddress

InterfaceId = NewType("InterfaceId", str)
"""`eni-` and hexadecimal digits."""
SubnetId = NewType("SubnetId", str)

PREFIX_LENGTHS = {4: 28, 6: 80}
"""Of the prefixes that EC2 assigns to interfaces (EC2 User Guide, "Assign prefixes to network interfaces")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """One that is attached to the node.

    `ranges` are what pods may get addresses of: secondary addresses as /32, and prefixes. `primary` is the interface's
    own address, which is in none of them. `is_primary`: it is the one that the instance was launched with, and keeps;
    its device number is mostly 0, and nothing says that it is. Not `managed`: somebody has asked that it be left alone,
    so pods keep the addresses that they have of it, and get no more.
    """

    id: InterfaceId
    mac: MacAddress
    device_number: int
    subnet: SubnetId
    primary: IPv4Address
    ranges: frozenset[IPNetwork] = frozenset()
    is_primary: bool = False
    managed: bool = True

    @property
    def slots_used(self) -> int:
        """How many of the IPv4 addresses that EC2 allows the interface are taken; a prefix counts as one."""
        return 1 + sum(network.version == 4 for network in self.ranges)
