"""What every `Neutron` does; run on the one in memory, and on the real one."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import msgspec
import pytest

from coil.neutron.resource import (
    AUTO_DELETED_OWNERS,
    Network,
    PortId,
    ProjectId,
    SecurityGroup,
    SecurityGroupRule,
    Subnet,
)
from coil.openstack.error import ConflictError, ExhaustedError, InUseError, NotFoundError
from coil.openstack.neutron import Neutron, PortAssignment, PortRequest

PROJECT = ProjectId("5e1f5a2c0d6b4b7e8d1c2a3b4c5d6e7f")
HOST = "node-a"
OWNER = "compute:kuryr"


def request(network: Network, group: SecurityGroup, name: str, *, host: str = HOST) -> PortRequest:
    return PortRequest(
        name=name,
        description="Pod default/web",
        project=PROJECT,
        network=network.id,
        device_id=f"uid-of-{name}",
        device_owner=OWNER,
        host=host,
        groups=frozenset({group.id}),
    )


class NeutronContract:
    """A subclass gives `neutron`, which binds ports of `HOST` only, and `name`, which is nobody else's."""

    @pytest.fixture
    async def network(self, neutron: Neutron, name: str) -> Network:
        return await neutron.create_network(name=name, description="a namespace", project=PROJECT)

    @pytest.fixture
    async def subnet(self, neutron: Neutron, network: Network, name: str) -> Subnet:
        cidr = ip_network("10.64.0.0/28")
        return await neutron.create_subnet(
            name=name,
            description="a namespace",
            project=PROJECT,
            network=network.id,
            cidr=cidr,
            gateway=cidr[1],
        )

    @pytest.fixture
    async def group(self, neutron: Neutron, name: str) -> SecurityGroup:
        return await neutron.create_security_group(name=name, description="a namespace", project=PROJECT)

    async def test_what_was_created_is_found_by_its_name(self, neutron: Neutron, network: Network, name: str) -> None:
        (found,) = await neutron.networks(name=name)
        assert (found.id, found.name, found.description, found.project_id) == (network.id, name, "a namespace", PROJECT)
        assert await neutron.network(network.id) == found
        assert await neutron.networks(name=f"{name}-other") == []
        assert found.mtu > 1000
        assert found.segmentation_id is not None
        assert not found.external

    async def test_names_are_not_unique(self, neutron: Neutron, network: Network, name: str) -> None:
        other = await neutron.create_network(name=name, description="", project=PROJECT)
        assert {each.id for each in await neutron.networks(name=name)} == {network.id, other.id}

    async def test_a_subnet_has_what_was_asked_for(self, neutron: Neutron, subnet: Subnet, network: Network) -> None:
        (found,) = await neutron.subnets(network=network.id)
        assert found.id == subnet.id
        assert (found.network, found.gateway) == (ip_network("10.64.0.0/28"), ip_address("10.64.0.1"))

    async def test_a_port_of_a_known_host_is_bound(
        self, neutron: Neutron, network: Network, subnet: Subnet, group: SecurityGroup, name: str
    ) -> None:
        port = await neutron.create_port(request(network, group, name))
        assert (port.name, port.device_id, port.device_owner) == (name, f"uid-of-{name}", OWNER)
        assert port.vif_type not in ("", "unbound", "binding_failed")
        assert not port.binding_failed
        assert not port.active
        assert port.security_groups == {group.id}
        (fixed,) = port.fixed_ips
        assert fixed.subnet_id == subnet.id
        assert ip_address(fixed.ip_address) in subnet.network
        assert ip_address(fixed.ip_address) != subnet.gateway
        assert [each.id for each in await neutron.ports(name=name)] == [port.id]
        assert port.id in {each.id for each in await neutron.ports(device_owner=OWNER)}
        assert await neutron.port(port.id) == port

    async def test_several_ports_are_created_by_one_call_or_none(
        self, neutron: Neutron, network: Network, subnet: Subnet, group: SecurityGroup, name: str
    ) -> None:
        names = [f"{name}-{number}" for number in range(3)]
        ports = await neutron.create_ports([request(network, group, each) for each in names])
        assert [port.name for port in ports] == names
        assert {port.host_id for port in ports} == {HOST}
        assert len({fixed.ip_address for port in ports for fixed in port.fixed_ips}) == len(ports)
        # The subnet has 13 addresses for ports.
        with pytest.raises(ExhaustedError):
            await neutron.create_ports([request(network, group, f"{name}-more-{number}") for number in range(11)])
        assert {port.id for port in await neutron.ports(network=network.id)} == {port.id for port in ports}

    async def test_a_port_comes_to_serve_something_else_unless_it_has_changed(
        self, neutron: Neutron, network: Network, subnet: Subnet, group: SecurityGroup, name: str
    ) -> None:
        idle = await neutron.create_port(replace(request(network, group, name), device_id="", groups=frozenset()))
        assert idle.security_groups == frozenset()
        assignment = PortAssignment(
            name=f"{name}-pod", description="Pod default/web", device_id="uid-of-web", groups=frozenset({group.id})
        )
        port = await neutron.assign_port(idle, assignment)
        assert (port.id, port.name, port.device_id) == (idle.id, f"{name}-pod", "uid-of-web")
        assert port.security_groups == {group.id}
        assert port.description == "Pod default/web"
        assert (port.host_id, port.fixed_ips, port.mac_address) == (HOST, idle.fixed_ips, idle.mac_address)
        assert await neutron.port(port.id) == port
        with pytest.raises(ConflictError):
            await neutron.assign_port(idle, replace(assignment, device_id="uid-of-another"))
        assert (await neutron.port(port.id)).device_id == "uid-of-web"
        await neutron.delete_port(port.id)
        with pytest.raises(NotFoundError):
            await neutron.assign_port(port, assignment)

    async def test_a_port_of_an_unknown_host_is_not_bound(
        self, neutron: Neutron, network: Network, subnet: Subnet, group: SecurityGroup, name: str
    ) -> None:
        port = await neutron.create_port(request(network, group, name, host="nobody-knows-it"))
        assert port.binding_failed

    async def test_a_port_is_bound_again_on_another_host(
        self, neutron: Neutron, network: Network, subnet: Subnet, group: SecurityGroup, name: str
    ) -> None:
        port = await neutron.create_port(request(network, group, name, host="nobody-knows-it"))
        bound = await neutron.bind_port(port.id, HOST)
        assert not bound.binding_failed
        assert (bound.id, bound.host_id, bound.fixed_ips) == (port.id, HOST, port.fixed_ips)
        assert await neutron.bind_port(port.id, HOST) == bound
        assert await neutron.port(port.id) == bound
        with pytest.raises(NotFoundError):
            await neutron.bind_port(PortId("00000000-0000-4000-8000-ffffffffffff"), HOST)

    async def test_a_port_is_unbound_and_bound_again(
        self, neutron: Neutron, network: Network, subnet: Subnet, group: SecurityGroup, name: str
    ) -> None:
        port = await neutron.create_port(request(network, group, name))
        unbound = await neutron.bind_port(port.id, "")
        assert unbound.unbound
        assert (unbound.host_id, unbound.active, unbound.fixed_ips) == ("", False, port.fixed_ips)
        bound = await neutron.bind_port(port.id, HOST)
        assert msgspec.structs.replace(bound, revision_number=port.revision_number) == port

    async def test_a_subnet_gives_each_port_an_address_of_its_own_while_it_has_one(
        self, neutron: Neutron, network: Network, subnet: Subnet, group: SecurityGroup, name: str
    ) -> None:
        ports = [await neutron.create_port(request(network, group, f"{name}-{number}")) for number in range(13)]
        assert len({fixed.ip_address for port in ports for fixed in port.fixed_ips}) == 13
        assert {each.id for each in await neutron.ports(ids=[ports[0].id, ports[5].id])} == {ports[0].id, ports[5].id}
        with pytest.raises(ExhaustedError):
            await neutron.create_port(request(network, group, f"{name}-more"))

    async def test_what_is_in_use_is_not_deleted(
        self, neutron: Neutron, network: Network, subnet: Subnet, group: SecurityGroup, name: str
    ) -> None:
        port = await neutron.create_port(request(network, group, name))
        with pytest.raises(InUseError):
            await neutron.delete_network(network.id)
        with pytest.raises(InUseError):
            await neutron.delete_subnet(subnet.id)
        with pytest.raises(InUseError):
            await neutron.delete_security_group(group.id)
        await neutron.delete_port(port.id)
        await neutron.delete_subnet(subnet.id)
        await neutron.delete_network(network.id)
        await neutron.delete_security_group(group.id)
        assert await neutron.networks(name=name) == []

    @pytest.mark.parametrize("owner", sorted(AUTO_DELETED_OWNERS))
    async def test_ports_of_neutrons_own_go_with_the_network(
        self, neutron: Neutron, network: Network, subnet: Subnet, group: SecurityGroup, name: str, owner: str
    ) -> None:
        port = await neutron.create_port(
            replace(request(network, group, name, host=""), device_owner=owner, groups=frozenset())
        )
        await neutron.delete_network(network.id)
        with pytest.raises(NotFoundError):
            await neutron.port(port.id)

    async def test_deletions_are_idempotent(self, neutron: Neutron, network: Network, name: str) -> None:
        await neutron.delete_network(network.id)
        await neutron.delete_network(network.id)
        await neutron.delete_port(PortId("00000000-0000-4000-8000-ffffffffffff"))

    async def test_a_port_that_is_not_there_is_not_found(self, neutron: Neutron, name: str) -> None:
        with pytest.raises(NotFoundError):
            await neutron.port(PortId("00000000-0000-4000-8000-ffffffffffff"))

    async def test_a_router_connects_a_subnet_once(
        self, neutron: Neutron, network: Network, subnet: Subnet, name: str
    ) -> None:
        router = await neutron.create_router(name=name, description="", project=PROJECT, external=None)
        await neutron.add_router_interface(router.id, subnet.id)
        await neutron.add_router_interface(router.id, subnet.id)
        (port,) = await neutron.ports(device_id=router.id)
        assert [fixed.ip_address for fixed in port.fixed_ips] == ["10.64.0.1"]
        with pytest.raises(InUseError):
            await neutron.delete_router(router.id)
        await neutron.remove_router_interface(router.id, subnet.id)
        await neutron.remove_router_interface(router.id, subnet.id)
        await neutron.delete_router(router.id)
        assert await neutron.routers(name=name) == []

    async def test_rules_are_added_once(self, neutron: Neutron, group: SecurityGroup, name: str) -> None:
        rules = [
            SecurityGroupRule(direction="ingress", ethertype="IPv4", remote_group_id=group.id),
            SecurityGroupRule(direction="egress", ethertype="IPv6"),
        ]
        await neutron.create_security_group_rules(group.id, rules, project=PROJECT)
        await neutron.create_security_group_rules(group.id, rules, project=PROJECT)
        (found,) = await neutron.security_groups(name=name)
        assert {rule.allows() for rule in rules} <= {rule.allows() for rule in found.security_group_rules}
        count = len(found.security_group_rules)
        await neutron.delete_security_group_rule(found.security_group_rules[0].id)
        (found,) = await neutron.security_groups(name=name)
        assert len(found.security_group_rules) == count - 1

    async def test_a_tag_is_there_once(self, neutron: Neutron, network: Network, name: str) -> None:
        await neutron.set_tag("networks", network.id, "coil:abc")
        await neutron.set_tag("networks", network.id, "coil:abc")
        assert (await neutron.network(network.id)).tags == ("coil:abc",)
