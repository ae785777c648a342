"""Which networks have addresses of the cluster's own."""

from ipaddress import ip_network
from random import Random

import pytest

from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.builtin import Node, NodeAddress, NodeStatus, Service, ServiceCidr, ServiceCidrSpec, ServiceSpec
from coil.crd.meta import ObjectMeta
from coil.crd.names import RequestUid
from coil.ipam.cluster_network import ClusterNetworks, describe_occupied, validate_unoccupied
from coil.ipam.index_set import IndexSet
from coil.ipam.layout import parse_layout


def node(name: str, *addresses: str, kind: str = "InternalIP") -> Node:
    entries = tuple(NodeAddress(type=kind, address=address) for address in addresses)
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(addresses=entries))


def pool(*subnets: str, bits: int = 3) -> AddressPool:
    entries = tuple(SubnetSet(ipv6=text) if ":" in text else SubnetSet(ipv4=text) for text in subnets)
    return AddressPool(metadata=ObjectMeta(name="default"), spec=AddressPoolSpec(block_size_bits=bits, subnets=entries))


def occupants(networks: ClusterNetworks, text: str) -> list[str]:
    return list(networks.occupants(ip_network(text)))


def test_addresses_of_nodes() -> None:
    networks = ClusterNetworks()
    former = node("n2", "192.0.2.12", "2001:db8::12", "nonsense")
    networks.observe_node(None, node("n1", "192.0.2.11"))
    networks.observe_node(None, former)
    networks.observe_node(None, node("n3", "192.0.2.13", kind="Hostname"))
    assert occupants(networks, "192.0.2.0/24") == ["192.0.2.11 of the Node n1", "192.0.2.12 of the Node n2"]
    assert occupants(networks, "192.0.2.12/32") == ["192.0.2.12 of the Node n2"]
    assert occupants(networks, "2001:db8::/64") == ["2001:db8::12 of the Node n2"]
    assert occupants(networks, "192.0.2.13/32") == []
    after = node("n2", "192.0.2.21")
    networks.observe_node(former, after)
    assert occupants(networks, "192.0.2.12/32") == occupants(networks, "2001:db8::/64") == []
    networks.observe_node(after, None)
    assert occupants(networks, "192.0.2.0/24") == ["192.0.2.11 of the Node n1"]


def test_two_nodes_with_one_address() -> None:
    """As a Node that was renamed has left it."""
    networks = ClusterNetworks()
    networks.observe_node(None, node("old", "192.0.2.11"))
    networks.observe_node(None, node("new", "192.0.2.11"))
    networks.observe_node(node("old", "192.0.2.11"), None)
    assert occupants(networks, "192.0.2.0/24") == ["192.0.2.11 of the Node new"]


def test_networks_of_services() -> None:
    networks = ClusterNetworks()
    cidrs = ServiceCidr(
        metadata=ObjectMeta(name="kubernetes"), spec=ServiceCidrSpec(cidrs=("10.96.0.0/12", "fd00:96::/112"))
    )
    networks.observe_service_cidr(None, cidrs)
    assert occupants(networks, "10.100.0.0/16") == ["10.96.0.0/12 of the ServiceCIDR kubernetes"]
    assert occupants(networks, "10.0.0.0/8") == ["10.96.0.0/12 of the ServiceCIDR kubernetes"]
    assert occupants(networks, "fd00:96::/120") == ["fd00:96::/112 of the ServiceCIDR kubernetes"]
    assert occupants(networks, "10.112.0.0/16") == []
    networks.observe_service_cidr(cidrs, None)
    assert occupants(networks, "10.0.0.0/8") == []


def test_the_service_of_the_api_server() -> None:
    networks = ClusterNetworks()
    service = Service(
        metadata=ObjectMeta(namespace="default", name="kubernetes"), spec=ServiceSpec(cluster_ips=("10.96.0.1", "None"))
    )
    networks.observe_service(None, service)
    assert occupants(networks, "10.96.0.0/16") == ["10.96.0.1/32 of the Service default/kubernetes"]


@pytest.mark.parametrize("seed", range(5))
def test_a_crowd_of_nodes(seed: int) -> None:
    random = Random(seed)
    networks, nodes = ClusterNetworks(), dict[str, Node]()
    for _ in range(500):
        name = f"n{random.randrange(50)}"
        former = nodes.pop(name, None)
        new = node(name, f"192.0.2.{random.randrange(256)}") if random.random() < 0.7 else None
        networks.observe_node(former, new)
        if new is not None:
            nodes[name] = new
    for first in range(0, 256, 16):
        inside = {n.metadata.name for n in nodes.values() if 0 <= int(n.addresses()[0]) - 0xC0000200 - first < 16}
        found = occupants(networks, f"192.0.2.{first}/28")
        assert {entry.rpartition(" ")[2] for entry in found} == inside


def test_what_is_said_of_a_pool() -> None:
    networks = ClusterNetworks()
    for number in range(11, 16):
        networks.observe_node(None, node(f"n{number}", f"192.0.2.{number}"))
    wide = pool("198.51.100.0/24", "192.0.2.0/24")
    named = "192.0.2.11 of the Node n11, 192.0.2.12 of the Node n12, 192.0.2.13 of the Node n13 and 2 more"
    assert [str(error) for error in validate_unoccupied(wide, networks)] == [
        f"spec.subnets[1].ipv4: 192.0.2.0/24 has addresses of the cluster's own: {named}"
    ]
    assert describe_occupied(wide, networks) == f"blocks with addresses of the cluster's own are not given: {named}"
    assert validate_unoccupied(pool("192.0.2.16/28"), networks) == []
    assert describe_occupied(pool("192.0.2.16/28"), networks) == ""


def test_blocks_with_such_addresses() -> None:
    networks = ClusterNetworks()
    networks.observe_node(None, node("n1", "192.0.2.11"))
    layout = parse_layout(pool("192.0.2.0/24"))
    assert [index for index in range(layout.size) if networks.occupied_run(layout.block_at(index))] == [1]


def reserve(networks: ClusterNetworks, of: AddressPool, count: int) -> list[str | None]:
    """The networks of so many blocks, one after the other."""
    index, layout = IndexSet(lambda: 0.0, occupied_run=networks.occupied_run), parse_layout(of)
    planned = [index.reserve(layout, RequestUid(f"r{number}")) for number in range(count)]
    return [None if block is None else str(block.ipv4 or block.ipv6) for block in planned]


def test_blocks_in_a_network_of_services_are_passed_over_at_once() -> None:
    """Of a pool of 2^59 blocks there may be none left, and of a subnet; the next subnet is another matter."""
    networks = ClusterNetworks()
    spec = ServiceCidrSpec(cidrs=("fd00::/64", "10.0.0.64/26", "10.0.0.160/28"))
    networks.observe_service_cidr(None, ServiceCidr(metadata=ObjectMeta(name="kubernetes"), spec=spec))
    assert parse_layout(pool("fd00::/64", bits=5)).size == 2**59
    assert reserve(networks, pool("fd00::/64", bits=5), 1) == [None]
    assert reserve(networks, pool("fd00::/64", "fd00:1::/64", bits=5), 2) == ["fd00:1::/123", "fd00:1::20/123"]
    expected = ["10.0.0.0/27", "10.0.0.32/27", "10.0.0.128/27", "10.0.0.192/27", "10.0.0.224/27", None]
    assert reserve(networks, pool("10.0.0.0/24", bits=5), 6) == expected
