"""The router that connects the networks of namespaces: the administrator's, or one of the cluster's own."""

import asyncio

from structlog.typing import FilteringBoundLogger

from coil.neutron.identity import ClusterId, Identity, Kind, cluster_tag
from coil.neutron.resource import NetworkId, ProjectId, Router, RouterId, Subnet, SubnetId
from coil.openstack.neutron import Neutron, own

_ONLY = "cluster"
"""In place of a UID: a cluster has one router."""


class ClusterRouter:
    """One for each term. `given` is the administrator's router, which is used as it is and never changed or deleted.

    Without it a router is made, with a gateway on the network `public` if there is one.
    """

    def __init__(
        self,
        neutron: Neutron,
        *,
        cluster: ClusterId,
        given: RouterId | None,
        public: NetworkId | None,
        project: ProjectId,
        log: FilteringBoundLogger,
    ) -> None:
        self._neutron = neutron
        self._cluster = cluster
        self._id = given
        self._public = public
        self._project = project
        self._log = log
        self._turn = asyncio.Lock()

    async def get(self) -> RouterId:
        """Its ID; made if it is not there. Raises OpenStackError."""
        async with self._turn:
            if self._id is None:
                self._id = await self._ensure()
            return self._id

    async def find(self) -> frozenset[RouterId]:
        """Its ID, and that of any other of its name, without making it. Raises OpenStackError."""
        if self._id is not None:
            return frozenset({self._id})
        name = Identity(self._cluster, Kind.ROUTER, _ONLY).name
        found: list[Router] = own(await self._neutron.routers(name=name), name)
        return frozenset(router.id for router in found)

    async def connect(self, subnet: Subnet) -> None:
        """Have an interface on the subnet. Idempotent. Raises OpenStackError."""
        if subnet.id not in await self.connected():
            await self._neutron.add_router_interface(await self.get(), subnet.id)

    async def connected(self) -> frozenset[SubnetId]:
        """The subnets that it has interfaces on. Raises OpenStackError."""
        ports = await self._neutron.ports(device_id=await self.get())
        return frozenset(fixed.subnet_id for port in ports for fixed in port.fixed_ips)

    async def _ensure(self) -> RouterId:
        name = Identity(self._cluster, Kind.ROUTER, _ONLY).name
        found: list[Router] = own(await self._neutron.routers(name=name), name)
        if found:
            router = min(found, key=lambda each: each.id)
        else:
            router = await self._neutron.create_router(
                name=name,
                description="connects the networks of the cluster's namespaces",
                project=self._project,
                external=self._public,
            )
            self._log.info("router created", router=router.id)
        if (tag := cluster_tag(self._cluster)) not in router.tags:
            await self._neutron.set_tag("routers", router.id, tag)
        gateway = None if router.external_gateway_info is None else router.external_gateway_info.network_id
        if self._public is not None and gateway != self._public:
            await self._neutron.set_router_gateway(router.id, self._public)
        return RouterId(router.id)
