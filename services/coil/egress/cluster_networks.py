"""The cluster's own networks: what coil-egress-controller finds, and what is nobody's egress traffic.

    Nodes, AddressPools, ServiceCIDRs, the Service of the API server, --cluster-cidr,
    Calico's IPPools, CiliumNodes, the configurations of kubeadm, kube-proxy and Cilium, the ConfigMap's key `extra`,
    the EgressClusterInfo
        ─► collect ─► render ─► ConfigMap ─► parse ─► coild: ClientSpec.cluster; EIP agents: what policies are not about

One program looks for them, as each node would otherwise have to watch all Nodes. Of clients of Egresses, private
networks (RFC 1918, RFC 4193) stay outside tunnels anyway, so for them there are mostly none.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import collapse_addresses, ip_network
from typing import Final

import msgspec
import msgspec.yaml

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import ConfigMap, Node, Service, ServiceCidr
from coil.crd.cidr import OwnedNetwork
from coil.crd.egress_cluster_info import CLUSTER_INFO, EgressClusterInfo
from coil.crd.foreign_network import CalicoPool, CiliumNode
from coil.crd.resource import NamespacedName, object_key
from coil.egress.private_network import LINK_LOCAL_NETWORKS, is_private, is_within
from coil.kernel.family import Family, IPAddress, IPNetwork

KUBEADM: Final = NamespacedName("kube-system", "kubeadm-config")
KUBE_PROXY: Final = NamespacedName("kube-system", "kube-proxy")
CILIUM: Final = NamespacedName("kube-system", "cilium-config")
"""Where these programs' configurations are."""
NETWORKS: Final = "networks"
"""The key in the ConfigMap: one network on each line, none of them private."""
POD_AND_SERVICE_NETWORKS: Final = "pod-and-service-networks"
"""The same with private ones, without what Nodes name: of these, EgressTunnels tell the agents. So it is small and
changes seldom, no matter how many nodes there are.
"""
EXTRA: Final = "extra"
"""What an administrator writes there, at any time: networks of the cluster that no object names, between blanks, commas
or ends of lines.
"""


def collect_node_networks(nodes: Iterable[Node]) -> tuple[IPNetwork, ...]:
    """The nodes' own addresses and pod CIDRs, none within another, sorted. Pod CIDRs that no node can need are passed
    over, as is what is malformed.
    """
    found: list[IPNetwork] = []
    for node in nodes:
        found += map(ip_network, node.addresses())
        found += node.pod_networks()
    return _collapse(network for network in found if not _is_link_local(network))


def collect_pod_and_service_networks(
    *,
    pools: Iterable[AddressPool] = (),
    service_cidrs: Iterable[ServiceCidr] = (),
    services: Iterable[Service] = (),
    others: Iterable[OwnedNetwork] = (),
) -> tuple[IPNetwork, ...]:
    """All networks that these objects name, and `others`, none within another, sorted. What is malformed is passed
    over: others report it. So are link-local networks and networks of everything. `services` are those whose own
    addresses count.
    """
    texts: list[str | None] = []
    found: list[IPNetwork] = [other.network for other in others]
    for pool in pools:
        texts += [text for subnet in pool.spec.subnets for text in (subnet.ipv4, subnet.ipv6)]
    for service_cidr in service_cidrs:
        texts += service_cidr.spec.cidrs
    for service in services:
        texts += service.spec.cluster_ips  # "None" of a headless one
    found += _parse(texts)
    return _collapse(filter(_counts, found))


def find_foreign_networks(
    *,
    calico_pools: Iterable[CalicoPool] = (),
    cilium_nodes: Iterable[CiliumNode] = (),
    cilium: Iterable[ConfigMap] = (),
    kubeadm: Iterable[ConfigMap] = (),
    kube_proxy: Iterable[ConfigMap] = (),
) -> Iterator[OwnedNetwork]:
    """The networks of pods and Services that objects of other programs name; what does not count is passed over. The
    ConfigMaps are the programs' configurations. CiliumNodes count within what Cilium divides only, as every node's
    agent may write all of them.
    """
    for calico_pool in calico_pools:
        yield from _owned([calico_pool.spec.cidr], f"the IPPool {calico_pool.metadata.name!r} of Calico")
    pools = tuple(_parse(text for config_map in cilium for text in read_cilium(config_map.data)))
    for cilium_node in cilium_nodes:
        for owned in _owned(cilium_node.spec.ipam.pod_cidrs, f"the CiliumNode {cilium_node.metadata.name!r}"):
            if any(is_within(owned.network, pool) for pool in pools):
                yield owned
    for config_map in kubeadm:
        yield from _owned(read_kubeadm(config_map.data), _configured("pods and Services", config_map))
    for config_map in kube_proxy:
        yield from _owned(read_kube_proxy(config_map.data), _configured("pods", config_map))


def find_added_networks(
    *,
    given: Iterable[OwnedNetwork] = (),
    config_maps: Iterable[ConfigMap] = (),
    infos: Iterable[EgressClusterInfo] = (),
) -> Iterator[OwnedNetwork]:
    """What administrators have added as networks of the cluster: by flags (`given`), under the key EXTRA of the
    ConfigMap, and in the EgressClusterInfo; what does not count is passed over.
    """
    yield from (owned for owned in given if _counts(owned.network))
    for config_map in config_maps:
        owner = f"the cluster ({EXTRA!r} in the ConfigMap {object_key(config_map.metadata)!r})"
        yield from (OwnedNetwork(network, owner) for network in parse_cluster_networks(config_map.data, EXTRA))
    for info in infos:
        if info.metadata.name == CLUSTER_INFO:
            owner = f"the cluster (the EgressClusterInfo {CLUSTER_INFO!r})"
            yield from (OwnedNetwork(network, owner) for network in parse_networks(info.spec.extra_cidr))


class NetworkSet:
    """The addresses of some networks: `address in networks`, by bisection."""

    def __init__(self, networks: Iterable[IPNetwork]) -> None:
        self._networks: dict[Family, list[IPNetwork]] = {family: [] for family in Family}
        for network in _collapse(networks):
            self._networks[Family.of(network)].append(network)
        self._firsts = {
            family: [int(network.network_address) for network in found] for family, found in self._networks.items()
        }

    def __contains__(self, address: IPAddress) -> bool:
        family = Family.of(address)
        position = bisect_right(self._firsts[family], int(address))
        return position > 0 and address in self._networks[family][position - 1]


def render_cluster_networks(*, nodes: Iterable[IPNetwork], others: Collection[IPNetwork]) -> dict[str, str]:
    """The data of the ConfigMap."""
    public = _collapse(network for network in (*nodes, *others) if not is_private(network))
    return {NETWORKS: _lines(public), POD_AND_SERVICE_NETWORKS: _lines(others)}


def parse_cluster_networks(data: Mapping[str, str], key: str = NETWORKS) -> tuple[IPNetwork, ...]:
    """The networks under that key of a ConfigMap, sorted. A word that is no network is passed over."""
    return parse_networks(_words(data.get(key, "")))


def parse_networks(texts: Iterable[str]) -> tuple[IPNetwork, ...]:
    """The networks, and single addresses, among these texts, none within another, sorted. Link-local ones are passed
    over, and so are networks of everything, before they swallow the others.
    """
    return _collapse(filter(_counts, _parse(texts)))


def find_unusable(text: str) -> list[str]:
    """The words of EXTRA that count for nothing: no network, a link-local one, or one of everything."""
    return [word for word in _words(text) if not any(map(_counts, _parse([word])))]


def read_kubeadm(data: Mapping[str, str]) -> list[str]:
    """The networks of pods and Services in the ConfigMap `kubeadm-config`, as texts."""
    networking = _mapping(_mapping(_yaml(data.get("ClusterConfiguration", ""))).get("networking"))
    return [text for key in ("podSubnet", "serviceSubnet") for text in _split(networking.get(key))]


def read_kubeadm_services(data: Mapping[str, str]) -> list[str]:
    """Those of Services alone."""
    networking = _mapping(_mapping(_yaml(data.get("ClusterConfiguration", ""))).get("networking"))
    return _split(networking.get("serviceSubnet"))


def read_kube_proxy(data: Mapping[str, str]) -> list[str]:
    """The network of pods in the ConfigMap `kube-proxy`, as texts."""
    return _split(_mapping(_yaml(data.get("config.conf", ""))).get("clusterCIDR"))


def read_cilium(data: Mapping[str, str]) -> list[str]:
    """The networks that Cilium divides among nodes, in the ConfigMap `cilium-config`, as texts."""
    keys = ("cluster-pool-ipv4-cidr", "cluster-pool-ipv6-cidr")
    return [text for key in keys for text in _words(data.get(key, ""))]


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _lines(networks: Iterable[IPNetwork]) -> str:
    return "".join(f"{network}\n" for network in networks)


def _yaml(text: str) -> object:
    try:
        return msgspec.yaml.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _split(value: object) -> list[str]:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else []


def _parse(texts: Iterable[str | None]) -> Iterable[IPNetwork]:
    for text in texts:
        with suppress(ValueError):
            if text is not None:
                yield ip_network(text, strict=False)


def _collapse(networks: Iterable[IPNetwork]) -> tuple[IPNetwork, ...]:
    by_family: dict[Family, list[IPNetwork]] = {family: [] for family in Family}
    for network in networks:
        by_family[Family.of(network)].append(network)
    return tuple(
        network
        for family in sorted(Family)
        for network in collapse_addresses(by_family[family])  # type: ignore[type-var]  # of one family each
    )


def _owned(texts: Iterable[str], owner: str) -> Iterator[OwnedNetwork]:
    return (OwnedNetwork(network, owner) for network in _parse(texts) if _counts(network))


def _configured(whose: str, config_map: ConfigMap) -> str:
    return f"the {whose} (the ConfigMap {object_key(config_map.metadata)!r})"


def _counts(network: IPNetwork) -> bool:
    return bool(network.prefixlen) and not _is_link_local(network)


def _is_link_local(network: IPNetwork) -> bool:
    return is_within(network, LINK_LOCAL_NETWORKS[Family.of(network)])
