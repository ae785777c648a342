"""The cluster's own networks that are not private: what coil-egress-controller finds, and coild keeps out of tunnels.

    Nodes, AddressPools, ServiceCIDRs, the Service of the API server, --cluster-cidr
        ─► collect ─► render ─► ConfigMap ─► parse ─► ClientSpec.cluster

One program looks for them, as each node would otherwise have to watch all Nodes. Private networks (RFC 1918, RFC 4193)
stay outside tunnels anyway, so in most clusters there are none.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from ipaddress import collapse_addresses, ip_network
from typing import Final

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import Node, Service, ServiceCidr
from coil.egress.private_network import LINK_LOCAL_NETWORKS, is_private, is_within
from coil.kernel.family import Family, IPNetwork

LARGEST_POD_CIDR: Final = {Family.IPV4: 16, Family.IPV6: 48}
"""Shortest prefixes of a node's pod CIDR that are believed. Where nobody has set it, a node can do so itself, and what
is the cluster's own is reached with a client's own address.
"""
NETWORKS = "networks"
"""The key in the ConfigMap: one network on each line."""


def collect_cluster_networks(
    *,
    nodes: Iterable[Node] = (),
    pools: Iterable[AddressPool] = (),
    service_cidrs: Iterable[ServiceCidr] = (),
    services: Iterable[Service] = (),
    extra: Iterable[IPNetwork] = (),
) -> tuple[IPNetwork, ...]:
    """All networks that these objects name and that are not private, none within another, sorted. What is malformed
    is passed over: others report it. So are pod CIDRs that no node can need. `services` are those whose own addresses
    count.
    """
    texts: list[str | None] = []
    found: list[IPNetwork] = [*extra]
    for node in nodes:
        found += map(ip_network, node.addresses())
        pods = _parse(node.spec.pod_cidrs)
        found += (network for network in pods if network.prefixlen >= LARGEST_POD_CIDR[Family.of(network)])
    for pool in pools:
        texts += [text for subnet in pool.spec.subnets for text in (subnet.ipv4, subnet.ipv6)]
    for service_cidr in service_cidrs:
        texts += service_cidr.spec.cidrs
    for service in services:
        texts += service.spec.cluster_ips  # "None" of a headless one
    found += _parse(texts)
    return _collapse(network for network in found if not is_private(network) and not _is_link_local(network))


def render_cluster_networks(networks: Iterable[IPNetwork]) -> dict[str, str]:
    """The data of the ConfigMap."""
    return {NETWORKS: "".join(f"{network}\n" for network in networks)}


def parse_cluster_networks(data: Mapping[str, str]) -> tuple[IPNetwork, ...]:
    """The networks of a ConfigMap, sorted. A line that is no network is passed over."""
    return _collapse(_parse(data.get(NETWORKS, "").split()))


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


def _is_link_local(network: IPNetwork) -> bool:
    return is_within(network, LINK_LOCAL_NETWORKS[Family.of(network)])
