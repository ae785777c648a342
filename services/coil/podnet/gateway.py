"""The addresses on the host end of every veth, which are the pods' gateways."""

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface

from coil.kernel.family import IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAddresses:
    """The same addresses are on every host end; a family that is None cannot be given to pods."""

    ipv4: IPv4Interface | None
    ipv6: IPv6Interface | None


LINK_LOCAL_IPV6 = IPv6Interface("fe80::1/64")
LINK_LOCAL = HostAddresses(ipv4=IPv4Interface("169.254.1.1/32"), ipv6=LINK_LOCAL_IPV6)
"""The design document's: the same on every node, and nothing of the node is visible to the pod."""


def node_addresses(internal: Collection[IPAddress]) -> HostAddresses:
    """The Node's InternalIPs as host addresses (`--host-address=node-ip`): the first of each family, as /32
    and /128.
    """
    ipv4 = next((address for address in internal if address.version == 4), None)
    ipv6 = next((address for address in internal if address.version == 6), None)
    return HostAddresses(
        ipv4=IPv4Interface(ipv4) if ipv4 is not None else None,
        ipv6=IPv6Interface(ipv6) if ipv6 is not None else None,
    )
