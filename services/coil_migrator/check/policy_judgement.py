"""What would become of EgressPolicies and EgressClusterPolicies.

They are judged by the EgressGatewayPolicies that would stand for them: by the rules of admission first, the older one
before the younger, then by a placement of all that pass. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from coil.crd.egress_gateway import EgressGateway, PolicyRef
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES, EgressPolicy, cluster_policy_of
from coil.crd.eip_conflict import validate_offered, validate_untaken
from coil.crd.eip_limit import NamespaceLimits, find_excess
from coil.crd.eip_validation import validate_policy
from coil.crd.names import NodeName
from coil.crd.resource import object_key
from coil.crd.validation import FieldError, render_errors
from coil.eip.address_range import RangeError
from coil.eip.claim import Candidate, Claim, Eip, parse_claim, parse_eip, policy_ref
from coil.eip.gateway_choice import NoGateway, choose_gateway
from coil.eip.gateway_status import former_of
from coil.eip.placement import parse_rules, place
from coil.eip.policy_mirror import Source
from coil_migrator.check.cluster import Cluster
from coil_migrator.check.egress_gateways import gateways_of
from coil_migrator.check.egressgateway_object import (
    Undecodable,
    decode_policy,
    living_mirrors,
    sample_mirror,
    subject_of,
)

POLICIES_PER_GATEWAY: Final = 2000
"""The chart's eip.limits.policiesPerGateway."""


@dataclass(slots=True)
class JudgedPolicy:
    """A policy, and what would stand for it. `claims` are those of the mirrors that have a gateway and pass admission;
    `refusals` the namespaces in which it would not be served, by reason; `waits` says why it has no gateway, there or
    here. `keeps_eip`: the gateway's status leads to the address that it has, whatever the spec says.
    """

    source: Source
    mirrors: Mapping[str, EgressGatewayPolicy]
    refusals: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    claims: list[Claim] = field(default_factory=list)
    waits: str = ""
    keeps_eip: bool = False

    @property
    def subject(self) -> str:
        return subject_of(kind_of(self.source), self.source.metadata)

    @property
    def is_new(self) -> bool:
        """Whether these programs have not served it yet."""
        return not self.source.status.conditions

    @property
    def eip(self) -> Eip | None:
        """The address that it has today."""
        eip = self.source.status.eip
        try:
            return parse_eip(eip.ipv4, eip.ipv6)
        except ValueError:
            return None

    @property
    def unwritten_eip(self) -> Eip | None:
        """The address that it has today, if its spec does not lead to it."""
        today = self.eip
        asking = [claim for claim in self.claims if not claim.use_node_ip]
        return today if any(claim.asked != today for claim in asking) else None

    def refuse(self, mirror: EgressGatewayPolicy, reason: str) -> None:
        self.refusals[reason].append(mirror.metadata.namespace)


def kind_of(source: Source) -> str:
    """Of the two."""
    return (EGRESS_POLICIES if isinstance(source, EgressPolicy) else EGRESS_CLUSTER_POLICIES).kind


def judge_all(cluster: Cluster) -> dict[str, JudgedPolicy]:
    """Of the policies that can be decoded, by what a Finding calls them."""
    decoded = map(decode_policy, cluster.egress_policies)
    sources = [source for source in decoded if not isinstance(source, Undecodable)]
    return {each.subject: each for each in judge_policies(cluster, sources)}


def judge_policies(cluster: Cluster, sources: Iterable[Source]) -> tuple[JudgedPolicy, ...]:
    """In the same order."""
    judged = tuple(JudgedPolicy(source, _mirrors_of(source, cluster)) for source in sources)
    gateways = gateways_of(cluster)
    labels = {namespace.metadata.name: namespace.metadata.labels for namespace in cluster.namespaces}
    owners = {key: each for each in judged for key in each.mirrors}
    mirrors = sorted((mirror for each in judged for mirror in each.mirrors.values()), key=_age)
    by_gateway: defaultdict[str, list[EgressGatewayPolicy]] = defaultdict(list)
    admitted: list[EgressGatewayPolicy] = []
    excess = find_excess(mirrors, NamespaceLimits())
    for mirror in mirrors:
        owner = owners[object_key(mirror.metadata)]
        chosen = choose_gateway(
            mirror.spec,
            namespace_labels=labels.get(mirror.metadata.namespace, {}),
            gateway=gateways.get,
            gateways=gateways.values(),
        )
        if validate_policy(mirror):
            continue
        if policy_ref(mirror) in excess:
            owner.refuse(mirror, "the namespace would exceed eip.limits")
        elif isinstance(chosen, NoGateway):
            owner.waits = chosen.message
        elif errors := _compare(mirror, chosen, admitted):
            owner.refuse(mirror, render_errors(errors))
        else:
            admitted.append(mirror)
            by_gateway[chosen.metadata.name].append(mirror)
    for name, served in by_gateway.items():
        _place(gateways[name], served, owners)
    return judged


def _compare(
    mirror: EgressGatewayPolicy, gateway: EgressGateway, others: Iterable[EgressGatewayPolicy]
) -> list[FieldError]:
    return [
        *validate_offered(mirror, gateway),
        *validate_untaken(mirror, others, is_shared=gateway.spec.is_shared),
    ]


def _place(gateway: EgressGateway, mirrors: Iterable[EgressGatewayPolicy], owners: Mapping[str, JudgedPolicy]) -> None:
    try:
        rules = parse_rules(gateway.spec)
    except RangeError:  # told of the gateway
        return
    by_ref = {policy_ref(mirror): mirror for mirror in mirrors}
    claims = {
        ref: parse_claim(mirror, rules.default_eip, cluster_policy=cluster_policy_of(mirror.metadata))
        for ref, mirror in by_ref.items()
    }
    former = former_of(gateway, ())
    placement = place(
        rules,
        # Whose addresses they are does not depend on nodes.
        candidates=[Candidate(node=NodeName("node"), ready=True)],
        claims=[claim for claim in claims.values() if isinstance(claim, Claim)],
        former=former,
        limit=POLICIES_PER_GATEWAY,
        random=lambda: 0.0,
    )
    for ref, refusal in placement.refused.items():
        owners[object_key(by_ref[ref].metadata)].refuse(by_ref[ref], refusal.message)
    for ref, claim in claims.items():
        if isinstance(claim, Claim):
            owners[object_key(by_ref[ref].metadata)].claims.append(claim)
    held = {placed.policy for placed in former}
    for placed in placement.placed:
        owner = owners[object_key(by_ref[placed.policy].metadata)]
        # Egressgateway writes an EgressClusterPolicy without a namespace.
        known = placed.policy in held or PolicyRef(name=owner.source.metadata.name) in held
        owner.keeps_eip |= known and placed.eip == owner.eip


def _age(policy: EgressGatewayPolicy) -> tuple[str, str]:
    created = policy.metadata.creation_timestamp
    return "" if created is None else created.isoformat(), object_key(policy.metadata)


def _mirrors_of(source: Source, cluster: Cluster) -> Mapping[str, EgressGatewayPolicy]:
    if cluster.namespaces:
        return living_mirrors(source, cluster.namespaces)
    sample = sample_mirror(source)
    return {object_key(sample.metadata): sample}
