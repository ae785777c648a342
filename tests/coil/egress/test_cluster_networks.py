"""Which networks are the cluster's own, from what its objects say, and as the nodes are told."""

from collections.abc import Iterable
from ipaddress import ip_network

import pytest

from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.builtin import (
    ConfigMap,
    Node,
    NodeAddress,
    NodeSpec,
    NodeStatus,
    Service,
    ServiceCidr,
    ServiceCidrSpec,
    ServiceSpec,
)
from coil.crd.cidr import OwnedNetwork
from coil.crd.egress_cluster_info import EgressClusterInfo, EgressClusterInfoSpec
from coil.crd.foreign_network import CalicoPool, CalicoPoolSpec, CiliumIpam, CiliumNode, CiliumNodeSpec
from coil.crd.meta import ObjectMeta
from coil.crd.resource import NamespacedName
from coil.egress.cluster_networks import (
    CILIUM,
    KUBE_PROXY,
    KUBEADM,
    POD_AND_SERVICE_NETWORKS,
    collect_node_networks,
    collect_pod_and_service_networks,
    find_added_networks,
    find_foreign_networks,
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


def config_map(at: NamespacedName, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(namespace=at.namespace, name=at.name), data=data)


def told(networks: Iterable[OwnedNetwork]) -> list[str]:
    return [f"{network} of {owner}" for network, owner in networks]


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
        others=[OwnedNetwork(ip_network("198.51.100.0/24"), "somebody")],
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
    data = {"cluster-pool-ipv4-cidr": "10.0.0.0/16 10.8.0.0/16", "cluster-pool-ipv6-cidr": "fd00::/104"}
    assert read_cilium(data) == ["10.0.0.0/16", "10.8.0.0/16", "fd00::/104"]
    pod_cidrs = ("10.0.7.0/24", "10.8.1.0/24", "10.9.0.0/24", "8.0.0.0/6", "fd00::700/120", "fd01::/120", "x")
    spec = CiliumNodeSpec(ipam=CiliumIpam(pod_cidrs=pod_cidrs))
    nodes = [CiliumNode(metadata=META, spec=spec), CiliumNode(metadata=META)]
    found = find_foreign_networks(cilium_nodes=nodes, cilium=[config_map(CILIUM, **data)])
    assert told(found) == [
        f"{network} of the CiliumNode 'any'" for network in ("10.0.7.0/24", "10.8.1.0/24", "fd00::700/120")
    ]
    assert told(find_foreign_networks(cilium_nodes=nodes)) == []
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


def test_networks_of_other_programs_are_told_with_their_owners() -> None:
    pools = [
        CalicoPool(metadata=META, spec=CalicoPoolSpec(cidr=cidr)) for cidr in ("192.168.0.0/16", "0.0.0.0/0", "x", "")
    ]
    kubeadm = {"ClusterConfiguration": "networking: {podSubnet: 'fd01::/48,nonsense', serviceSubnet: 10.96.0.0/12}"}
    kube_proxy = {"config.conf": "clusterCIDR: ',nonsense,0.0.0.0/0,169.254.7.0/24,10.1.2.3/16'"}
    found = find_foreign_networks(
        calico_pools=pools,
        kubeadm=[config_map(KUBEADM, **kubeadm)],
        kube_proxy=[config_map(KUBE_PROXY, **kube_proxy)],
    )
    assert told(found) == [
        "192.168.0.0/16 of the IPPool 'any' of Calico",
        "fd01::/48 of the pods and Services (the ConfigMap 'kube-system/kubeadm-config')",
        "10.96.0.0/12 of the pods and Services (the ConfigMap 'kube-system/kubeadm-config')",
        "10.1.0.0/16 of the pods (the ConfigMap 'kube-system/kube-proxy')",
    ]


def test_networks_that_administrators_have_added_are_told_with_where() -> None:
    """A network of everything counts nowhere; every destination would be within the cluster."""
    given = [OwnedNetwork(ip_network(text), "the cluster (--a-flag)") for text in ("10.7.0.0/16", "::/0")]
    at = NamespacedName("kube-system", "coil-cluster-networks")
    spec = EgressClusterInfoSpec(extra_cidr=("10.10.10.1", "0.0.0.0/0", "nonsense"))
    found = find_added_networks(
        given=given,
        config_maps=[config_map(at, extra="10.32.0.0/12 ::/0, nonsense", networks="10.64.0.0/16")],
        infos=[EgressClusterInfo(metadata=ObjectMeta(name=name), spec=spec) for name in ("other", "default")],
    )
    assert told(found) == [
        "10.7.0.0/16 of the cluster (--a-flag)",
        "10.32.0.0/12 of the cluster ('extra' in the ConfigMap 'kube-system/coil-cluster-networks')",
        "10.10.10.1/32 of the cluster (the EgressClusterInfo 'default')",
    ]


def test_what_counts_for_nothing_is_found() -> None:
    text = "10.32.0.0/12;10.48.0.0/12, 0.0.0.0/0 fe80::/64\n::/0,10.64.0.0/12 10.0.0.1"
    assert find_unusable(text) == ["10.32.0.0/12;10.48.0.0/12", "0.0.0.0/0", "fe80::/64", "::/0"]
    assert find_unusable("") == []


def test_what_somebody_has_written_by_hand() -> None:
    data = {"networks": "100.64.0.0/13 100.64.5.0/24\n\n203.0.113.7/24\nnonsense\n300.0.0.0/8\n", "other": "x"}
    assert list(map(str, parse_cluster_networks(data))) == ["100.64.0.0/13", "203.0.113.0/24"]
