"""The node's address on the bridge of a network: whom a pod sees when its own node asks it, as kubelet does. Pure.

A pod is a host of its subnet, and knows no way to the node: what it sends to the node's own address goes to the
subnet's router, and an address of the underlay may even be another host's in the overlay. So the node speaks from an
address that is on the pod's link, whatever the pod's routes are:

    IPv4    the subnet's own address, such as 10.0.0.0 of 10.0.0.0/16. Neutron gives it to nobody, and since Linux 5.14
            it is a host's address like others (RFC 3021 and earlier practice have it as a broadcast).
    IPv6    fe80::c011, which every link has a route to

Neither leaves the node: frames with them are dropped at the uplink, so each node has the same ones. The pod's end needs
nothing but its address with the subnet's prefix length, and in IPv6 a link-local address, which the kernel adds.
"""

from ipaddress import IPv6Address
from typing import Final

from coil.kernel.family import IPAddress, IPInterface

LINK_LOCAL: Final = IPv6Address("fe80::c011")


class NodeAddressError(ValueError):
    """The subnet has no address for the node; the sentence says so."""


def node_address(pod: IPInterface) -> IPAddress:
    """The node's address for a pod with that address. Raises NodeAddressError."""
    if pod.version == 6:
        return LINK_LOCAL
    network = pod.network
    if network.num_addresses <= 2 or network.network_address == pod.ip:
        raise NodeAddressError(
            f"{pod}: its subnet has no address that the node could have, so kubelet's probes would not be answered; "
            "it has to be a /30 at least"
        )
    return network.network_address
