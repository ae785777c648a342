"""A Neutron in memory, for tests of what uses one. It passes the contract suite that the real one passes.

`faults` has calls refused, or carried out without an answer. `calls` is what was asked, in order.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, TypeVar

import msgspec

from coil.kernel.family import IPAddress
from coil.neutron.resource import (
    AUTO_DELETED_OWNERS,
    AllocationPool,
    ExternalGateway,
    FixedIp,
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
from coil.openstack.error import (
    ConflictError,
    ExhaustedError,
    ExistsError,
    InUseError,
    InvalidError,
    NotFoundError,
    OpenStackError,
    QuotaError,
    UnavailableError,
)
from coil.openstack.neutron import PortAssignment, PortRequest
from tests.coil.openstack.memory_service import MemoryService, uuid

R = TypeVar("R", bound=Resource)

ROUTER_INTERFACE = "network:router_interface"
OCTAVIA = "Octavia"
"""The device_owner of the ports that Octavia makes."""


class MemoryNeutron(MemoryService):
    """Implements `Neutron`. `quotas` limit how many of a kind there may be, by its plural: "ports".

    `hosts` are those whose ports are bound; None binds on all. Lists do not show the kinds whose plurals are `hidden`.
    """

    def __init__(self, *, quotas: Mapping[str, int] | None = None, hosts: Collection[str] | None = None) -> None:
        super().__init__()
        self.quotas = dict(quotas or {})
        self.hosts = hosts
        self.hidden: set[str] = set()
        self.mtu = 1450
        self._objects: dict[str, dict[str, Any]] = {
            kind: {} for kind in ("networks", "subnets", "routers", "ports", "security-groups", "floatingips")
        }

    def snapshot(self) -> dict[str, int]:
        """How many of each kind there are."""
        return {kind: len(objects) for kind, objects in self._objects.items()}

    def add_external(self, name: str) -> Network:
        """An external network, as an administrator makes it."""
        return self._store("networks", Network(id=NetworkId(self._id()), name=name, mtu=1500, external=True))

    def put(self, kind: str, resource: R) -> R:
        """Something that somebody else has made."""
        return self._store(kind, resource)

    def everything(self) -> dict[str, Resource]:
        """Every object by its ID."""
        return {key: each for objects in self._objects.values() for key, each in objects.items()}

    def add_vip_port(self, name: str, subnet: SubnetId, address: IPAddress) -> PortId:
        """As Octavia makes it for a load balancer. Raises OpenStackError, in the words of Octavia."""
        found: Subnet = self._find("subnets", subnet)
        taken = {fixed.ip_address for port in self._objects["ports"].values() for fixed in port.fixed_ips}
        if str(address) in taken:
            raise ExistsError("create loadbalancer", "409", f"VIP IP address is already in use: {address}")
        if len(self._objects["ports"]) >= self.quotas.get("ports", 1 << 30):
            # Which the real one does not explain, either.
            raise UnavailableError("create loadbalancer", "500", "Failed to provision the VIP port")
        port = self._store_port(
            network=found.network_id,
            fixed=(FixedIp(subnet, str(address)),),
            device_id=f"lb-{name}",
            device_owner=OCTAVIA,
        )
        return port.id

    def drop_port(self, port: PortId) -> None:
        """As Octavia does it: with the binding of a floating IP."""
        self._objects["ports"].pop(port, None)
        for each in list(self._objects["floatingips"].values()):
            if each.port_id == port:
                self._store("floatingips", msgspec.structs.replace(each, port_id=None))

    def set_status(self, port: PortId, status: str) -> None:
        """What an agent tells Neutron: ACTIVE, the port's interface is plugged in; DOWN, it is not."""
        self._store("ports", msgspec.structs.replace(self._find("ports", port), status=status))

    async def extensions(self) -> frozenset[str]:
        """See `Neutron`."""
        aliases = frozenset({"router", "security-group", "binding", "net-mtu", "standard-attr-tag", "external-net"})
        return await self._call("list extensions", lambda: aliases)

    async def networks(self, *, name: str = "", external: bool | None = None) -> list[Network]:
        """See `Neutron`."""
        return await self._list(
            "networks",
            lambda network: (not name or network.name == name) and external in (None, network.external),
        )

    async def network(self, network: NetworkId) -> Network:
        """See `Neutron`."""
        return await self._call("get network", lambda: self._find("networks", network))

    async def create_network(self, *, name: str, description: str, project: ProjectId) -> Network:
        """See `Neutron`."""

        def create() -> Network:
            self._within_quota("networks")
            number = next(self._numbers)
            network = Network(
                id=NetworkId(uuid(number)),
                name=name,
                description=description,
                project_id=project,
                mtu=self.mtu,
                segmentation_id=number,
            )
            return self._store("networks", network)

        return await self._call("create network", create)

    async def delete_network(self, network: NetworkId) -> None:
        """See `Neutron`."""

        def delete() -> None:
            ports = [port for port in self._objects["ports"].values() if port.network_id == network]
            if any(port.device_owner not in AUTO_DELETED_OWNERS for port in ports):
                raise InUseError("delete network", "NetworkInUse", "there are ports")
            for port in ports:
                del self._objects["ports"][port.id]
            for subnet in [each for each in self._objects["subnets"].values() if each.network_id == network]:
                del self._objects["subnets"][subnet.id]
            self._objects["networks"].pop(network, None)

        await self._call("delete network", delete)

    async def subnets(self, *, network: NetworkId | None = None, name: str = "") -> list[Subnet]:
        """See `Neutron`."""
        return await self._list(
            "subnets",
            lambda subnet: network in (None, subnet.network_id) and (not name or subnet.name == name),
        )

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

        def create() -> Subnet:
            self._find("networks", network)
            for other in self._objects["subnets"].values():
                if (
                    other.network_id == network
                    and other.network.version == cidr.version
                    and other.network.overlaps(cidr)
                ):
                    raise InvalidError("create subnet", "InvalidInput", f"{cidr} overlaps {other.cidr}")
            self._within_quota("subnets")
            subnet = Subnet(
                id=SubnetId(self._id()),
                name=name,
                description=description,
                project_id=project,
                network_id=network,
                cidr=str(cidr),
                ip_version=cidr.version,
                gateway_ip=None if gateway is None else str(gateway),
                allocation_pools=() if pool is None else (AllocationPool(str(pool[0]), str(pool[1])),),
            )
            return self._store("subnets", subnet)

        return await self._call("create subnet", create)

    async def delete_subnet(self, subnet: SubnetId) -> None:
        """See `Neutron`."""

        def delete() -> None:
            for port in self._objects["ports"].values():
                if port.device_owner in AUTO_DELETED_OWNERS:
                    continue
                if any(fixed.subnet_id == subnet for fixed in port.fixed_ips):
                    raise InUseError("delete subnet", "SubnetInUse", "there are ports with addresses of it")
            self._objects["subnets"].pop(subnet, None)

        await self._call("delete subnet", delete)

    async def routers(self, *, name: str = "") -> list[Router]:
        """See `Neutron`."""
        return await self._list("routers", lambda router: not name or router.name == name)

    async def create_router(
        self, *, name: str, description: str, project: ProjectId, external: NetworkId | None
    ) -> Router:
        """See `Neutron`."""

        def create() -> Router:
            self._within_quota("routers")
            gateway = None if external is None else ExternalGateway(external)
            router = Router(
                id=RouterId(self._id()),
                name=name,
                description=description,
                project_id=project,
                external_gateway_info=gateway,
            )
            return self._store("routers", router)

        return await self._call("create router", create)

    async def delete_router(self, router: RouterId) -> None:
        """See `Neutron`."""

        def delete() -> None:
            if any(port.device_id == router for port in self._objects["ports"].values()):
                raise InUseError("delete router", "RouterInUse", "it has ports")
            self._objects["routers"].pop(router, None)

        await self._call("delete router", delete)

    async def set_router_gateway(self, router: RouterId, external: NetworkId) -> None:
        """See `Neutron`."""

        def change() -> None:
            found = self._find("routers", router)
            self._store("routers", msgspec.structs.replace(found, external_gateway_info=ExternalGateway(external)))

        await self._call("update router", change)

    async def add_router_interface(self, router: RouterId, subnet: SubnetId) -> None:
        """See `Neutron`."""

        def add() -> None:
            self._find("routers", router)
            found: Subnet = self._find("subnets", subnet)
            connected = [
                self._find("subnets", fixed.subnet_id)
                for port in self._objects["ports"].values()
                if port.device_id == router
                for fixed in port.fixed_ips
            ]
            if any(other.id == subnet for other in connected):
                return
            for other in connected:
                if other.network.version == found.network.version and other.network.overlaps(found.network):
                    raise InvalidError("add router interface", "HTTPBadRequest", f"{found.cidr} overlaps {other.cidr}")
            self._store_port(
                network=found.network_id,
                fixed=(FixedIp(subnet, str(found.gateway)),),
                device_id=router,
                device_owner=ROUTER_INTERFACE,
            )

        await self._call("add router interface", add)

    async def remove_router_interface(self, router: RouterId, subnet: SubnetId) -> None:
        """See `Neutron`. What a distributed router has beside the interface goes with it."""

        def remove() -> None:
            for port in list(self._objects["ports"].values()):
                if port.device_id == router and any(fixed.subnet_id == subnet for fixed in port.fixed_ips):
                    del self._objects["ports"][port.id]

        await self._call("remove router interface", remove)

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
        return await self._list(
            "ports",
            lambda port: (
                network in (None, port.network_id)
                and (not name or port.name == name)
                and (not device_id or port.device_id == device_id)
                and (not device_owner or port.device_owner == device_owner)
                and (not ids or port.id in ids)
            ),
        )

    async def port(self, port: PortId) -> Port:
        """See `Neutron`."""
        return await self._call("get port", lambda: self._find("ports", port))

    async def create_port(self, request: PortRequest) -> Port:
        """See `Neutron`."""
        return await self._call("create port", lambda: self._create_port(request))

    async def create_ports(self, requests: Sequence[PortRequest]) -> list[Port]:
        """See `Neutron`."""

        def create() -> list[Port]:
            created: list[Port] = []
            try:
                for request in requests:
                    created.append(self._create_port(request))
            except OpenStackError:
                for port in created:
                    del self._objects["ports"][port.id]
                raise
            return created

        return await self._call("create ports", create)

    async def assign_port(self, port: Port, assignment: PortAssignment) -> Port:
        """See `Neutron`."""

        def assign() -> Port:
            found: Port = self._find("ports", port.id)
            if found.revision_number != port.revision_number:
                raise ConflictError("assign port", "RevisionNumberConstraintFailed", "it has changed")
            return self._store(
                "ports",
                msgspec.structs.replace(
                    found,
                    name=assignment.name,
                    description=assignment.description,
                    device_id=assignment.device_id,
                    security_groups=assignment.groups,
                ),
            )

        return await self._call("assign port", assign)

    async def bind_port(self, port: PortId, host: str) -> Port:
        """See `Neutron`."""

        def bind() -> Port:
            found: Port = self._find("ports", port)
            bound = found.host_id == host and not found.binding_failed
            vif_type = found.vif_type if bound else self._vif_type(host)
            status = found.status if bound else "DOWN"
            return self._store("ports", msgspec.structs.replace(found, host_id=host, vif_type=vif_type, status=status))

        return await self._call("bind port", bind)

    async def delete_port(self, port: PortId) -> None:
        """See `Neutron`."""

        def delete() -> None:
            self._objects["ports"].pop(port, None)

        await self._call("delete port", delete)

    async def security_groups(self, *, name: str = "") -> list[SecurityGroup]:
        """See `Neutron`."""
        return await self._list("security-groups", lambda group: not name or group.name == name, "list security_groups")

    async def create_security_group(self, *, name: str, description: str, project: ProjectId) -> SecurityGroup:
        """See `Neutron`."""

        def create() -> SecurityGroup:
            self._within_quota("security-groups")
            group = SecurityGroup(
                id=SecurityGroupId(self._id()), name=name, description=description, project_id=project
            )
            return self._store("security-groups", group)

        return await self._call("create security_group", create)

    async def delete_security_group(self, group: SecurityGroupId) -> None:
        """See `Neutron`."""

        def delete() -> None:
            if any(group in port.security_groups for port in self._objects["ports"].values()):
                raise InUseError("delete security_group", "SecurityGroupInUse", "there are ports in it")
            self._objects["security-groups"].pop(group, None)

        await self._call("delete security_group", delete)

    async def create_security_group_rules(
        self, group: SecurityGroupId, rules: Collection[SecurityGroupRule], *, project: ProjectId
    ) -> None:
        """See `Neutron`."""
        for rule in rules:
            await self._call("create security_group_rule", partial(self._add_rule, group, rule))

    async def delete_security_group_rule(self, rule: str) -> None:
        """See `Neutron`."""

        def delete() -> None:
            for group in list(self._objects["security-groups"].values()):
                kept = tuple(each for each in group.security_group_rules if each.id != rule)
                self._store("security-groups", msgspec.structs.replace(group, security_group_rules=kept))

        await self._call("delete security_group_rule", delete)

    async def floating_ips(self, *, port: PortId | None = None, address: str = "") -> list[FloatingIp]:
        """See `Neutron`."""
        return await self._list(
            "floatingips",
            lambda each: port in (None, each.port_id) and address in ("", each.floating_ip_address),
        )

    async def create_floating_ip(
        self, *, description: str, project: ProjectId, external: NetworkId, port: PortId
    ) -> FloatingIp:
        """See `Neutron`. All are of 192.0.2.0/24."""

        def create() -> FloatingIp:
            self._within_quota("floatingips")
            taken = {each.floating_ip_address for each in self._objects["floatingips"].values()}
            free = next((str(each) for each in ip_network("192.0.2.0/24").hosts() if str(each) not in taken), "")
            if not free:
                raise ExhaustedError("create floatingip", "IpAddressGenerationFailure", "no more addresses")
            floating_ip = FloatingIp(
                id=FloatingIpId(self._id()),
                description=description,
                project_id=project,
                floating_ip_address=free,
                floating_network_id=external,
                port_id=port,
            )
            return self._store("floatingips", floating_ip)

        return await self._call("create floatingip", create)

    async def bind_floating_ip(self, floating_ip: FloatingIpId, port: PortId | None) -> FloatingIp:
        """See `Neutron`."""

        def bind() -> FloatingIp:
            found: FloatingIp = self._find("floatingips", floating_ip)
            return self._store("floatingips", msgspec.structs.replace(found, port_id=port))

        return await self._call("update floatingip", bind)

    async def delete_floating_ip(self, floating_ip: FloatingIpId) -> None:
        """See `Neutron`."""

        def delete() -> None:
            self._objects["floatingips"].pop(floating_ip, None)

        await self._call("delete floatingip", delete)

    async def set_tag(self, collection: str, object_id: str, tag: str) -> None:
        """See `Neutron`."""

        def change() -> None:
            found = self._find(collection, object_id)
            self._store(collection, msgspec.structs.replace(found, tags=tuple(dict.fromkeys((*found.tags, tag)))))

        await self._call("set tag", change)

    def _add_rule(self, group: SecurityGroupId, rule: SecurityGroupRule) -> None:
        found: SecurityGroup = self._find("security-groups", group)
        if all(rule.allows() != other.allows() for other in found.security_group_rules):
            rules = (*found.security_group_rules, msgspec.structs.replace(rule, id=self._id()))
            self._store("security-groups", msgspec.structs.replace(found, security_group_rules=rules))

    def _create_port(self, request: PortRequest) -> Port:
        self._within_quota("ports")
        subnets = [each for each in self._objects["subnets"].values() if each.network_id == request.network]
        wanted = [each for each in subnets if not request.subnets or each.id in request.subnets]
        return self._store_port(
            network=request.network,
            fixed=tuple(FixedIp(each.id, self._free_address(each)) for each in wanted),
            device_id=request.device_id,
            device_owner=request.device_owner,
            name=request.name,
            description=request.description,
            project=request.project,
            host=request.host,
            groups=request.groups,
        )

    def _free_address(self, subnet: Subnet) -> str:
        ports = self._objects["ports"].values()
        taken = {ip_address(fixed.ip_address) for port in ports for fixed in port.fixed_ips} | {subnet.gateway}
        for address in ip_network(subnet.cidr).hosts():
            if address not in taken:
                return str(address)
        raise ExhaustedError("create port", "IpAddressGenerationFailure", f"{subnet.cidr} has no more addresses")

    def _vif_type(self, host: str) -> str:
        if not host:
            return "unbound"
        return "bridge" if self.hosts is None or host in self.hosts else "binding_failed"

    def _store_port(
        self,
        *,
        network: NetworkId,
        fixed: tuple[FixedIp, ...],
        device_id: str,
        device_owner: str,
        name: str = "",
        description: str = "",
        project: str = "",
        host: str = "",
        groups: frozenset[SecurityGroupId] = frozenset(),
    ) -> Port:
        number = next(self._numbers)
        port = Port(
            id=PortId(uuid(number)),
            name=name,
            description=description,
            project_id=project,
            network_id=network,
            mac_address=f"fa:16:3e:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}",
            fixed_ips=fixed,
            status="DOWN",
            device_id=device_id,
            device_owner=device_owner,
            host_id=host,
            vif_type=self._vif_type(host),
            security_groups=groups,
        )
        return self._store("ports", port)

    def _within_quota(self, kind: str) -> None:
        if len(self._objects[kind]) >= self.quotas.get(kind, 1 << 30):
            raise QuotaError(f"create {kind}", "OverQuota", f"Quota exceeded for resources: ['{kind}'].")

    async def _list(self, kind: str, keep: Callable[[Any], bool], call: str = "") -> list[Any]:
        def found() -> list[Any]:
            return [] if kind in self.hidden else [each for each in self._objects[kind].values() if keep(each)]

        return await self._call(call or f"list {kind}", found)

    def _find(self, kind: str, object_id: str) -> Any:
        if object_id not in self._objects[kind]:
            raise NotFoundError(f"get {kind}", "NotFound", f"{object_id} could not be found")
        return self._objects[kind][object_id]

    def _store(self, kind: str, resource: R) -> R:
        former = self._objects[kind].get(resource.id)
        if isinstance(resource, Port) and isinstance(former, Port) and resource != former:
            resource = msgspec.structs.replace(resource, revision_number=former.revision_number + 1)
        self._objects[kind][resource.id] = resource
        return resource
