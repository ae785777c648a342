"""EgressGateways as egressgateway 0.6 has them: what admission and controller here would say, and what differs."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network

from coil.crd.builtin import ConfigMap
from coil.crd.cidr import OwnedNetwork
from coil.crd.egress_cluster_info import EgressClusterInfo, EgressClusterInfoSpec
from coil.crd.egress_gateway import EgressGateway, EgressGatewayStatus, FailPolicy, NodePolicy
from coil.crd.egress_tunnel import EgressTunnel, EgressTunnelStatus
from coil.crd.eip_conflict import (
    Taken,
    collect_taken,
    validate_disjoint_ranges,
    validate_only_default,
    validate_untaken_ranges,
)
from coil.crd.eip_validation import validate_gateway
from coil.crd.names import GATEWAY_FINALIZER_0_6
from coil.crd.resource import NamespacedName
from coil.crd.subnet_end import SubnetEnds, collect_subnet_ends, validate_assignable_ranges
from coil.crd.validation import render_errors, render_names
from coil.egress.cluster_networks import (
    CILIUM,
    KUBE_PROXY,
    KUBEADM,
    find_added_networks,
    find_foreign_networks,
)
from coil_migrator.check.cluster import Cluster
from coil_migrator.check.egressgateway import leftover_severity, take_finalizer
from coil_migrator.check.egressgateway_object import Undecodable, Untyped, decode, decode_gateway, subject_of
from coil_migrator.check.finding import Finding, Severity

KIND = "EgressGateway"
TUNNELS = (ip_network("172.31.0.0/16"), ip_network("fd11::/112"))
"""The tunnels' own networks, by default there and here."""
CONVERT = "coil-migrator convert writes it as it is needed here"


def gateways_of(cluster: Cluster) -> dict[str, EgressGateway]:
    """Those that can be decoded, by name."""
    decoded = map(decode_gateway, cluster.gateways)
    return {gateway.metadata.name: gateway for gateway in decoded if isinstance(gateway, EgressGateway)}


def taken_of(cluster: Cluster, added: Iterable[OwnedNetwork] = ()) -> Taken:
    """The cluster's own addresses, which no gateway may have."""

    def configuration(at: NamespacedName) -> Iterable[ConfigMap]:
        found = cluster.config_maps.get((at.namespace, at.name))
        return () if found is None else (found,)

    foreign = find_foreign_networks(
        calico_pools=cluster.calico_pools,
        cilium_nodes=cluster.cilium_nodes,
        cilium=configuration(CILIUM),
        kubeadm=configuration(KUBEADM),
        kube_proxy=configuration(KUBE_PROXY),
    )
    return collect_taken(
        nodes=cluster.nodes,
        pools=cluster.pools,
        service_cidrs=cluster.service_cidrs,
        services=[each for each in cluster.services if each.metadata.name == "kubernetes"],
        tunnels=TUNNELS,
        others=(*foreign, *added),
    )


def inner_of(cluster: Cluster) -> Taken:
    """What is within the cluster for a policy's destinations: with what EgressClusterInfos add."""
    infos: list[EgressClusterInfo] = []
    for found in cluster.cluster_infos:
        spec = decode(found.spec, EgressClusterInfoSpec)
        if not isinstance(spec, Undecodable):
            infos.append(EgressClusterInfo(metadata=found.metadata, spec=spec))
    return taken_of(cluster, find_added_networks(infos=infos))


def _subnet_ends_of(cluster: Cluster) -> SubnetEnds:
    tunnels: list[EgressTunnel] = []
    for found in cluster.tunnels:
        status = decode(found.status, EgressTunnelStatus)
        if not isinstance(status, Undecodable):
            tunnels.append(EgressTunnel(metadata=found.metadata, status=status))
    return collect_subnet_ends(cluster.nodes, tunnels)


def check_gateways(cluster: Cluster) -> Iterator[Finding]:
    """Each in turn."""
    gateways, taken, subnet_ends = gateways_of(cluster), taken_of(cluster), _subnet_ends_of(cluster)
    for found in cluster.gateways:
        subject = subject_of(KIND, found.metadata)
        yield from _check_status(cluster, subject, found)
        if GATEWAY_FINALIZER_0_6 in found.metadata.finalizers:
            yield Finding(
                severity=Severity.CHANGES,
                subject=subject,
                message="has egressgateway's finalizer, which nobody else removes: it could not be deleted any more",
                remedy=f"when egressgateway has ended: {take_finalizer('egressgateway', found.metadata.name)}",
            )
        gateway = decode_gateway(found)
        if isinstance(gateway, Undecodable):
            yield Finding(
                severity=Severity.MUST_MEND,
                subject=subject,
                message=f"its spec cannot be read: {gateway.reason}",
                remedy="correct the field",
            )
            continue
        yield from _check_rules(subject, gateway, gateways, taken, subnet_ends)
        yield from _check_spelling(subject, gateway)
        if gateway.spec.node_selector.selector.empty:
            continue
        yield from _check_addresses(subject, gateway)
        # The API server fills it in where the chart's definitions are.
        if isinstance(found.spec, Mapping) and "failPolicy" not in found.spec:
            yield from _check_failing(subject, gateway)


def _check_status(cluster: Cluster, subject: str, found: Untyped) -> Iterator[Finding]:
    status = decode(found.status, EgressGatewayStatus)
    if isinstance(status, Undecodable):
        yield Finding(
            severity=leftover_severity(cluster),
            subject=subject,
            message=f"its status cannot be read ({status.reason}), and one such keeps all gateways from being served",
            remedy=f"when egressgateway has ended: kubectl patch egressgateway {found.metadata.name} "
            """--subresource status --type merge --patch '{"status": null}'""",
        )


def _check_rules(
    subject: str,
    gateway: EgressGateway,
    gateways: Mapping[str, EgressGateway],
    taken: Taken,
    subnet_ends: SubnetEnds,
) -> Iterator[Finding]:
    errors = validate_gateway(gateway)
    if gateway.spec.cluster_default:
        errors += validate_only_default(gateway, gateways.values())
    errors += validate_disjoint_ranges(gateway, gateways.values())
    errors += validate_untaken_ranges(gateway, taken)
    errors += validate_assignable_ranges(gateway, subnet_ends)
    if errors:
        yield Finding(
            severity=Severity.MUST_MEND,
            subject=subject,
            message=f"it would be refused: {render_errors(errors)}",
            remedy="correct the fields",
        )


def _check_spelling(subject: str, gateway: EgressGateway) -> Iterator[Finding]:
    policy = gateway.spec.node_selector.policy
    if policy not in {*NodePolicy, ""}:
        yield Finding(
            severity=Severity.NOTE,
            subject=subject,
            message=f"spec.nodeSelector.policy {policy!r} has no meaning, there or here, and counts as the default",
        )


def _check_addresses(subject: str, gateway: EgressGateway) -> Iterator[Finding]:
    pools = gateway.spec.ippools
    missing = [
        f"ipv{version}DefaultEIP"
        for version, pool, default in ((4, pools.ipv4, pools.ipv4_default_eip), (6, pools.ipv6, pools.ipv6_default_eip))
        if any(pool) and not default
    ]
    if missing:
        yield Finding(
            severity=Severity.CHANGES,
            subject=subject,
            message=f"has no {' and no '.join(missing)}: there, an address is drawn when it is stored; here, the first "
            "one of the pool is meant",
            remedy=f"write {' and '.join(missing)} into spec.ippools, or use coil-migrator convert --pin",
        )
    networks = [text for text in (*pools.ipv4, *pools.ipv6) if "/" in text]
    if networks:
        yield Finding(
            severity=Severity.CHANGES,
            subject=subject,
            message=f"of {render_names(networks)}, every address is one of the gateway, the first and the last as well",
            remedy="write ranges (first-last) where these are not to be used",
        )


def _check_failing(subject: str, gateway: EgressGateway) -> Iterator[Finding]:
    yield Finding(
        severity=Severity.CHANGES,
        subject=subject,
        message="while no node can carry a policy, its traffic is dropped; there, it leaves with the address of the "
        "pod's own node",
        remedy=f"spec.failPolicy: {FailPolicy.OPEN} keeps that",
    )
    offered = [version for version in (4, 6) if any(text for _, text in gateway.spec.offers(version))]
    if len(offered) == 1:
        yield Finding(
            severity=Severity.CHANGES,
            subject=subject,
            message=f"has IPv{offered[0]} addresses only: what the pods of its policies send over IPv{10 - offered[0]} "
            "is dropped; there, no policy is about it",
            remedy=f"spec.unservedFamily: {FailPolicy.OPEN} keeps that",
        )
