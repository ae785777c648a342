"""An Octavia in memory, for tests of what uses one. It passes the contract suite that the real one passes.

A load balancer that was changed is pending until `settle`. With `neutron`, the ports of VIPs are made there.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy

import msgspec

from coil.kernel.family import IPAddress
from coil.neutron.balancer import (
    SOURCE_IP,
    Listener,
    ListenerId,
    LoadBalancer,
    LoadBalancerId,
    Member,
    MemberId,
    Pool,
    PoolId,
    SessionPersistence,
)
from coil.neutron.provider import PROVIDERS, Provider
from coil.neutron.resource import PortId, ProjectId, SubnetId
from coil.neutron.service_plan import MemberPlan
from coil.openstack.error import ExistsError, ImmutableError, NotFoundError, QuotaError, UnsupportedError
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.openstack.memory_service import MemoryService


class _Balancer:
    def __init__(self, balancer: LoadBalancer) -> None:
        self.balancer = balancer
        self.listeners: dict[str, Listener] = {}
        self.pools: dict[str, Pool] = {}
        self.members: dict[str, dict[str, Member]] = {}


class MemoryOctavia(MemoryService):
    """Implements `Octavia`. `quotas` limit how many of a kind there may be, by its plural: "loadbalancers"."""

    def __init__(self, *, quotas: Mapping[str, int] | None = None, neutron: MemoryNeutron | None = None) -> None:
        super().__init__()
        self._neutron = neutron
        self.quotas = dict(quotas or {})
        self._balancers: dict[str, _Balancer] = {}

    def snapshot(self) -> dict[str, int]:
        """How many of each kind there are."""
        held = self._balancers.values()
        return {
            "loadbalancers": len(held),
            "listeners": sum(len(each.listeners) for each in held),
            "pools": sum(len(each.pools) for each in held),
        }

    def everything(self) -> dict[str, object]:
        """Every load balancer with all that it has, by its ID."""
        return {
            each.balancer.id: (each.balancer, dict(each.listeners), dict(each.pools), deepcopy(each.members))
            for each in self._balancers.values()
        }

    def settle(self, *, failed: bool = False) -> None:
        """The providers have done their work, or given up."""
        for each in list(self._balancers.values()):
            if not each.balancer.pending:
                continue
            if each.balancer.going and not failed:
                del self._balancers[each.balancer.id]
                if self._neutron is not None and each.balancer.vip_port_id is not None:
                    self._neutron.drop_port(each.balancer.vip_port_id)
            else:
                self._set_status(each, "ERROR" if failed else "ACTIVE")

    def put(self, balancer: LoadBalancer) -> None:
        """One that somebody else has made."""
        self._balancers[balancer.id] = _Balancer(balancer)

    async def providers(self) -> frozenset[str]:
        """See `Octavia`."""
        return await self._call("list providers", lambda: frozenset(PROVIDERS))

    async def load_balancers(self, *, name: str = "") -> list[LoadBalancer]:
        """See `Octavia`."""
        return await self._call(
            "list loadbalancers",
            lambda: [each.balancer for each in self._balancers.values() if name in ("", each.balancer.name)],
        )

    async def load_balancer(self, balancer: LoadBalancerId) -> LoadBalancer:
        """See `Octavia`."""
        return await self._call("get loadbalancer", lambda: self._find(balancer).balancer)

    async def create_load_balancer(
        self,
        *,
        name: str,
        description: str,
        project: ProjectId,
        subnet: SubnetId,
        address: IPAddress,
        provider: str,
        tag: str,
    ) -> LoadBalancer:
        """See `Octavia`."""

        def create() -> LoadBalancer:
            if len(self._balancers) >= self.quotas.get("loadbalancers", 1 << 30):
                raise QuotaError("create loadbalancer", "403", "Quota has been met for resources: Load Balancer")
            if any(each.balancer.vip_address == str(address) for each in self._balancers.values()):
                raise ExistsError("create loadbalancer", "409", "VIP IP address is already in use")
            balancer = LoadBalancer(
                id=LoadBalancerId(self._id()),
                name=name,
                description=description,
                project_id=project,
                tags=(tag,),
                vip_address=str(address),
                vip_port_id=self._vip_port(name, subnet, address),
                vip_subnet_id=subnet,
                provider=provider,
                provisioning_status="PENDING_CREATE",
            )
            self.put(balancer)
            return balancer

        return await self._call("create loadbalancer", create)

    def _vip_port(self, name: str, subnet: SubnetId, address: IPAddress) -> PortId:
        return PortId(self._id()) if self._neutron is None else self._neutron.add_vip_port(name, subnet, address)

    async def delete_load_balancer(self, balancer: LoadBalancerId) -> None:
        """See `Octavia`."""

        def delete() -> None:
            if (found := self._balancers.get(balancer)) is not None:
                self._change(found, "PENDING_DELETE")

        await self._call("delete loadbalancer", delete)

    async def listeners(self, balancer: LoadBalancerId) -> list[Listener]:
        """See `Octavia`."""
        return await self._call("list listeners", lambda: list(self._find(balancer).listeners.values()))

    async def create_listener(
        self, balancer: LoadBalancerId, *, name: str, protocol: str, port: int, admitted: Collection[str]
    ) -> Listener:
        """See `Octavia`."""

        def create() -> Listener:
            found = self._find(balancer)
            self._check_mutable(found)
            if any((each.protocol, each.protocol_port) == (protocol, port) for each in found.listeners.values()):
                raise ExistsError("create listener", "409", "Another Listener is already using it")
            listener = Listener(
                id=ListenerId(self._id()),
                name=name,
                protocol=protocol,
                protocol_port=port,
                allowed_cidrs=tuple(sorted(admitted)) or None,
            )
            found.listeners[listener.id] = listener
            self._change(found)
            return listener

        return await self._call("create listener", create)

    async def admit_clients(self, listener: ListenerId, networks: Collection[str]) -> None:
        """See `Octavia`."""

        def change() -> None:
            found = self._with("listeners", listener)
            self._change(found)
            cidrs = tuple(sorted(networks)) or None
            found.listeners[listener] = msgspec.structs.replace(found.listeners[listener], allowed_cidrs=cidrs)

        await self._call("update listener", change)

    async def delete_listener(self, listener: ListenerId) -> None:
        """See `Octavia`."""

        def delete() -> None:
            if (found := self._having("listeners", listener)) is not None:
                self._change(found)
                del found.listeners[listener]

        await self._call("delete listener", delete)

    async def pools(self, balancer: LoadBalancerId) -> list[Pool]:
        """See `Octavia`."""
        return await self._call("list pools", lambda: list(self._find(balancer).pools.values()))

    async def create_pool(
        self, listener: ListenerId, *, name: str, protocol: str, algorithm: str, affinity: bool
    ) -> Pool:
        """See `Octavia`."""

        def create() -> Pool:
            found = self._with("listeners", listener)
            self._check_mutable(found)
            if found.listeners[listener].default_pool_id is not None:
                raise ExistsError("create pool", "409", "Listener already has a default pool")
            if algorithm != self._provider(found).algorithm:
                raise UnsupportedError("create pool", "501", f"the provider does not support {algorithm}")
            pool = Pool(
                id=PoolId(self._id()),
                name=name,
                protocol=protocol,
                lb_algorithm=algorithm,
                session_persistence=SessionPersistence(SOURCE_IP) if affinity else None,
            )
            found.pools[pool.id] = pool
            found.members[pool.id] = {}
            found.listeners[listener] = msgspec.structs.replace(found.listeners[listener], default_pool_id=pool.id)
            self._change(found)
            return pool

        return await self._call("create pool", create)

    async def set_affinity(self, pool: PoolId, *, affinity: bool) -> None:
        """See `Octavia`."""

        def change() -> None:
            found = self._with("pools", pool)
            self._change(found)
            persistence = SessionPersistence(SOURCE_IP) if affinity else None
            found.pools[pool] = msgspec.structs.replace(found.pools[pool], session_persistence=persistence)

        await self._call("update pool", change)

    async def delete_pool(self, pool: PoolId) -> None:
        """See `Octavia`."""

        def delete() -> None:
            if (found := self._having("pools", pool)) is None:
                return
            self._change(found)
            del found.pools[pool], found.members[pool]
            for listener in found.listeners.values():
                if listener.default_pool_id == pool:
                    found.listeners[listener.id] = msgspec.structs.replace(listener, default_pool_id=None)
                    break

        await self._call("delete pool", delete)

    async def members(self, pool: PoolId) -> list[Member]:
        """See `Octavia`."""
        return await self._call("list members", lambda: list(self._with("pools", pool).members[pool].values()))

    async def set_members(self, pool: PoolId, members: Collection[MemberPlan], *, subnet: SubnetId | None) -> None:
        """See `Octavia`."""

        def change() -> None:
            found = self._with("pools", pool)
            self._check_mutable(found)
            if members and subnet is None and self._provider(found).member_subnets:
                raise UnsupportedError("set members", "501", "the provider requires subnet_id for members")
            present = {(each.address, each.protocol_port): each for each in found.members[pool].values()}
            kept = [present.get((each.address, each.port)) or self._member(each, subnet) for each in members]
            found.members[pool] = {each.id: each for each in kept}
            self._change(found)

        await self._call("set members", change)

    async def delete_member(self, pool: PoolId, member: MemberId) -> None:
        """See `Octavia`."""

        def delete() -> None:
            found = self._with("pools", pool)
            if member in found.members[pool]:
                self._change(found)
                del found.members[pool][member]

        await self._call("delete member", delete)

    def _member(self, plan: MemberPlan, subnet: SubnetId | None) -> Member:
        return Member(id=MemberId(self._id()), address=plan.address, protocol_port=plan.port, subnet_id=subnet)

    def _provider(self, found: _Balancer) -> Provider:
        return PROVIDERS[found.balancer.provider]

    def _change(self, found: _Balancer, status: str = "PENDING_UPDATE") -> None:
        self._check_mutable(found, status)
        self._set_status(found, status)

    def _check_mutable(self, found: _Balancer, status: str = "PENDING_UPDATE") -> None:
        if found.balancer.pending or (found.balancer.failed and status != "PENDING_DELETE"):
            raise ImmutableError("change", "409", f"Load Balancer {found.balancer.id} is immutable")

    def _set_status(self, found: _Balancer, status: str) -> None:
        found.balancer = msgspec.structs.replace(found.balancer, provisioning_status=status)

    def _find(self, balancer: str) -> _Balancer:
        if balancer not in self._balancers:
            raise NotFoundError("get loadbalancer", "404", f"Load Balancer {balancer} not found.")
        return self._balancers[balancer]

    def _having(self, kind: str, object_id: str) -> _Balancer | None:
        return next((each for each in self._balancers.values() if object_id in getattr(each, kind)), None)

    def _with(self, kind: str, object_id: str) -> _Balancer:
        found = self._having(kind, object_id)
        if found is None:
            raise NotFoundError(f"get {kind}", "404", f"{object_id} not found.")
        return found
