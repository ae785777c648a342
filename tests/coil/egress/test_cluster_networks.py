"""Which networks are the cluster's own, from what its objects say, and as the nodes are told."""

from ipaddress import ip_network

from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.builtin import (
    Node,
    NodeAddress,
    NodeSpec,
    NodeStatus,
    Service,
    ServiceCidr,
    ServiceCidrSpec,
    ServiceSpec,
)
from coil.crd.meta import ObjectMeta
from coil.egress.cluster_networks import collect_cluster_networks, parse_cluster_networks, render_cluster_networks

META = ObjectMeta(name="any")


def node(*addresses: str, pods: tuple[str, ...] = ()) -> Node:
    entries = tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)
    return Node(metadata=META, spec=NodeSpec(pod_cidrs=pods), status=NodeStatus(addresses=entries))


def test_everything_that_objects_name_and_that_is_not_private() -> None:
    subnets = (SubnetSet(ipv4="100.96.0.0/16", ipv6="2600:1f14:aa:bb00::/64"), SubnetSet(ipv4="10.2.0.0/16"))
    found = collect_cluster_networks(
        nodes=[
            node("192.0.2.11", "2600:1f14:aa:bb01::1", "fe80::1", "host.example", pods=("100.97.0.0/24", "x")),
            node("10.0.0.1", "192.0.2.10", pods=("10.3.0.0/24",)),
        ],
        pools=[AddressPool(metadata=META, spec=AddressPoolSpec(subnets=subnets))],
        service_cidrs=[ServiceCidr(metadata=META, spec=ServiceCidrSpec(cidrs=("100.64.0.0/13", "fd00::/108")))],
        services=[Service(metadata=META, spec=ServiceSpec(cluster_ips=("100.64.0.1", "None")))],
        extra=[ip_network("198.51.100.0/24")],
    )
    assert list(map(str, found)) == [
        "100.64.0.0/13",
        "100.96.0.0/16",
        "100.97.0.0/24",
        "192.0.2.10/31",
        "198.51.100.0/24",
        "2600:1f14:aa:bb00::/64",
        "2600:1f14:aa:bb01::1/128",
    ]
    assert parse_cluster_networks(render_cluster_networks(found)) == found


def test_a_node_cannot_take_more_than_a_node_can_need() -> None:
    """It may set its pod CIDRs itself where nobody has, and what is the cluster's own is reached without the tunnel."""
    wide = node("10.0.0.1", pods=("0.0.0.0/1", "::/0", "8.0.0.0/15", "2600::/47", "9.9.0.0/16", "2600:1::/48"))
    assert list(map(str, collect_cluster_networks(nodes=[wide]))) == ["9.9.0.0/16", "2600:1::/48"]


def test_in_most_clusters_there_are_none() -> None:
    assert collect_cluster_networks(nodes=[node("10.0.0.1", "fd00::1", pods=("10.244.0.0/24",))]) == ()
    assert parse_cluster_networks({}) == parse_cluster_networks(render_cluster_networks(())) == ()


def test_what_somebody_has_written_by_hand() -> None:
    data = {"networks": "100.64.0.0/13 100.64.5.0/24\n\n203.0.113.7/24\nnonsense\n300.0.0.0/8\n", "other": "x"}
    assert list(map(str, parse_cluster_networks(data))) == ["100.64.0.0/13", "203.0.113.0/24"]
