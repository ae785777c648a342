"""Neutron's API as coil-raven uses it: typed answers, errors that can be told apart, and no retries but the caller's.

`Neutron` is the interface, `NeutronApi` the implementation over an `OpenStack` client. A call that creates sets the
object's identity in its name (`coil.neutron.identity`), so that after a lost answer the caller finds what it made.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Protocol, TypeVar

import msgspec

from coil.kernel.family import IPAddress
from coil.neutron.resource import (
    FloatingIp,
    FloatingIpId,
    Network,
    NetworkId,
    Port,
    PortId,
    ProjectId,
    Resource,
    Router,
    RouterId,
    SecurityGroup,
    SecurityGroupId,
    SecurityGroupRule,
    Subnet,
    SubnetId,
)
from coil.openstack.client import OpenStack, Service, delete, list_all
from coil.openstack.decode import convert, entry_of, without_empty
from coil.openstack.error import ExistsError, InvalidError, NotFoundError

R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRequest:
    """A port to be created. `host` is the node's name as Neutron's agents have it.

    `subnets` are those that it gets an address of each from; any of the network's if there are none.
    """

    name: str
    description: str
    project: ProjectId
    network: NetworkId
    device_id: str
    device_owner: str
    host: str
    groups: frozenset[SecurityGroupId]
    subnets: tuple[SubnetId, ...] = ()

    def body(self) -> dict[str, Any]:
        fixed = {"fixed_ips": [{"subnet_id": subnet} for subnet in self.subnets]} if self.subnets else {}
        project = {"project_id": self.project} if self.project else {}
        return {
            "name": self.name,
            "description": self.description,
            "network_id": self.network,
            "device_id": self.device_id,
            "device_owner": self.device_owner,
            "binding:host_id": self.host,
            "binding:vnic_type": "normal",
            "security_groups": sorted(self.groups),
            "admin_state_up": True,
            **project,
            **fixed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAssignment:
    """What a port serves: everything of a `PortRequest` that an update can change without plugging it in elsewhere."""

    name: str
    description: str
    device_id: str
    groups: frozenset[SecurityGroupId]

    def body(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "device_id": self.device_id,
            "security_groups": sorted(self.groups),
        }


class Neutron(Protocol):
    """All calls raise OpenStackError, and have no effect that was not asked for. Cancelled, one may have taken place.

    Deletions of what does not exist are fine. An answer that is not understood is none (UnavailableError). Lists are
    whole, of what the account may see.
    """

    async def extensions(self) -> frozenset[str]:
        """The aliases of the extensions that are there."""

    async def networks(self, *, name: str = "", external: bool | None = None) -> list[Network]: ...

    async def network(self, network: NetworkId) -> Network: ...

    async def create_network(self, *, name: str, description: str, project: ProjectId) -> Network: ...

    async def delete_network(self, network: NetworkId) -> None:
        """InUseError while there are ports on it."""

    async def subnets(self, *, network: NetworkId | None = None, name: str = "") -> list[Subnet]: ...

    async def create_subnet(
        self,
        *,
        name: str,
        description: str,
        project: ProjectId,
        network: NetworkId,
        cidr: IPv4Network | IPv6Network,
        gateway: IPAddress | None,
        pool: tuple[IPAddress, IPAddress] | None = None,
    ) -> Subnet:
        """Without DHCP: pods have their addresses from their hand-off.

        `pool` is the first and the last address that Neutron may give; None: all but the gateway.
        """

    async def delete_subnet(self, subnet: SubnetId) -> None: ...

    async def routers(self, *, name: str = "") -> list[Router]: ...

    async def create_router(
        self, *, name: str, description: str, project: ProjectId, external: NetworkId | None
    ) -> Router: ...

    async def delete_router(self, router: RouterId) -> None: ...

    async def set_router_gateway(self, router: RouterId, external: NetworkId) -> None: ...

    async def add_router_interface(self, router: RouterId, subnet: SubnetId) -> None:
        """Idempotent."""

    async def remove_router_interface(self, router: RouterId, subnet: SubnetId) -> None:
        """Idempotent."""

    async def ports(
        self,
        *,
        network: NetworkId | None = None,
        name: str = "",
        device_id: str = "",
        device_owner: str = "",
        ids: Sequence[PortId] = (),
    ) -> list[Port]:
        """`ids` are those that it may be; any if there are none."""

    async def port(self, port: PortId) -> Port:
        """Raises NotFoundError, too."""

    async def create_port(self, request: PortRequest) -> Port: ...

    async def create_ports(self, requests: Sequence[PortRequest]) -> list[Port]:
        """All of them in one call, or none. In the order of the requests."""

    async def assign_port(self, port: Port, assignment: PortAssignment) -> Port:
        """Have it serve something else, unless it has changed since it was read: ConflictError.

        Raises NotFoundError, too.
        """

    async def bind_port(self, port: PortId, host: str) -> Port:
        """Have it bound on that host, also if that has failed before; "" unbinds it. Idempotent.

        Raises NotFoundError, too.
        """

    async def delete_port(self, port: PortId) -> None: ...

    async def security_groups(self, *, name: str = "") -> list[SecurityGroup]: ...

    async def create_security_group(self, *, name: str, description: str, project: ProjectId) -> SecurityGroup:
        """Neutron puts rules for all that leaves into it."""

    async def delete_security_group(self, group: SecurityGroupId) -> None: ...

    async def create_security_group_rules(
        self, group: SecurityGroupId, rules: Collection[SecurityGroupRule], *, project: ProjectId
    ) -> None:
        """In one call. Rules that are there already are fine."""

    async def delete_security_group_rule(self, rule: str) -> None: ...

    async def floating_ips(self, *, port: PortId | None = None, address: str = "") -> list[FloatingIp]: ...

    async def create_floating_ip(
        self, *, description: str, project: ProjectId, external: NetworkId, port: PortId
    ) -> FloatingIp:
        """Of that external network, bound to the port. ExhaustedError, or QuotaError, if none is left."""

    async def bind_floating_ip(self, floating_ip: FloatingIpId, port: PortId | None) -> FloatingIp:
        """Bind it to the port, or to none. Idempotent."""

    async def delete_floating_ip(self, floating_ip: FloatingIpId) -> None: ...

    async def set_tag(self, collection: str, object_id: str, tag: str) -> None:
        """Add the tag; `collection` is the plural in the API's paths, such as "networks". Idempotent."""


class NeutronApi:
    """Implements `Neutron`."""

    def __init__(self, client: OpenStack) -> None:
        self._client = client

    async def extensions(self) -> frozenset[str]:
        """See `Neutron`."""
        answer = await self._call("list extensions", "GET", "/extensions")
        return frozenset(entry["alias"] for entry in entry_of(answer, "extensions", "list extensions"))

    async def networks(self, *, name: str = "", external: bool | None = None) -> list[Network]:
        """See `Neutron`."""
        query: dict[str, Any] = without_empty(name=name)
        if external is not None:
            query["router:external"] = external
        return await self._list("networks", Network, query)

    async def network(self, network: NetworkId) -> Network:
        """See `Neutron`."""
        return await self._get("network", Network, network)

    async def create_network(self, *, name: str, description: str, project: ProjectId) -> Network:
        """See `Neutron`."""
        body = {"name": name, "description": description, "admin_state_up": True, **without_empty(project_id=project)}
        return await self._create("network", Network, body)

    async def delete_network(self, network: NetworkId) -> None:
        """See `Neutron`."""
        await self._delete("network", network)

    async def subnets(self, *, network: NetworkId | None = None, name: str = "") -> list[Subnet]:
        """See `Neutron`."""
        return await self._list("subnets", Subnet, without_empty(network_id=network, name=name))

    async def create_subnet(
        self,
        *,
        name: str,
        description: str,
        project: ProjectId,
        network: NetworkId,
        cidr: IPv4Network | IPv6Network,
        gateway: IPAddress | None,
        pool: tuple[IPAddress, IPAddress] | None = None,
    ) -> Subnet:
        """See `Neutron`."""
        body: dict[str, Any] = {
            "name": name,
            "description": description,
            "network_id": network,
            "ip_version": cidr.version,
            "cidr": str(cidr),
            "gateway_ip": None if gateway is None else str(gateway),
            "enable_dhcp": False,
            **without_empty(project_id=project),
        }
        if pool is not None:
            body["allocation_pools"] = [{"start": str(pool[0]), "end": str(pool[1])}]
        return await self._create("subnet", Subnet, body)

    async def delete_subnet(self, subnet: SubnetId) -> None:
        """See `Neutron`."""
        await self._delete("subnet", subnet)

    async def routers(self, *, name: str = "") -> list[Router]:
        """See `Neutron`."""
        return await self._list("routers", Router, without_empty(name=name))

    async def create_router(
        self, *, name: str, description: str, project: ProjectId, external: NetworkId | None
    ) -> Router:
        """See `Neutron`."""
        body: dict[str, Any] = {"name": name, "description": description, "admin_state_up": True}
        if external is not None:
            body["external_gateway_info"] = {"network_id": external}
        return await self._create("router", Router, {**body, **without_empty(project_id=project)})

    async def delete_router(self, router: RouterId) -> None:
        """See `Neutron`."""
        await self._delete("router", router)

    async def set_router_gateway(self, router: RouterId, external: NetworkId) -> None:
        """See `Neutron`."""
        body = {"router": {"external_gateway_info": {"network_id": external}}}
        await self._call("update router", "PUT", f"/routers/{router}", body=body)

    async def add_router_interface(self, router: RouterId, subnet: SubnetId) -> None:
        """See `Neutron`."""
        try:
            await self._call(
                "add router interface", "PUT", f"/routers/{router}/add_router_interface", body={"subnet_id": subnet}
            )
        except (ExistsError, InvalidError):
            # Neutron has no type of its own for "it has a port on this subnet already", only HTTPBadRequest.
            if not await self._has_interface(router, subnet):
                raise

    async def _has_interface(self, router: RouterId, subnet: SubnetId) -> bool:
        ports = await self.ports(device_id=router)
        return any(fixed.subnet_id == subnet for port in ports for fixed in port.fixed_ips)

    async def remove_router_interface(self, router: RouterId, subnet: SubnetId) -> None:
        """See `Neutron`."""
        try:
            await self._call(
                "remove router interface",
                "PUT",
                f"/routers/{router}/remove_router_interface",
                body={"subnet_id": subnet},
            )
        except NotFoundError:
            return

    async def ports(
        self,
        *,
        network: NetworkId | None = None,
        name: str = "",
        device_id: str = "",
        device_owner: str = "",
        ids: Sequence[PortId] = (),
    ) -> list[Port]:
        """See `Neutron`."""
        query = without_empty(network_id=network, name=name, device_id=device_id, device_owner=device_owner)
        return await self._list("ports", Port, {**query, "id": list(ids)} if ids else query)

    async def port(self, port: PortId) -> Port:
        """See `Neutron`."""
        return await self._get("port", Port, port)

    async def create_port(self, request: PortRequest) -> Port:
        """See `Neutron`."""
        return await self._create("port", Port, request.body())

    async def create_ports(self, requests: Sequence[PortRequest]) -> list[Port]:
        """See `Neutron`."""
        # Networking API v2.0, "Bulk create ports".
        call = "create ports"
        answer = await self._call(call, "POST", "/ports", body={"ports": [request.body() for request in requests]})
        return [convert(call, entry, Port) for entry in entry_of(answer, "ports", call)]

    async def assign_port(self, port: Port, assignment: PortAssignment) -> Port:
        """See `Neutron`."""
        call = "assign port"
        answer = await self._client.request(
            Service.NETWORK,
            call,
            "PUT",
            f"/ports/{port.id}",
            body={"port": assignment.body()},
            # Networking API v2.0, "Revisions".
            headers={"If-Match": f"revision_number={port.revision_number}"},
        )
        return convert(call, entry_of(answer, "port", call), Port)

    async def bind_port(self, port: PortId, host: str) -> Port:
        """See `Neutron`."""
        # ML2 binds a port anew with any update, if it is not bound, and never else (`Ml2Plugin._should_bind_port`).
        call = "bind port"
        answer = await self._call(call, "PUT", f"/ports/{port}", body={"port": {"binding:host_id": host}})
        return convert(call, entry_of(answer, "port", call), Port)

    async def delete_port(self, port: PortId) -> None:
        """See `Neutron`."""
        await self._delete("port", port)

    async def security_groups(self, *, name: str = "") -> list[SecurityGroup]:
        """See `Neutron`."""
        return await self._list("security_groups", SecurityGroup, without_empty(name=name), path="/security-groups")

    async def create_security_group(self, *, name: str, description: str, project: ProjectId) -> SecurityGroup:
        """See `Neutron`."""
        body = {"name": name, "description": description, **without_empty(project_id=project)}
        return await self._create("security_group", SecurityGroup, body, path="/security-groups")

    async def delete_security_group(self, group: SecurityGroupId) -> None:
        """See `Neutron`."""
        await delete(self._client, Service.NETWORK, "delete security_group", f"/security-groups/{group}")

    async def create_security_group_rules(
        self, group: SecurityGroupId, rules: Collection[SecurityGroupRule], *, project: ProjectId
    ) -> None:
        """See `Neutron`."""
        for rule in rules:
            # One by one: in a call for several, one that exists refuses all.
            try:
                await self._call(
                    "create security_group_rule",
                    "POST",
                    "/security-group-rules",
                    body={
                        "security_group_rule": {
                            "security_group_id": group,
                            **_rule(rule),
                            **without_empty(project_id=project),
                        }
                    },
                )
            except ExistsError:
                continue

    async def delete_security_group_rule(self, rule: str) -> None:
        """See `Neutron`."""
        await delete(self._client, Service.NETWORK, "delete security_group_rule", f"/security-group-rules/{rule}")

    async def floating_ips(self, *, port: PortId | None = None, address: str = "") -> list[FloatingIp]:
        """See `Neutron`."""
        return await self._list("floatingips", FloatingIp, without_empty(port_id=port, floating_ip_address=address))

    async def create_floating_ip(
        self, *, description: str, project: ProjectId, external: NetworkId, port: PortId
    ) -> FloatingIp:
        """See `Neutron`."""
        body = {
            "description": description,
            "floating_network_id": external,
            "port_id": port,
            **without_empty(project_id=project),
        }
        return await self._create("floatingip", FloatingIp, body)

    async def bind_floating_ip(self, floating_ip: FloatingIpId, port: PortId | None) -> FloatingIp:
        """See `Neutron`."""
        call = "update floatingip"
        answer = await self._call(call, "PUT", f"/floatingips/{floating_ip}", body={"floatingip": {"port_id": port}})
        return convert(call, entry_of(answer, "floatingip", call), FloatingIp)

    async def delete_floating_ip(self, floating_ip: FloatingIpId) -> None:
        """See `Neutron`."""
        await self._delete("floatingip", floating_ip)

    async def set_tag(self, collection: str, object_id: str, tag: str) -> None:
        """See `Neutron`."""
        await self._call("set tag", "PUT", f"/{collection}/{object_id}/tags/{tag}")

    async def _list(self, key: str, kind: type[R], query: Mapping[str, Any], *, path: str = "") -> list[R]:
        call = f"list {key}"
        entries = await list_all(self._client, Service.NETWORK, call, path or f"/{key}", key, query)
        return [convert(call, entry, kind) for entry in entries]

    async def _get(self, key: str, kind: type[R], object_id: str) -> R:
        call = f"get {key}"
        answer = await self._call(call, "GET", f"/{key}s/{object_id}")
        return convert(call, entry_of(answer, key, call), kind)

    async def _create(self, key: str, kind: type[R], body: Mapping[str, Any], *, path: str = "") -> R:
        call = f"create {key}"
        answer = await self._call(call, "POST", path or f"/{key}s", body={key: body})
        return convert(call, entry_of(answer, key, call), kind)

    async def _delete(self, key: str, object_id: str) -> None:
        await delete(self._client, Service.NETWORK, f"delete {key}", f"/{key}s/{object_id}")

    async def _call(
        self, call: str, method: str, path: str, *, body: object = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        return await self._client.request(Service.NETWORK, call, method, path, body=body, query=query)


def own(found: Iterable[Resource], name: str) -> list[Any]:
    """Those that have exactly this name: the filter is the server's, and some databases compare without case."""
    return [resource for resource in found if resource.name == name]


def _rule(rule: SecurityGroupRule) -> dict[str, Any]:
    return {key: value for key, value in msgspec.to_builtins(rule).items() if key != "id" and value is not None}
