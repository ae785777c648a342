"""What the status of an EgressClusterInfo says of the cluster's networks. Pure."""

from collections.abc import Iterable
from ipaddress import ip_network

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import ServiceCidr
from coil.crd.egress_cluster_info import EgressClusterInfo, EgressClusterInfoStatus, NetworkPair
from coil.crd.foreign_network import CalicoPool
from coil.egress.cluster_networks import find_unusable


def plan_status(
    info: EgressClusterInfo,
    *,
    pools: Iterable[AddressPool],
    calico_pools: Iterable[CalicoPool],
    service_cidrs: Iterable[ServiceCidr],
    configured_services: Iterable[str],
) -> EgressClusterInfoStatus:
    """`configured_services` are the networks of Services in configurations: they count where no ServiceCIDRs are."""
    services = [text for cidr in service_cidrs for text in cidr.spec.cidrs] or list(configured_services)
    pods: dict[str, list[str]] = {}
    for calico_pool in calico_pools:
        pods.setdefault(calico_pool.metadata.name, []).append(calico_pool.spec.cidr)
    for pool in pools:
        for subnet in pool.spec.subnets:
            pods.setdefault(pool.metadata.name, []).extend(text for text in (subnet.ipv4, subnet.ipv6) if text)
    return EgressClusterInfoStatus(
        cluster_ip=_pair(services),
        pod_cidr={name: _pair(texts) for name, texts in sorted(pods.items())},
        extra_cidr=tuple(text for text in info.spec.extra_cidr if text and not find_unusable(text)),
    )


def _pair(texts: Iterable[str]) -> NetworkPair:
    families: dict[int, list[str]] = {4: [], 6: []}
    for text in texts:
        try:
            families[ip_network(text, strict=False).version].append(text)
        except ValueError:
            continue  # whoever owns the object reports it
    return NetworkPair(ipv4=tuple(families[4]), ipv6=tuple(families[6]))
