"""The EgressGatewayPolicies that stand for an EgressPolicy or an EgressClusterPolicy, and what becomes of its status.

    EgressPolicy ───────┐
    EgressClusterPolicy ┼─► mirrors ─► EgressGatewayPolicies, owned ─► … ─► their status ─► plan_status ─► its status
    Namespaces ─────────┘

An EgressClusterPolicy has a mirror in every namespace that it selects, whether there are pods or not: one that were
made for the first pod would come too late for it. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Final, TypeAlias

from coil.crd.builtin import Namespace
from coil.crd.egress_gateway_policy import (
    AppliedTo,
    EgressGatewayPolicy,
    EgressGatewayPolicySpec,
    PolicyEip,
)
from coil.crd.egress_policy import (
    EGRESS_CLUSTER_POLICIES,
    EGRESS_POLICIES,
    EgressClusterPolicy,
    EgressPolicy,
    EgressPolicyStatus,
    is_source,
)
from coil.crd.meta import Condition, ObjectMeta, OwnerReference
from coil.crd.names import LABEL_VALUE_LENGTH
from coil.crd.resource import object_key
from coil.eip.gateway_status import READY, keep_times

Source: TypeAlias = EgressPolicy | EgressClusterPolicy

BY_SOURCE: Final = "source"
CLUSTER_PREFIX: Final = "egcp-"
"""Of the names of mirrors of EgressClusterPolicies, after that kind's short name: their namespaces may have a policy of
the same name.
"""
_DIGEST_LENGTH: Final = 8
_NAMED: Final = 3
_PENDING: Final = Condition(type=READY, status="Unknown", reason="Pending")


def mirrors_of(source: Source, namespaces: Iterable[Namespace]) -> dict[str, EgressGatewayPolicy]:
    """The EgressGatewayPolicies that there are to be, by key. None of a source that is being deleted."""
    if source.metadata.deleting:
        return {}
    spec = mirror_spec(source)
    owner = owner_of(source)
    if isinstance(source, EgressPolicy):
        places = [source.metadata.namespace]
        name = source.metadata.name
    else:
        selector = source.spec.applied_to.namespace_selector
        chosen = (each.metadata for each in namespaces if selector is None or selector.selects(each.metadata.labels))
        places = [metadata.name for metadata in chosen]
        name = cluster_mirror_name(source.metadata.name)
    found = (
        EgressGatewayPolicy(metadata=ObjectMeta(name=name, namespace=place, owner_references=(owner,)), spec=spec)
        for place in places
    )
    return {object_key(mirror.metadata): mirror for mirror in found}


def mirror_spec(source: Source) -> EgressGatewayPolicySpec:
    """Of each of its mirrors: all but the selection of namespaces."""
    spec = source.spec
    return EgressGatewayPolicySpec(
        egress_gateway_name=spec.egress_gateway_name,
        egress_ip=spec.egress_ip,
        applied_to=AppliedTo(pod_selector=spec.applied_to.pod_selector, pod_subnet=spec.applied_to.pod_subnet),
        dest_subnet=spec.dest_subnet,
        priority=spec.priority,
    )


def cluster_mirror_name(name: str) -> str:
    """Of the mirrors of an EgressClusterPolicy. What is too long for a label ends in a digest."""
    whole = CLUSTER_PREFIX + name
    if len(whole) <= LABEL_VALUE_LENGTH:
        return whole
    digest = sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{whole[: LABEL_VALUE_LENGTH - 1 - _DIGEST_LENGTH].rstrip('-.')}-{digest}"


def owner_of(source: Source) -> OwnerReference:
    """What marks a mirror; the garbage collector deletes it with its source."""
    resource = EGRESS_POLICIES if isinstance(source, EgressPolicy) else EGRESS_CLUSTER_POLICIES
    return OwnerReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=source.metadata.name,
        uid=source.metadata.uid,
        controller=True,
    )


def sources_of(policy: EgressGatewayPolicy) -> Iterator[str]:
    """What it stands for, if for anything: the values of an index of EgressGatewayPolicies, BY_SOURCE."""
    for owner in policy.metadata.owner_references:
        if is_source(owner, EGRESS_POLICIES):
            yield source_value(owner.kind, f"{policy.metadata.namespace}/{owner.name}")
        elif is_source(owner, EGRESS_CLUSTER_POLICIES):
            yield source_value(owner.kind, owner.name)


def source_value(kind: str, key: str) -> str:
    """The value of the index BY_SOURCE for the object of that kind and key."""
    return f"{kind} {key}"


def is_mirror(policy: EgressGatewayPolicy, source: Source) -> bool:
    """Whether it stands for this very object."""
    return any(owner.uid == source.metadata.uid and owner.controller for owner in policy.metadata.owner_references)


def stands_for(policy: EgressGatewayPolicy, source: EgressClusterPolicy, namespace: Namespace) -> bool:
    """Whether it is what there is to be for that object in its namespace, as far as a policy cannot be changed. Whoever
    may write policies may name any owner.
    """
    wanted = mirrors_of(source, [namespace]).get(object_key(policy.metadata))
    if wanted is None or not is_mirror(policy, source):
        return False
    spec = policy.spec
    return (spec.egress_gateway_name, spec.egress_ip) == (wanted.spec.egress_gateway_name, wanted.spec.egress_ip)


def plan_status(
    source: Source, present: Iterable[EgressGatewayPolicy], refusals: Mapping[str, str], now: datetime
) -> EgressPolicyStatus:
    """The status that follows on `source.status`; equal to it when there is nothing to write. `present` are its
    mirrors, `refusals` says of which there should be, by key, why they are not there.
    """
    mirrors = sorted(present, key=lambda mirror: object_key(mirror.metadata))
    shown = next((mirror for mirror in mirrors if mirror.status.node), mirrors[0] if mirrors else None)
    condition = _ready(mirrors, refusals)
    return EgressPolicyStatus(
        eip=PolicyEip() if shown is None else shown.status.eip,
        node="" if shown is None else shown.status.node,
        conditions=keep_times([condition], source.status.conditions, now),
    )


def _ready(mirrors: Iterable[EgressGatewayPolicy], refusals: Mapping[str, str]) -> Condition:
    """Ready: all mirrors are."""
    if refusals:
        said = "; ".join(f"{key}: {why}" for key, why in sorted(refusals.items())[:_NAMED])
        more = f"; and {len(refusals) - _NAMED} more" if len(refusals) > _NAMED else ""
        return Condition(type=READY, status="False", reason="PolicyRefused", message=said + more)
    wrong: list[tuple[str, Condition]] = []
    ready = 0
    for mirror in mirrors:
        found = next((one for one in mirror.status.conditions if one.type == READY), None)
        if found is not None and found.status == "True":
            ready += 1
        else:
            wrong.append((object_key(mirror.metadata), found or _PENDING))
    if wrong:
        key, condition = wrong[0]
        rest = f" ({len(wrong) - 1} more are not ready)" if len(wrong) > 1 else ""
        said = f"{key}: {condition.message}{rest}" if condition.message else f"{key} waits{rest}"
        return Condition(type=READY, status="False", reason=condition.reason, message=said)
    if not ready:
        return Condition(type=READY, status="False", reason="NoNamespace", message="it selects no namespace")
    return Condition(type=READY, status="True", reason="Placed", message=f"by {ready} EgressGatewayPolicies")
