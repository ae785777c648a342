"""Deletes what a cluster has in OpenStack: what has its name (`coil.neutron.identity`), and nothing else.

In an order in which nothing is left that something else refers to: floating IPs, load balancers, ports of pods,
networks with router interfaces and subnets, security groups, the router. An administrator's floating IP is unbound, an
administrator's router loses the interfaces on these networks; both stay.

A sweep is one pass, which begins with a look at what there is. It is repeated until nothing is left; so a call without
an answer, or a process that was killed, needs nothing but the next sweep.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from coil.neutron.balancer import LoadBalancer
from coil.neutron.identity import ClusterId, Identity, Kind, parse_identity
from coil.neutron.resource import FloatingIp, Network, Port, Resource, Router, RouterId, SecurityGroup
from coil.openstack.error import OpenStackError
from coil.openstack.neutron import Neutron, own
from coil.openstack.octavia import Octavia
from coil_raven.floating_ips import identity_of_floating_ip
from coil_raven.network_removal import POD_OWNER, ForeignPortError, remove_network
from coil_raven.remnant import Cause, Deeds, Remnant, cause_of

R = TypeVar("R", bound=Resource)

_BALANCERS: Final = frozenset({Kind.LOAD_BALANCER_IPV4, Kind.LOAD_BALANCER_IPV6})


class OpenStackRemoval:
    """`router` is the name of the administrator's router, "" if there is none.

    `balancers` says that there may be load balancers: without it, Octavia is asked only if the cluster has a network
    for them. `concurrency` is how many deletions are under way at a time.
    """

    def __init__(
        self,
        neutron: Neutron,
        octavia: Octavia,
        *,
        cluster: ClusterId,
        router: str,
        balancers: bool,
        concurrency: int,
        deeds: Deeds,
    ) -> None:
        self._neutron = neutron
        self._octavia = octavia
        self._cluster = cluster
        self._router = router
        self._uses_octavia = balancers
        self._balancers: list[LoadBalancer] = []
        self._slots = asyncio.Semaphore(concurrency)
        self._deeds = deeds
        self._deleting: set[str] = set()

    async def sweep(self) -> list[Remnant]:
        """Delete what can be deleted now; what is left, and why. Idempotent. Raises nothing of OpenStack's."""
        remnants: list[Remnant] = []
        steps: tuple[tuple[str, Callable[[], Awaitable[list[Remnant]]]], ...] = (
            ("load balancers", self._look_at_balancers),
            ("floating IPs", self._remove_floating_ips),
            ("load balancers", self._remove_balancers),
            ("ports", self._remove_ports),
            ("networks", self._remove_networks),
            ("security groups", self._remove_groups),
            ("routers", self._remove_routers),
        )
        for name, step in steps:
            try:
                remnants += await step()
            except OpenStackError as error:
                # Nobody knows what there is, and what follows depends on it.
                return [*remnants, Remnant(f"{name}, perhaps", _listing_cause(error), str(error))]
        return remnants

    async def _look_at_balancers(self) -> list[Remnant]:
        if not self._uses_octavia:
            self._uses_octavia = bool(self._own(await self._neutron.networks(), Kind.VIP_NETWORK))
        self._balancers = self._own(await self._octavia.load_balancers(), *_BALANCERS) if self._uses_octavia else []
        return []

    async def _remove_floating_ips(self) -> list[Remnant]:
        vips = {balancer.vip_port_id for balancer in self._balancers} - {None}
        found = await self._neutron.floating_ips()
        own_ones = [each for each in found if identity_of_floating_ip(each, self._cluster) is not None]
        others = [each for each in found if each.port_id in vips and each not in own_ones]

        async def delete(floating_ip: FloatingIp) -> None:
            await self._neutron.delete_floating_ip(floating_ip.id)

        async def unbind(floating_ip: FloatingIp) -> None:
            await self._neutron.bind_floating_ip(floating_ip.id, None)

        return [
            *await self._each("deleted", "floating IP", own_ones, delete, what=_address),
            *await self._each("unbound", "floating IP", others, unbind, what=_address),
        ]

    async def _remove_balancers(self) -> list[Remnant]:
        async def delete(balancer: LoadBalancer) -> None:
            await self._octavia.delete_load_balancer(balancer.id)
            if balancer.id not in self._deleting:
                # Once: one that Octavia fails to delete is deleted in every sweep.
                self._deleting.add(balancer.id)
                self._deeds.add("began to delete", "load balancer", _name(balancer))

        refused = await self._each("", "load balancer", [each for each in self._balancers if not each.pending], delete)
        names = {remnant.what for remnant in refused}
        working = [
            Remnant(what, Cause.WORKING, f"Octavia is at work on it; it was {each.provisioning_status}")
            for each in self._balancers
            if (what := f"load balancer {_name(each)}") not in names
        ]
        return [*refused, *working]

    async def _remove_ports(self) -> list[Remnant]:
        async def delete(port: Port) -> None:
            await self._neutron.delete_port(port.id)

        ports = self._own(await self._neutron.ports(device_owner=POD_OWNER), Kind.PORT, Kind.POOLED_PORT)
        return await self._each("deleted", "port", ports, delete, aloud=False)

    async def _remove_networks(self) -> list[Remnant]:
        networks = await self._neutron.networks()
        routers = await self._routers()

        async def delete(network: Network) -> None:
            await remove_network(self._neutron, network, routers=routers, is_own=self._is_own)

        pods, vips = self._own(networks, Kind.NETWORK), self._own(networks, Kind.VIP_NETWORK)
        remnants = await self._each("deleted", "network", pods, delete)
        if not self._balancers:
            return [*remnants, *await self._each("deleted", "network", vips, delete)]
        waiting = "load balancers have their addresses on it"
        return [*remnants, *(Remnant(f"network {_name(each)}", Cause.WORKING, waiting) for each in vips)]

    async def _remove_groups(self) -> list[Remnant]:
        async def delete(group: SecurityGroup) -> None:
            await self._neutron.delete_security_group(group.id)

        groups = self._own(await self._neutron.security_groups(), Kind.SECURITY_GROUP)
        return await self._each("deleted", "security group", groups, delete)

    async def _remove_routers(self) -> list[Remnant]:
        async def delete(router: Router) -> None:
            await self._neutron.delete_router(router.id)

        return await self._each("deleted", "router", self._own(await self._neutron.routers(), Kind.ROUTER), delete)

    async def _routers(self) -> frozenset[RouterId]:
        """The cluster's own, and the administrator's."""
        found = await self._neutron.routers()
        given = own(found, self._router) if self._router else []
        return frozenset(router.id for router in (*self._own(found, Kind.ROUTER), *given))

    async def _each(
        self,
        deed: str,
        kind: str,
        resources: Iterable[R],
        remove: Callable[[R], Awaitable[None]],
        *,
        what: Callable[[R], str] | None = None,
        aloud: bool = True,
    ) -> list[Remnant]:
        """Remove all of them, several at a time; those that are left. A deed without a name is not told of."""

        async def one(resource: R) -> Remnant | None:
            name = (what or _name)(resource)
            async with self._slots:
                try:
                    await remove(resource)
                except ForeignPortError as error:
                    return Remnant(f"{kind} {name}", Cause.FOREIGN, str(error))
                except OpenStackError as error:
                    return Remnant(f"{kind} {name}", cause_of(error), str(error))
            if deed:
                self._deeds.add(deed, kind, name, aloud=aloud)
            return None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(resource)) for resource in resources]
        return [remnant for task in tasks if (remnant := task.result()) is not None]

    def _own(self, found: Iterable[R], *kinds: Kind) -> list[R]:
        identified = ((each, self._identity(each.name)) for each in found)
        return [each for each, identity in identified if identity is not None and identity.kind in kinds]

    def _is_own(self, name: str) -> bool:
        return self._identity(name) is not None

    def _identity(self, name: str) -> Identity | None:
        identity = parse_identity(name)
        return identity if identity is not None and identity.cluster == self._cluster else None


def _listing_cause(error: OpenStackError) -> Cause:
    cause = cause_of(error)
    return Cause.UNANSWERED if cause is Cause.IN_USE else cause


def _name(resource: Resource) -> str:
    return f"{resource.id} ({resource.description})" if resource.description else str(resource.id)


def _address(floating_ip: FloatingIp) -> str:
    return f"{floating_ip.floating_ip_address} ({floating_ip.id})"
