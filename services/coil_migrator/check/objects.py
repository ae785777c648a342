"""Pools, Egresses and pods that Coil v2 serves: what these programs would say of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from coil.crd.address_pool import AddressPool
from coil.crd.egress import Egress
from coil.crd.egress_validation import validate_egress
from coil.crd.pool_validation import find_faults, find_mixed_families, older_pools
from coil.crd.validation import render_errors, render_names
from coil.egress.client_pod import EgressRef, parse_egress_annotations
from coil.egress.router_pod import ROUTER_CONTAINER, is_former_image
from coil.ipam.cluster_network import ClusterNetworks, validate_unoccupied
from coil.ipam.layout import parse_layout
from coil_migrator.check.cluster import ClientPod, Cluster
from coil_migrator.check.finding import Finding, Severity

SHOWN = 3
"""Pods that a finding names."""


def check_pools(cluster: Cluster) -> Iterator[Finding]:
    """Which pools give no blocks, or not all; and which have addresses of nodes or Services."""
    networks = ClusterNetworks()
    for node in cluster.nodes:
        networks.observe_node(None, node)
    for cidr in cluster.service_cidrs:
        networks.observe_service_cidr(None, cidr)
    for service in cluster.services:
        if (service.metadata.namespace, service.metadata.name) == ("default", "kubernetes"):
            networks.observe_service(None, service)
    for pool in cluster.pools:
        yield from _check_pool(pool, cluster)
        if errors := validate_unoccupied(pool, networks):
            yield Finding(
                severity=Severity.MUST_MEND,
                subject=f"AddressPool {pool.name}",
                message=f"{render_errors(errors)}. Blocks with these addresses are not given, and not routed",
                remedy="create another pool, and replace the pods that have these addresses",
            )


def _check_pool(pool: AddressPool, cluster: Cluster) -> Iterator[Finding]:
    subject = f"AddressPool {pool.name}"
    if faults := find_faults(pool):
        yield Finding(
            severity=Severity.MUST_MEND,
            subject=subject,
            message=f"it would give no block: {render_errors(faults)}",
            remedy="create another pool, and name it in the annotation of the namespaces",
        )
        return
    layout = parse_layout(pool, older_pools(pool, cluster.pools))
    if layout.conflicts:
        whole = layout.capacity() == 0
        yield Finding(
            severity=Severity.MUST_MEND if whole else Severity.CHANGES,
            subject=subject,
            message=f"{render_errors(layout.conflicts)}. "
            + ("It would give no block" if whole else "Blocks with these addresses are no longer given"),
            remedy="see docs/upgrade.md, Pools",
        )
    if mixed := find_mixed_families(pool):
        yield Finding(
            severity=Severity.NOTE,
            subject=subject,
            message=f"{render_errors(mixed)}. It keeps working, and the families of a pod depend on its block",
        )


def check_egresses(cluster: Cluster) -> Iterator[Finding]:
    """Which Egresses would not be served, and what changes in their router pods."""
    for egress in cluster.egresses:
        subject = f"Egress {egress.metadata.namespace}/{egress.metadata.name}"
        if errors := validate_egress(egress, privileged_templates=True):
            yield Finding(
                severity=Severity.MUST_MEND,
                subject=subject,
                message=f"it would not be served: {render_errors(errors)}",
                remedy="correct the fields",
            )
        elif errors := validate_egress(egress):
            yield Finding(
                severity=Severity.CHANGES,
                subject=subject,
                message=f"its router pods have privileges, and would stay as they are: {render_errors(errors)}",
                remedy="take them out of the template, or keep the value, which is for all Egresses",
                values={"egress": {"allowPrivilegedTemplates": True}},
            )
        yield from _check_image(subject, egress)


def _check_image(subject: str, egress: Egress) -> Iterator[Finding]:
    spec = (egress.spec.template or {}).get("spec") or {}
    for container in spec.get("containers") or ():
        image = container.get("image") or ""
        if container.get("name") != ROUTER_CONTAINER or not image:
            continue
        if is_former_image(image):
            yield Finding(
                severity=Severity.NOTE, subject=subject, message=f"the image {image} of its template is replaced"
            )
        else:
            yield Finding(
                severity=Severity.MUST_MEND,
                subject=subject,
                message=f"its template has the image {image}, which is used as it is",
                remedy="take the image out of the template, or build it from that of these programs",
            )


def check_pods(cluster: Cluster) -> Iterator[Finding]:
    """Pods that name an Egress which does not exist: here they fail closed. And those with host ports."""
    known = {EgressRef(egress.metadata.namespace, egress.metadata.name) for egress in cluster.egresses}
    lost: defaultdict[str, list[ClientPod]] = defaultdict(list)
    for pod in cluster.pods:
        if not pod.is_ours:
            continue
        names = parse_egress_annotations(pod.metadata.annotations)
        for reference in names.references:
            if reference not in known:
                lost[f"the Egress {reference}, which does not exist"].append(pod)
        for problem in dict.fromkeys(names.problems):
            lost[f"an Egress by an annotation that cannot be read ({problem})"].append(pod)
    for what, pods in lost.items():
        yield Finding(
            severity=Severity.MUST_MEND,
            subject=_name_pods(pods),
            message=f"names {what}. Its traffic would be blocked, and its successor would not start",
            remedy="create the Egress or correct the annotation; egress.failOpen leaves such pods their own address",
        )
    ports = [
        pod
        for pod in cluster.pods
        if pod.is_ours and any(port.host_port for it in pod.spec.containers for port in it.ports)
    ]
    if ports:
        yield Finding(
            severity=Severity.NOTE,
            subject=_name_pods(ports),
            message="has host ports; those that portmap made stay with it, and coild serves those of new pods",
        )


def _name_pods(pods: Iterable[ClientPod]) -> str:
    names = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods]
    return f"Pod {render_names(names, shown=SHOWN)}" if len(names) == 1 else f"Pods {render_names(names, shown=SHOWN)}"
