"""What EC2 has at one moment, as frozen values: what the VPC's fabric and the metadata service are made from.

The only module besides `strict_ec2` that knows moto's objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any

from coil.kernel.family import IPNetwork
from integration.aws.strict_ec2 import StrictEc2


class Target(Enum):
    """Where a route of a subnet leads to; what is inside the VPC needs none."""

    INTERNET = "igw"
    ON_PREMISES = "vgw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """One rule of a security group. `protocol` is "-1" for all; who is meant is in one of the networks, or of the
    groups."""

    protocol: str
    ports: tuple[int, int] | None
    networks: tuple[IPNetwork, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityGroup:
    id: str
    ingress: tuple[Permission, ...]
    egress: tuple[Permission, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    id: str
    vpc: str
    zone: str
    ipv4: IPv4Network
    routes: tuple[tuple[IPNetwork, Target], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """`addresses` begin with the primary one; there is none for EFA only."""

    id: str
    mac: str
    subnet: Subnet
    addresses: tuple[IPv4Address, ...]
    ipv6_addresses: tuple[IPv6Address, ...]
    prefixes: tuple[IPNetwork, ...]
    groups: tuple[str, ...]
    instance: str
    """"" while it is not attached."""
    device: int
    card: int
    """The network card that the device is on."""
    goes_with_instance: bool
    """Deleted when its instance ends."""
    is_primary: bool
    """The one that its instance was launched with."""

    @property
    def networks(self) -> tuple[IPNetwork, ...]:
        """Everything that is delivered to it, and that it may send from."""
        return (*map(ip_network, self.addresses), *map(ip_network, self.ipv6_addresses), *self.prefixes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2State:
    """Instances' types by id, and CIDRs by VPC."""

    interfaces: Mapping[str, Interface]
    groups: Mapping[str, SecurityGroup]
    instances: Mapping[str, str]
    vpcs: Mapping[str, tuple[IPNetwork, ...]]

    def primary_of(self, instance: str) -> Interface:
        """The interface that the instance was launched with."""
        [primary] = [each for each in self.attached_to(instance) if each.is_primary]
        return primary

    def attached_to(self, instance: str) -> list[Interface]:
        """By device number, those of the first network card first."""
        found = [each for each in self.interfaces.values() if each.instance == instance]
        return sorted(found, key=lambda each: (each.card, each.device))


def read_state(ec2: StrictEc2) -> Ec2State:
    """Of now, between two calls."""
    with ec2.still() as backend:
        subnets = {
            subnet.id: _subnet(backend, subnet) for by_zone in backend.subnets.values() for subnet in by_zone.values()
        }
        instances = [each for reservation in backend.reservations.values() for each in reservation.instances]
        return Ec2State(
            interfaces={eni.id: _interface(eni, subnets[eni.subnet.id]) for eni in backend.enis.values()},
            groups={group.id: _group(group) for by_id in backend.groups.values() for group in by_id.values()},
            instances={each.id: each.instance_type for each in instances if each.state == "running"},
            vpcs={vpc.id: _cidrs(vpc) for vpc in backend.vpcs.values()},
        )


def _cidrs(vpc: Any) -> tuple[IPNetwork, ...]:
    associations = [each for ipv6 in (False, True) for each in vpc.get_cidr_block_association_set(ipv6=ipv6)]
    return tuple(
        ip_network(each["cidr_block"]) for each in associations if each["cidr_block_state"]["state"] == "associated"
    )


def _subnet(backend: Any, subnet: Any) -> Subnet:
    tables = [table for table in backend.route_tables.values() if table.vpc_id == subnet.vpc_id]
    own = [table for table in tables if subnet.id in table._associations.values()]
    [table] = own or [table for table in tables if table.main_association_id is not None]
    routes = []
    for route in table.routes:
        gateway = route.gateway_id or ""
        for target in Target:
            if gateway.startswith(target.value):
                network = ip_network(route.destination_cidr_block or route.destination_ipv6_cidr_block)
                routes.append((network, target))
    return Subnet(
        id=subnet.id,
        vpc=subnet.vpc_id,
        zone=subnet.availability_zone,
        ipv4=IPv4Network(subnet.cidr_block),
        routes=tuple(routes),
    )


def _interface(eni: Any, subnet: Subnet) -> Interface:
    by_rank = sorted(eni.private_ip_addresses, key=lambda each: not each["Primary"])
    return Interface(
        id=eni.id,
        mac=eni.mac_address.lower(),
        subnet=subnet,
        addresses=tuple(IPv4Address(each["PrivateIpAddress"]) for each in by_rank),
        ipv6_addresses=tuple(IPv6Address(each["Ipv6Address"]) for each in eni.ipv6_addresses),
        prefixes=(
            *(IPv4Network(each["Ipv4Prefix"]) for each in eni.ipv4_prefixes),
            *(IPv6Network(each["Ipv6Prefix"]) for each in getattr(eni, "ipv6_prefixes", ())),
        ),
        groups=tuple(group.id for group in eni.group_set),
        instance=eni.instance.id if eni.instance else "",
        device=eni.device_index if eni.instance else 0,
        card=eni.network_card,
        goes_with_instance=bool(eni.delete_on_termination or eni.launched),
        is_primary=bool(eni.instance and eni.launched),
    )


def _group(group: Any) -> SecurityGroup:
    return SecurityGroup(
        id=group.id,
        ingress=tuple(map(_permission, group.ingress_rules)),
        egress=tuple(map(_permission, group.egress_rules)),
    )


def _permission(rule: Any) -> Permission:
    networks = [rule.ip_range[key] for key in ("CidrIp", "CidrIpv6") if rule.ip_range.get(key)]
    return Permission(
        protocol=rule.ip_protocol,
        ports=None if rule.ip_protocol == "-1" else (rule.from_port, rule.to_port),
        networks=tuple(map(ip_network, networks)),
        groups=(rule.source_group["GroupId"],) if rule.source_group.get("GroupId") else (),
    )
