"""What people and other programs do in EC2 beside Coil: networks, routes, groups, and interfaces of Coil's, too."""

from collections.abc import Mapping
from ipaddress import IPv6Network
from typing import Any

from integration.aws.ec2_state import read_state
from integration.aws.strict_ec2 import StrictEc2

_KEY_OF_CARD = 1000
"""moto knows an instance's interfaces by device number, which is of one network card."""


def open_vpc(ec2: StrictEc2, *, on_premises: str = "192.168.50.0/24") -> None:
    """Ways to the internet and on-premises for all subnets; members of the default group reach each other."""
    vpc = ec2.vpc()
    with ec2.change() as backend:
        table = _main_table(backend, vpc)
        internet, private = backend.create_internet_gateway(), backend.create_vpn_gateway()
        backend.attach_internet_gateway(internet.id, vpc)
        backend.create_route(table.id, "0.0.0.0/0", gateway_id=internet.id)
        backend.create_route(table.id, on_premises, gateway_id=private.id)
    # As AWS makes it, and moto does not.
    allow(ec2, default_group(ec2), source_group=default_group(ec2))


def open_ipv6(ec2: StrictEc2) -> IPv6Network:
    """Give the VPC addresses of IPv6, the way to the internet for them, and what the default group allows in IPv4."""
    vpc, group = ec2.vpc(), default_group(ec2)
    with ec2.change() as backend:
        association = backend.associate_vpc_cidr_block(vpc, None, True)
        table = _main_table(backend, vpc)
        [gateway] = [each for each in backend.internet_gateways.values() if each.vpc and each.vpc.id == vpc]
        backend.create_route(table.id, None, "::/0", gateway_id=gateway.id)
        backend.authorize_security_group_egress(group, "-1", None, None, [{"CidrIpv6": "::/0"}])
    return IPv6Network(association["cidr_block"])


def give_ipv6(ec2: StrictEc2, interface: str, address: str) -> None:
    """One more address of the interface, of IPv6."""
    with ec2.change() as backend:
        eni = backend.enis[interface]
        eni.ipv6_addresses = [*eni.ipv6_addresses, {"Ipv6Address": address}]


def launch(ec2: StrictEc2, kind: str, subnet: str, *, ipv6: IPv6Network | None = None, device: int = 0) -> str:
    """Launch an instance of that type, and return its id. `ipv6` is the subnet's block, of which it gets an address;
    `device` is the primary interface's number.
    """
    launched = ec2.launch(kind, subnet, device=device)
    if ipv6 is not None:
        [primary] = read_state(ec2).attached_to(launched)
        give_ipv6(ec2, primary.id, str(ipv6[int(primary.addresses[0]) & 0xFF]))
    return launched


def default_group(ec2: StrictEc2) -> str:
    """The id of the security group that an interface has unless others are given."""
    with ec2.still() as backend:
        return str(next(each.id for each in backend.groups[ec2.vpc()].values() if each.is_default))


def make_group(ec2: StrictEc2, name: str) -> str:
    """The id of a new group: everything out, nothing in."""
    with ec2.change() as backend:
        return str(backend.create_security_group(name, name, vpc_id=ec2.vpc()).id)


def allow(
    ec2: StrictEc2,
    group: str,
    *,
    protocol: str = "-1",
    port: int | None = None,
    network: str = "",
    network6: str = "",
    source_group: str = "",
) -> None:
    """Let in what comes from a network, or from members of a group."""
    ranges = [{key: value} for key, value in (("CidrIp", network), ("CidrIpv6", network6)) if value]
    groups = [{"GroupId": source_group}] if source_group else []
    with ec2.change() as backend:
        backend.authorize_security_group_ingress(group, protocol, port, port, ranges, source_groups=groups)


def set_groups(ec2: StrictEc2, interface: str, *groups: str) -> None:
    """Have an interface in these groups and no others."""
    with ec2.change() as backend:
        backend.enis[interface]._group_set = [backend.get_security_group_from_id(group) for group in groups]


def add_cidr(ec2: StrictEc2, cidr: str) -> None:
    """One more for the VPC."""
    with ec2.change() as backend:
        backend.associate_vpc_cidr_block(ec2.vpc(), cidr, False)


def detach(ec2: StrictEc2, interface: str) -> None:
    """By force, and delete it."""
    with ec2.change() as backend:
        eni = backend.enis[interface]
        eni.instance.detach_eni(eni)
        del backend.enis[interface]


def unassign(ec2: StrictEc2, interface: str, address: str) -> None:
    """Take a secondary address away."""
    with ec2.change() as backend:
        eni = backend.enis[interface]
        kept = [each for each in eni.private_ip_addresses if each["PrivateIpAddress"] != address]
        assert len(kept) == len(eni.private_ip_addresses) - 1
        eni.private_ip_addresses = kept


def assign(ec2: StrictEc2, interface: str, address: str) -> None:
    """Give a secondary address."""
    with ec2.change() as backend:
        _assign(backend.enis[interface], address)


def tag(ec2: StrictEc2, interface: str, key: str, value: str) -> None:
    """Set a tag of an interface."""
    with ec2.change() as backend:
        backend.enis[interface].add_tag(key, value)


def attach(
    ec2: StrictEc2, instance: str, subnet: str, *, device: int, addresses: tuple[str, ...] = (), group: str = ""
) -> str:
    """The id of a new interface of the instance, with these secondary addresses, in a group or the default one."""
    with ec2.change() as backend:
        network = backend.get_subnet(subnet)
        eni = backend.create_network_interface(network, None, None, group_ids=[group or default_group(ec2)])
        for address in addresses:
            _assign(eni, address)
        backend.attach_network_interface(eni.id, instance, device)
        return str(eni.id)


def create(ec2: StrictEc2, subnet: str, *, addresses: int = 0, tags: Mapping[str, str] | None = None) -> str:
    """The id of a new interface that is attached to nothing, with so many secondary addresses."""
    with ec2.change() as backend:
        network = backend.get_subnet(subnet)
        group = next(each.id for each in backend.groups[network.vpc_id].values() if each.is_default)
        eni = backend.create_network_interface(network, None, None, group_ids=[group], tags=dict(tags or {}))
        for address in ec2.free_addresses(network)[:addresses]:
            _assign(eni, address)
        return str(eni.id)


def fill(ec2: StrictEc2, subnet: str, *, leave: int) -> None:
    """Have an interface that is attached to nothing take the addresses of the subnet, but for so many."""
    with ec2.still() as backend:
        free = len(ec2.free_addresses(backend.get_subnet(subnet)))
    create(ec2, subnet, addresses=free - leave - 1)


def attach_for_efa(ec2: StrictEc2, instance: str, subnet: str, *, card: int, device: int) -> str:
    """The id of a new interface of the instance for EFA only, which has no address, on a network card."""
    with ec2.change() as backend:
        eni = backend.create_network_interface(backend.get_subnet(subnet), None, None, group_ids=[default_group(ec2)])
        eni.private_ip_addresses, eni.private_ip_address, eni.network_card = [], None, card
        holder = backend.get_instance(instance)
        holder.attach_eni(eni, _KEY_OF_CARD * card + device)
        eni.device_index, eni.launched = device, False
        return str(eni.id)


def _main_table(backend: Any, vpc: str) -> Any:
    tables = [each for each in backend.route_tables.values() if each.vpc_id == vpc]
    return next(each for each in tables if each.main_association_id is not None)


def _assign(eni: Any, address: str) -> None:
    eni.private_ip_addresses = [*eni.private_ip_addresses, {"Primary": False, "PrivateIpAddress": address}]
