"""Deletes a network of coil-raven's with all that is on it, unless something of somebody else is.

Neutron makes ports of its own on a network, and deletes them with it or with a router's interface; they are nobody's.
Any other port that is not coil-raven's keeps the network, and is named.
"""

from collections.abc import Callable, Collection

from coil.neutron.resource import (
    AUTO_DELETED_OWNERS,
    OWNER_ROUTER_INTERFACES,
    OWNER_ROUTER_SNAT,
    Network,
    Port,
    RouterId,
)
from coil.openstack.neutron import Neutron

POD_OWNER = "compute:kuryr"
"""The device_owner of pods' ports, the same as in kuryr-kubernetes."""


class ForeignPortError(Exception):
    """Somebody else's port is on the network, which can therefore not be deleted; the message names it."""


async def remove_network(
    neutron: Neutron, network: Network, *, routers: Collection[RouterId], is_own: Callable[[str], bool]
) -> None:
    """Delete its pods' ports, the interfaces of `routers` on it, its subnets, and the network. Idempotent.

    `is_own` says whether a name is an identity of this cluster. Raises OpenStackError, or ForeignPortError: then the
    ports of pods are gone, and nothing else.
    """
    interfaces: list[Port] = []
    foreign: list[str] = []
    for port in await neutron.ports(network=network.id):
        if port.device_owner == POD_OWNER and is_own(port.name):
            await neutron.delete_port(port.id)
        elif port.device_owner in OWNER_ROUTER_INTERFACES and port.device_id in routers:
            interfaces.append(port)
        elif port.device_owner not in AUTO_DELETED_OWNERS and not (
            port.device_owner == OWNER_ROUTER_SNAT and port.device_id in routers
        ):
            foreign.append(f"{port.id} ({port.name or 'without a name'}, {port.device_owner or 'without an owner'})")
    if foreign:
        raise ForeignPortError(f"the network {network.id} has ports that are not Coil's: {', '.join(sorted(foreign))}")
    for port in interfaces:
        for fixed in port.fixed_ips:
            await neutron.remove_router_interface(RouterId(port.device_id), fixed.subnet_id)
    for subnet in await neutron.subnets(network=network.id):
        await neutron.delete_subnet(subnet.id)
    await neutron.delete_network(network.id)
