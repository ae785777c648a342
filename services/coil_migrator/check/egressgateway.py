"""egressgateway 0.6 in the cluster: its programs, the kinds whose names the chart has too, and what it leaves behind.

What belongs to the order of docs/upgrade.md is a change while its programs are there, and must be mended once they are
gone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from coil.crd.egress_cluster_info import EGRESS_CLUSTER_INFOS
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES
from coil.crd.eip_schema import eip_definitions
from coil.crd.meta import ObjectMeta
from coil.crd.names import EIP_GROUP, LABEL_APP_COMPONENT
from coil.crd.validation import render_names
from coil_migrator.check.cluster import FORMER_SLICE_LABEL, Cluster, is_egressgateway
from coil_migrator.check.finding import Finding, Severity
from coil_migrator.check.programs import is_ours
from coil_migrator.workload import Workload

TUNNEL_FINALIZER: Final = f"{EIP_GROUP}/egresstunnel"
ORDER: Final = "see docs/upgrade.md, From egressgateway 0.6"
SHOWN: Final = 3

_AGENT: Final = "egressgateway-agent"
_OUR_AGENT: Final = "egress-agent-node"
_WEBHOOKS: Final = "egressgateway-controller"
_UNUSED: Final = f"egressclusterendpointslices.{EIP_GROUP}"
_OURS: Final[Mapping[str, str]] = {
    definition["metadata"]["name"]: definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"]
    for definition in eip_definitions()
}
"""What the definitions of the chart say of themselves, by name."""
_BY_VALUE: Final = frozenset(
    f"{resource.plural}.{EIP_GROUP}" for resource in (EGRESS_POLICIES, EGRESS_CLUSTER_POLICIES, EGRESS_CLUSTER_INFOS)
)
"""Kinds that are served with eip.egressPolicies."""


def check_egressgateway(cluster: Cluster) -> Iterator[Finding]:
    """What has to end, to be applied and to be cleaned, in the order of these steps."""
    yield from _check_programs(cluster)
    yield from _check_webhooks(cluster)
    yield from _check_definitions(cluster)
    yield from _check_tunnels(cluster)
    yield from _check_slices(cluster)


def leftover_severity(cluster: Cluster) -> Severity:
    """Of what these programs cannot go on with, and the order of steps removes."""
    return Severity.CHANGES if any(map(is_egressgateway, _workloads(cluster))) else Severity.MUST_MEND


def _workloads(cluster: Cluster) -> Iterator[Workload]:
    return (workload for _, workload in cluster.workloads)


def _check_programs(cluster: Cluster) -> Iterator[Finding]:
    agents: list[str] = []
    for kind, workload in cluster.workloads:
        metadata = workload.metadata
        if is_egressgateway(workload):
            is_agent = metadata.labels.get(LABEL_APP_COMPONENT) == _AGENT
            left = ". What it leaves on a node, the chart's agent removes" if is_agent else ""
            yield Finding(
                severity=Severity.CHANGES,
                subject=f"{kind} {metadata.namespace}/{metadata.name}",
                message=f"a program of egressgateway, which ends before eip.enabled is set{left}",
                remedy=f"uninstall its release: {ORDER}",
            )
        else:
            is_agent = is_ours(metadata) and metadata.labels.get(LABEL_APP_COMPONENT) == _OUR_AGENT
        if is_agent:
            agents.append(f"{metadata.namespace}/{metadata.name}")
    if len(agents) > 1:
        yield Finding(
            severity=Severity.MUST_MEND,
            subject=f"DaemonSets {render_names(agents)}",
            message=(
                "the agents of egressgateway and of the chart run at once: two nodes may answer for one address, both "
                "controllers write the same objects, and the chart's agent waits on nodes where the other one runs"
            ),
            remedy=f"set eip.enabled to false, uninstall egressgateway, then set it to true: {ORDER}",
        )


def _check_webhooks(cluster: Cluster) -> Iterator[Finding]:
    found = [
        kind
        for kind, present in cluster.named.items()
        if kind.endswith("WebhookConfiguration") and any(each.name == _WEBHOOKS for each in present)
    ]
    for kind in found:
        subject = f"{kind} {_WEBHOOKS}"
        delete = f"kubectl delete {kind.lower()} {_WEBHOOKS}"
        if any(map(is_egressgateway, _workloads(cluster))):
            yield Finding(
                severity=Severity.CHANGES,
                subject=subject,
                message="refuses changes of EgressGateways and policies while egressgateway's controller does not run",
                remedy=f"goes with its release; otherwise: {delete}",
            )
        else:
            yield Finding(
                severity=Severity.MUST_MEND,
                subject=subject,
                message="egressgateway's, whose programs are in none of the namespaces that were looked at",
                remedy=f"check again with --namespace and theirs; if they are uninstalled: {delete}",
            )


def _check_definitions(cluster: Cluster) -> Iterator[Finding]:
    former = sorted(
        name for name, description in cluster.definitions.items() if description != _OURS.get(name, description)
    )
    if former:
        yield Finding(
            severity=leftover_severity(cluster),
            subject=f"CustomResourceDefinitions {', '.join(former)}",
            message="the chart has other definitions of these names, and Helm does not update definitions",
            remedy="when egressgateway has ended: "
            "kubectl apply --server-side --force-conflicts --filename charts/coil/crds",
            values={"eip": {"enabled": True, "egressPolicies": True}} if _BY_VALUE.intersection(former) else {},
        )
    if _UNUSED in cluster.definitions:
        yield Finding(
            severity=Severity.CHANGES,
            subject=f"CustomResourceDefinition {_UNUSED}",
            message="nobody writes or reads its objects; EgressEndpointSlices have the pods of EgressClusterPolicies",
            remedy=f"when egressgateway has ended: kubectl delete customresourcedefinition {_UNUSED}",
        )


def _check_tunnels(cluster: Cluster) -> Iterator[Finding]:
    former = [each.metadata for each in cluster.tunnels if TUNNEL_FINALIZER in each.metadata.finalizers]
    if former:
        yield Finding(
            severity=leftover_severity(cluster),
            subject=_subject("EgressTunnel", former),
            message="has marks and addresses of egressgateway, and its finalizer, which nobody else removes",
            remedy="goes with its release; otherwise, when egressgateway has ended, for each: "
            f"{take_finalizer('egresstunnel', '$NODE')}; then: kubectl delete egresstunnels --all",
        )


def _check_slices(cluster: Cluster) -> Iterator[Finding]:
    if cluster.former_slices:
        yield Finding(
            severity=Severity.CHANGES,
            subject=_subject("EgressEndpointSlice", cluster.former_slices),
            message="has the fields of egressgateway, and is read as an empty one",
            remedy="when egressgateway has ended: "
            f"kubectl delete egressendpointslices --all-namespaces --selector {FORMER_SLICE_LABEL}",
        )


def take_finalizer(resource: str, name: str) -> str:
    """The command."""
    return f"""kubectl patch {resource} {name} --type merge --patch '{{"metadata": {{"finalizers": []}}}}'"""


def _subject(kind: str, found: Sequence[ObjectMeta]) -> str:
    names = [f"{each.namespace}/{each.name}" if each.namespace else each.name for each in found]
    return f"{kind}{'s' if len(names) > 1 else ''} {render_names(names, shown=SHOWN)}"
