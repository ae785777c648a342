"""EgressPolicies and EgressClusterPolicies of egressgateway 0.6: what would become of them, and what differs."""

from collections.abc import Iterable, Iterator
from typing import Final

from coil.crd.egress_gateway_policy import AllocatorPolicy
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES, EgressClusterPolicy
from coil.crd.eip_conflict import Taken, find_inner_destinations
from coil.crd.eip_validation import validate_policy
from coil.crd.resource import object_key
from coil.crd.validation import render_errors, render_names, validate_selector
from coil.eip.policy_mirror import Source
from coil_migrator.check.cluster import ClientPod, Cluster
from coil_migrator.check.egress_gateways import CONVERT, inner_of
from coil_migrator.check.egressgateway_object import Undecodable, decode_policy, sample_mirror, subject_of
from coil_migrator.check.finding import Finding, Severity
from coil_migrator.check.policy_judgement import JudgedPolicy, judge_policies

SYSTEM: Final = "kube-system"
SHOWN: Final = 3


def check_policies(cluster: Cluster) -> Iterator[Finding]:
    """Each in turn, after all have been placed."""
    sources: list[Source] = []
    for found in cluster.egress_policies:
        source = decode_policy(found)
        if isinstance(source, Undecodable):
            kind = (EGRESS_POLICIES if found.metadata.namespace else EGRESS_CLUSTER_POLICIES).kind
            yield Finding(
                severity=Severity.MUST_MEND,
                subject=subject_of(kind, found.metadata),
                message=f"its spec cannot be read: {source.reason}",
                remedy="correct the field",
            )
        else:
            sources.append(source)
    inner = inner_of(cluster)
    for each in judge_policies(cluster, sources):
        yield from _check_rules(each)
        yield from _check_spelling(each)
        if each.is_new:
            yield from _check_meaning(each, inner)
            yield from _check_pods(each, cluster.pods)
            yield from _check_address(each)


def _check_rules(judged: JudgedPolicy) -> Iterator[Finding]:
    source = judged.source
    errors = validate_policy(sample_mirror(source))
    if isinstance(source, EgressClusterPolicy) and (selector := source.spec.applied_to.namespace_selector) is not None:
        errors += validate_selector(selector, path="spec.appliedTo.namespaceSelector")
    if errors:
        yield Finding(
            severity=Severity.MUST_MEND,
            subject=judged.subject,
            message=f"it would be refused: {render_errors(errors)}",
            remedy=f"correct the fields; {CONVERT} where podSelector and podSubnet are both there"
            if source.spec.applied_to.pod_selector is not None and source.spec.applied_to.pod_subnet
            else "correct the fields",
        )
    if judged.waits:
        yield Finding(severity=Severity.NOTE, subject=judged.subject, message=f"it waits: {judged.waits}")
    for reason, namespaces in judged.refusals.items():
        place = f" in {render_names(namespaces, shown=SHOWN)}" if isinstance(source, EgressClusterPolicy) else ""
        yield Finding(
            severity=Severity.MUST_MEND,
            subject=judged.subject,
            message=f"it would not be served{place}: {reason}",
            remedy="see docs/upgrade.md, Addresses of policies",
        )


def _check_spelling(judged: JudgedPolicy) -> Iterator[Finding]:
    spec = judged.source.spec
    if (allocator := spec.egress_ip.allocator_policy) not in {*AllocatorPolicy}:
        yield Finding(
            severity=Severity.MUST_MEND if allocator else Severity.CHANGES,
            subject=judged.subject,
            message=f"spec.egressIP.allocatorPolicy {allocator!r} means default there; here, "
            + ("it is refused" if allocator else "the gateway's ranges.policy says which address it gets"),
            remedy=CONVERT,
        )
    lists = (("destSubnet", spec.dest_subnet), ("appliedTo.podSubnet", spec.applied_to.pod_subnet))
    for name, texts in lists:
        if len(set(texts)) < len(texts):
            yield Finding(
                severity=Severity.MUST_MEND,
                subject=judged.subject,
                message=f"spec.{name} has a network twice, which is refused here",
                remedy=CONVERT,
            )


def _check_meaning(judged: JudgedPolicy, taken: Taken) -> Iterator[Finding]:
    spec = judged.source.spec
    if spec.applied_to.pod_subnet and spec.applied_to.pod_selector is None:
        yield Finding(
            severity=Severity.NOTE,
            subject=judged.subject,
            message="spec.appliedTo.podSubnet selects no pods, there or here; that of an EgressGatewayPolicy does",
        )
    if spec.priority:
        yield Finding(
            severity=Severity.CHANGES,
            subject=judged.subject,
            message=f"spec.priority {spec.priority} has no effect there; here, of policies for the same packet the one "
            "with the highest counts, then the first by namespace and name",
        )
    inner = [f"{text} of {owner}" for text, owner in find_inner_destinations(spec.dest_subnet, taken)]
    if inner:
        yield Finding(
            severity=Severity.MUST_MEND,
            subject=judged.subject,
            message=f"it would be refused: spec.destSubnet names addresses of the cluster, which takes an "
            f"EgressGatewayPolicy and a right of its author: {render_names(inner, shown=SHOWN)}",
            remedy="write an EgressGatewayPolicy for these: see docs/eip-gateway.md, Rights of tenants",
        )


def _check_pods(judged: JudgedPolicy, pods: Iterable[ClientPod]) -> Iterator[Finding]:
    selector = judged.source.spec.applied_to.pod_selector
    if selector is None:
        return
    namespaces = {mirror.metadata.namespace for mirror in judged.mirrors.values()}
    selected = [pod for pod in pods if pod.metadata.namespace in namespaces and selector.selects(pod.metadata.labels)]
    on_node = [object_key(pod.metadata) for pod in selected if pod.spec.host_network]
    if on_node:
        yield Finding(
            severity=Severity.CHANGES,
            subject=judged.subject,
            message=f"selects pods with their node's network ({render_names(on_node, shown=SHOWN)}), which no "
            "policy is about here",
        )
    system = [pod.metadata.name for pod in selected if pod.is_ours and pod.metadata.namespace == SYSTEM]
    if isinstance(judged.source, EgressClusterPolicy) and system:
        yield Finding(
            severity=Severity.CHANGES,
            subject=judged.subject,
            message=f"selects pods of {SYSTEM} ({render_names(system, shown=SHOWN)}): they depend on the gateway to "
            "start, and for all that they send out of the cluster",
            remedy="exclude the namespace by spec.appliedTo.namespaceSelector, such as kubernetes.io/metadata.name "
            f"NotIn [{SYSTEM}], or set failPolicy: Open on the gateway",
        )


def _check_address(judged: JudgedPolicy) -> Iterator[Finding]:
    today = judged.unwritten_eip
    if today is not None and not judged.keeps_eip:
        yield Finding(
            severity=Severity.CHANGES,
            subject=judged.subject,
            message=f"has {today} today, to which neither its spec nor the gateway's status leads; it may get another",
            remedy="write it into spec.egressIP before the chart's definitions are applied, or use "
            "coil-migrator convert --pin",
        )
