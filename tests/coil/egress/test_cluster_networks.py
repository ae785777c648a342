"""Which networks are the cluster's own, from what its objects say, and as the nodes are told."""

from ipaddress import ip_network

import pytest

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
from coil.crd.foreign_network import CiliumIpam, CiliumNode, CiliumNodeSpec
from coil.crd.meta import ObjectMeta
from coil.egress.cluster_networks import (
    POD_AND_SERVICE_NETWORKS,
    collect_node_networks,
    collect_pod_and_service_networks,
    find_unusable,
    parse_cluster_networks,
    read_cilium,
    read_kube_proxy,
    read_kubeadm,
    render_cluster_networks,
)

META = ObjectMeta(name="any")


def node(*addresses: str, pods: tuple[str, ...] = ()) -> Node:
    entries = tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)
    return Node(metadata=META, spec=NodeSpec(pod_cidrs=pods), status=NodeStatus(addresses=entries))


def test_everything_that_objects_name() -> None:
    subnets = (SubnetSet(ipv4="100.96.0.0/16", ipv6="2600:1f14:aa:bb00::/64"), SubnetSet(ipv4="10.2.0.0/16"))
    nodes = collect_node_networks(
        [
            node("192.0.2.11", "2600:1f14:aa:bb01::1", "fe80::1", "host.example", pods=("100.97.0.0/24", "x")),
            node("10.0.0.1", "192.0.2.10", pods=("10.3.0.0/24",)),
        ]
    )
    assert list(map(str, nodes)) == [
        "10.0.0.1/32",
        "10.3.0.0/24",
        "100.97.0.0/24",
        "192.0.2.10/31",
        "2600:1f14:aa:bb01::1/128",
    ]
    others = collect_pod_and_service_networks(
        pools=[AddressPool(metadata=META, spec=AddressPoolSpec(subnets=subnets))],
        service_cidrs=[ServiceCidr(metadata=META, spec=ServiceCidrSpec(cidrs=("100.64.0.0/13", "fd00::/108")))],
        services=[Service(metadata=META, spec=ServiceSpec(cluster_ips=("100.64.0.1", "None")))],
        extra=[ip_network("198.51.100.0/24")],
    )
    assert list(map(str, others)) == [
        "10.2.0.0/16",
        "100.64.0.0/13",
        "100.96.0.0/16",
        "198.51.100.0/24",
        "2600:1f14:aa:bb00::/64",
        "fd00::/108",
    ]
    data = render_cluster_networks(nodes=nodes, others=others)
    assert parse_cluster_networks(data, POD_AND_SERVICE_NETWORKS) == others
    assert list(map(str, parse_cluster_networks(data))) == [
        "100.64.0.0/13",
        "100.96.0.0/16",
        "100.97.0.0/24",
        "192.0.2.10/31",
        "198.51.100.0/24",
        "2600:1f14:aa:bb00::/64",
        "2600:1f14:aa:bb01::1/128",
    ]


def test_a_node_cannot_take_more_than_a_node_can_need() -> None:
    """It may set its pod CIDRs itself where nobody has, and what is the cluster's own is reached without the tunnel."""
    wide = node("192.0.2.1", pods=("0.0.0.0/1", "::/0", "8.0.0.0/15", "2600::/47", "9.9.0.0/16", "2600:1::/48"))
    assert list(map(str, collect_node_networks([wide]))) == [
        "9.9.0.0/16",
        "192.0.2.1/32",
        "2600:1::/48",
    ]


def test_in_most_clusters_all_are_private() -> None:
    nodes = collect_node_networks([node("10.0.0.1", "fd00::1", pods=("10.244.0.0/24",))])
    data = render_cluster_networks(nodes=nodes, others=[ip_network("10.96.0.0/12")])
    assert data == {"networks": "", "pod-and-service-networks": "10.96.0.0/12\n"}
    assert parse_cluster_networks({}) == parse_cluster_networks(data) == ()


def test_a_cilium_node_counts_within_what_cilium_divides() -> None:
    """Each node's agent may write all of them, and what is the cluster's own is reached with a pod's own address."""
    pools = read_cilium({"cluster-pool-ipv4-cidr": "10.0.0.0/16 10.8.0.0/16", "cluster-pool-ipv6-cidr": "fd00::/104"})
    assert pools == ["10.0.0.0/16", "10.8.0.0/16", "fd00::/104"]
    pod_cidrs = ("10.0.7.0/24", "10.8.1.0/24", "10.9.0.0/24", "8.0.0.0/6", "fd00::700/120", "fd01::/120", "x")
    spec = CiliumNodeSpec(ipam=CiliumIpam(pod_cidrs=pod_cidrs))
    nodes = [CiliumNode(metadata=META, spec=spec), CiliumNode(metadata=META)]
    found = collect_pod_and_service_networks(cilium_nodes=nodes, cilium_pools=pools)
    assert list(map(str, found)) == ["10.0.7.0/24", "10.8.1.0/24", "fd00::700/120"]
    assert collect_pod_and_service_networks(cilium_nodes=nodes) == ()
    assert read_cilium({}) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("networking: {podSubnet: '10.244.0.0/16, fd01::/48', serviceSubnet: 10.96.0.0/12}", 3),
        ("networking: {serviceSubnet: 10.96.0.0/12}", 1),
        ("networking: 5", 0),
        ("- a list", 0),
        ("{", 0),
        ("networking: {podSubnet: [10.244.0.0/16]}", 0),
        ("", 0),
    ],
)
def test_what_kubeadm_was_told(text: str, found: int) -> None:
    assert len(read_kubeadm({"ClusterConfiguration": text})) == found
    assert read_kubeadm({}) == []


def test_what_kube_proxy_was_told() -> None:
    assert read_kube_proxy({"config.conf": "clusterCIDR: 10.244.0.0/16,fd01::/48"}) == ["10.244.0.0/16", "fd01::/48"]
    assert read_kube_proxy({"config.conf": 'clusterCIDR: ""'}) == [""]
    assert read_kube_proxy({"config.conf": "mode: ipvs"}) == read_kube_proxy({}) == []
    assert collect_pod_and_service_networks(configured=["", "nonsense", "0.0.0.0/0", "10.1.2.3/16"]) == (
        ip_network("10.1.0.0/16"),
    )


def test_what_counts_for_nothing_is_found() -> None:
    text = "10.32.0.0/12;10.48.0.0/12, 0.0.0.0/0 fe80::/64\n::/0,10.64.0.0/12 10.0.0.1"
    assert find_unusable(text) == ["10.32.0.0/12;10.48.0.0/12", "0.0.0.0/0", "fe80::/64", "::/0"]
    assert find_unusable("") == []


def test_what_somebody_has_written_by_hand() -> None:
    data = {"networks": "100.64.0.0/13 100.64.5.0/24\n\n203.0.113.7/24\nnonsense\n300.0.0.0/8\n", "other": "x"}
    assert list(map(str, parse_cluster_networks(data))) == ["100.64.0.0/13", "203.0.113.0/24"]
