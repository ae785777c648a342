"""Octavia's API as coil-raven uses it: typed answers, errors that can be told apart, and no retries but the caller's.

`Octavia` is the interface, `OctaviaApi` the implementation over an `OpenStack` client. A load balancer's name is its
identity (`coil.neutron.identity`), set by the call that creates it. Its listeners and pools are found through it.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol, TypeVar

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
)
from coil.neutron.resource import ProjectId, SubnetId
from coil.neutron.service_plan import MemberPlan
from coil.openstack.client import OpenStack, Service, delete, list_all
from coil.openstack.decode import convert, entry_of, without_empty

R = TypeVar("R", bound=msgspec.Struct)

BASE: Final = "/lbaas"


class Octavia(Protocol):
    """All calls raise OpenStackError, and have no effect that was not asked for. Cancelled, one may have taken place.

    A call that changes something raises ImmutableError while the load balancer is pending, and leaves it pending
    otherwise. Deletions of what does not exist are fine. Lists are whole, of what the account may see.
    """

    async def providers(self) -> frozenset[str]:
        """The names of those that are enabled."""

    async def load_balancers(self, *, name: str = "") -> list[LoadBalancer]: ...

    async def load_balancer(self, balancer: LoadBalancerId) -> LoadBalancer:
        """Raises NotFoundError, too; for one that was deleted."""

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
        """At that address of the subnet; ExistsError if somebody has it."""

    async def delete_load_balancer(self, balancer: LoadBalancerId) -> None:
        """With all that it has. It is pending until it is gone."""

    async def listeners(self, balancer: LoadBalancerId) -> list[Listener]: ...

    async def create_listener(
        self, balancer: LoadBalancerId, *, name: str, protocol: str, port: int, admitted: Collection[str]
    ) -> Listener:
        """`admitted` are networks; without any, everybody is."""

    async def admit_clients(self, listener: ListenerId, networks: Collection[str]) -> None:
        """Set the networks whose clients the listener admits; without any, everybody's."""

    async def delete_listener(self, listener: ListenerId) -> None: ...

    async def pools(self, balancer: LoadBalancerId) -> list[Pool]: ...

    async def create_pool(
        self, listener: ListenerId, *, name: str, protocol: str, algorithm: str, affinity: bool
    ) -> Pool:
        """As the listener's only one."""

    async def set_affinity(self, pool: PoolId, *, affinity: bool) -> None: ...

    async def delete_pool(self, pool: PoolId) -> None: ...

    async def members(self, pool: PoolId) -> list[Member]: ...

    async def set_members(self, pool: PoolId, members: Collection[MemberPlan], *, subnet: SubnetId | None) -> None:
        """Have these and no others, at once. `subnet` is where all of them are reached from, for who has to name it."""

    async def delete_member(self, pool: PoolId, member: MemberId) -> None: ...


class OctaviaApi:
    """Implements `Octavia`."""

    def __init__(self, client: OpenStack) -> None:
        self._client = client

    async def providers(self) -> frozenset[str]:
        """See `Octavia`."""
        call = "list providers"
        answer = await self._call(call, "GET", f"{BASE}/providers")
        return frozenset(entry["name"] for entry in entry_of(answer, "providers", call))

    async def load_balancers(self, *, name: str = "") -> list[LoadBalancer]:
        """See `Octavia`."""
        return await self._list("loadbalancers", LoadBalancer, without_empty(name=name))

    async def load_balancer(self, balancer: LoadBalancerId) -> LoadBalancer:
        """See `Octavia`."""
        call = "get loadbalancer"
        answer = await self._call(call, "GET", f"{BASE}/loadbalancers/{balancer}")
        return convert(call, entry_of(answer, "loadbalancer", call), LoadBalancer)

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
        body = {
            "name": name,
            "description": description,
            "vip_subnet_id": subnet,
            "vip_address": str(address),
            "provider": provider,
            "tags": [tag],
            **without_empty(project_id=project),
        }
        return await self._create("loadbalancer", LoadBalancer, body)

    async def delete_load_balancer(self, balancer: LoadBalancerId) -> None:
        """See `Octavia`."""
        await self._delete("loadbalancer", f"loadbalancers/{balancer}?cascade=true")

    async def listeners(self, balancer: LoadBalancerId) -> list[Listener]:
        """See `Octavia`."""
        return await self._list("listeners", Listener, {"load_balancer_id": balancer})

    async def create_listener(
        self, balancer: LoadBalancerId, *, name: str, protocol: str, port: int, admitted: Collection[str]
    ) -> Listener:
        """See `Octavia`."""
        body: dict[str, Any] = {
            "name": name,
            "loadbalancer_id": balancer,
            "protocol": protocol,
            "protocol_port": port,
        }
        if admitted:
            body["allowed_cidrs"] = sorted(admitted)
        return await self._create("listener", Listener, body)

    async def admit_clients(self, listener: ListenerId, networks: Collection[str]) -> None:
        """See `Octavia`."""
        await self._update("listener", f"listeners/{listener}", {"allowed_cidrs": sorted(networks) or None})

    async def delete_listener(self, listener: ListenerId) -> None:
        """See `Octavia`."""
        await self._delete("listener", f"listeners/{listener}")

    async def pools(self, balancer: LoadBalancerId) -> list[Pool]:
        """See `Octavia`."""
        return await self._list("pools", Pool, {"loadbalancer_id": balancer})

    async def create_pool(
        self, listener: ListenerId, *, name: str, protocol: str, algorithm: str, affinity: bool
    ) -> Pool:
        """See `Octavia`."""
        body: dict[str, Any] = {
            "name": name,
            "listener_id": listener,
            "protocol": protocol,
            "lb_algorithm": algorithm,
        }
        if affinity:
            body["session_persistence"] = {"type": SOURCE_IP}
        return await self._create("pool", Pool, body)

    async def set_affinity(self, pool: PoolId, *, affinity: bool) -> None:
        """See `Octavia`."""
        await self._update("pool", f"pools/{pool}", {"session_persistence": {"type": SOURCE_IP} if affinity else None})

    async def delete_pool(self, pool: PoolId) -> None:
        """See `Octavia`."""
        await self._delete("pool", f"pools/{pool}")

    async def members(self, pool: PoolId) -> list[Member]:
        """See `Octavia`."""
        return await self._list("members", Member, {}, path=f"{BASE}/pools/{pool}/members")

    async def set_members(self, pool: PoolId, members: Collection[MemberPlan], *, subnet: SubnetId | None) -> None:
        """See `Octavia`."""
        subnet_id = {} if subnet is None else {"subnet_id": subnet}
        body = {
            "members": [
                {"address": member.address, "protocol_port": member.port, **subnet_id} for member in sorted(members)
            ]
        }
        await self._call("set members", "PUT", f"{BASE}/pools/{pool}/members", body=body)

    async def delete_member(self, pool: PoolId, member: MemberId) -> None:
        """See `Octavia`."""
        await self._delete("member", f"pools/{pool}/members/{member}")

    async def _list(self, key: str, kind: type[R], query: Mapping[str, Any], *, path: str = "") -> list[R]:
        call = f"list {key}"
        entries = await list_all(self._client, Service.LOAD_BALANCER, call, path or f"{BASE}/{key}", key, query)
        return [convert(call, entry, kind) for entry in entries]

    async def _create(self, key: str, kind: type[R], body: Mapping[str, Any]) -> R:
        call = f"create {key}"
        answer = await self._call(call, "POST", f"{BASE}/{key}s", body={key: body})
        return convert(call, entry_of(answer, key, call), kind)

    async def _update(self, key: str, path: str, changes: Mapping[str, Any]) -> None:
        await self._call(f"update {key}", "PUT", f"{BASE}/{path}", body={key: changes})

    async def _delete(self, key: str, path: str) -> None:
        await delete(self._client, Service.LOAD_BALANCER, f"delete {key}", f"{BASE}/{path}")

    async def _call(self, call: str, method: str, path: str, *, body: object = None) -> Any:
        return await self._client.request(Service.LOAD_BALANCER, call, method, path, body=body)
