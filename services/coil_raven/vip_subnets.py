"""The subnets that cluster IPs are addresses of: one of each family of the Service network, on one network, for all.

A cluster has one Service network, whose addresses Kubernetes gives. So that Neutron gives none of them (to its gateway,
or to ports that Octavia makes for itself), the subnet is larger, and what Neutron may give lies in the rest of it.
"""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from coil.kernel.family import IPAddress, IPNetwork
from coil.neutron.identity import ClusterId, Identity, Kind
from coil.neutron.resource import Network, ProjectId, Subnet
from coil.neutron.vip_range import VipRange
from coil.openstack.neutron import Neutron
from coil_raven.cluster_router import ClusterRouter
from coil_raven.owned import OwnedObjects

KINDS: Final = {4: Kind.VIP_SUBNET_IPV4, 6: Kind.VIP_SUBNET_IPV6}
_ONLY: Final = "cluster"
"""In place of a UID: a cluster has one network of VIPs."""


class VipSubnetError(Exception):
    """The subnet of VIPs is not as it has to be; the message says what is wrong."""


class VipSubnets:
    """One for each term."""

    def __init__(
        self,
        neutron: Neutron,
        *,
        cluster: ClusterId,
        router: ClusterRouter,
        owned: OwnedObjects,
        ranges: Sequence[VipRange],
        project: ProjectId,
    ) -> None:
        self._neutron = neutron
        self._cluster = cluster
        self._router = router
        self._owned = owned
        self._ranges = {each.services.version: each for each in ranges}
        self._project = project
        self._present: dict[int, Subnet] = {}
        self._turn = asyncio.Lock()

    async def get(self, vip: IPAddress) -> Subnet:
        """The subnet for that cluster IP; made if it is not there. Idempotent.

        Raises OpenStackError, InvisibleError, or VipSubnetError: for an address outside of the Service network, and for
        a subnet that somebody has changed.
        """
        wanted = self._ranges.get(vip.version)
        if wanted is None or vip not in wanted.services:
            known = ", ".join(str(each.services) for each in self._ranges.values()) or "none"
            raise VipSubnetError(f"{vip} is in no Service network that coil-raven was told of ({known})")
        async with self._turn:
            if vip.version not in self._present:
                self._present[vip.version] = await self._ensure(wanted)
            return self._present[vip.version]

    async def _ensure(self, wanted: VipRange) -> Subnet:
        network = await self._ensure_network()
        name = vip_subnet_name(self._cluster, wanted.subnet.version)
        gateway, last = wanted.rest
        subnet = await self._owned.have(
            name,
            "subnets",
            lambda: self._neutron.subnets(network=network.id, name=name),
            lambda: self._neutron.create_subnet(
                name=name,
                description="cluster IPs of Services",
                project=self._project,
                network=network.id,
                cidr=wanted.subnet,
                gateway=gateway,
                pool=(gateway + 1, last),
            ),
            self._neutron.delete_subnet,
        )
        check_subnet(subnet, wanted.services)
        await self._router.connect(subnet)
        return subnet

    async def _ensure_network(self) -> Network:
        name = Identity(self._cluster, Kind.VIP_NETWORK, _ONLY).name
        return await self._owned.have(
            name,
            "networks",
            lambda: self._neutron.networks(name=name),
            lambda: self._neutron.create_network(
                name=name, description="cluster IPs of Services", project=self._project
            ),
            self._neutron.delete_network,
        )


def vip_subnet_name(cluster: ClusterId, version: int) -> str:
    """Of the subnet of VIPs in that IP version."""
    return Identity(cluster, KINDS[version], _ONLY).name


def check_subnet(subnet: Subnet, services: IPNetwork) -> None:
    """Raises VipSubnetError unless the subnet contains the Service network, and gives nothing of it to others."""
    name = f"the subnet {subnet.id} ({subnet.cidr})"
    if not (services[0] in subnet.network and services[-1] in subnet.network):
        raise VipSubnetError(f"{name} does not contain the Service network {services}")
    if subnet.gateway is not None and subnet.gateway in services:
        raise VipSubnetError(f"the gateway {subnet.gateway} of {name} is an address of the Service network {services}")
    for pool in subnet.allocation_pools:
        if int(ip_address(pool.start)) <= int(services[-1]) and int(services[0]) <= int(ip_address(pool.end)):
            raise VipSubnetError(
                f"{name} has the allocation pool {pool.start} to {pool.end}, so that Neutron may give addresses of the "
                f"Service network {services} to others"
            )
