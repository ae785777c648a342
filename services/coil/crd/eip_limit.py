"""How much one namespace may have of what all tenants share on every node: policies, and the networks in them; and how
many policies one gateway may have. Pure.

Admission refuses what goes beyond. A node may see policies that admission has not, as it was off, or the limits were
higher: there, the packets of the policies that go beyond are dropped, and nobody else's.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from coil.crd.egress_gateway import PolicyRef
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.resource import object_key
from coil.crd.validation import FieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLimits:
    """`networks` are destinations and subnets of pods, of all policies together."""

    policies: int = 500
    networks: int = 4096


def validate_usage(
    policy: EgressGatewayPolicy,
    old: EgressGatewayPolicy | None,
    others: Iterable[EgressGatewayPolicy],
    limits: NamespaceLimits,
) -> list[FieldError]:
    """What `policy` makes the namespace exceed; nothing, if it is there already (`old`) and takes no more than before.

    `others` are policies of any namespace; one of the same name is passed over.
    """
    key, namespace = object_key(policy.metadata), policy.metadata.namespace
    own = [other for other in others if other.metadata.namespace == namespace and object_key(other.metadata) != key]
    errors: list[FieldError] = []
    if old is None and len(own) >= limits.policies:
        message = f"the namespace has {len(own)} EgressGatewayPolicies, and may have {limits.policies}"
        errors.append(FieldError("metadata.namespace", f"{message}: delete some, or ask an administrator"))
    wanted, had = count_networks(policy), 0 if old is None else count_networks(old)
    used = sum(map(count_networks, own))
    if wanted > had and used + wanted > limits.networks:
        message = f"{wanted} networks, beside {used} in other policies of the namespace, which may have"
        errors.append(FieldError("spec", f"{message} {limits.networks} together: join some, or ask an administrator"))
    return errors


def validate_gateway_usage(
    policy: EgressGatewayPolicy, gateway: str, others: Iterable[EgressGatewayPolicy], limit: int
) -> list[FieldError]:
    """Whether the gateway of that name has as many policies as it may have before it gets `policy`, which is new.

    `others` are policies of any gateway; one of the same namespace and name is passed over.
    """
    key = object_key(policy.metadata)
    used = sum(gateway_of(other) == gateway and object_key(other.metadata) != key for other in others)
    if used < limit:
        return []
    message = f"the EgressGateway {gateway!r} has {used} policies, and may have {limit}"
    return [FieldError("spec.egressGatewayName", f"{message}: use another, or ask an administrator")]


def gateway_of(policy: EgressGatewayPolicy) -> str:
    """The gateway that the policy has; the one that it names, if nobody has decided yet; "" for none."""
    status = policy.status
    return status.egress_gateway_name or ("" if status.conditions else policy.spec.egress_gateway_name)


def find_excess(policies: Iterable[EgressGatewayPolicy], limits: NamespaceLimits) -> frozenset[PolicyRef]:
    """The policies that go beyond, where their namespaces exceed a limit. Older ones come first; all nodes agree."""
    namespaces: dict[str, list[EgressGatewayPolicy]] = {}
    networks: Counter[str] = Counter()
    for policy in policies:
        namespaces.setdefault(policy.metadata.namespace, []).append(policy)
        networks[policy.metadata.namespace] += count_networks(policy)
    excess: set[PolicyRef] = set()
    for namespace, found in namespaces.items():
        if len(found) <= limits.policies and networks[namespace] <= limits.networks:
            continue
        kept = used = 0
        for policy in sorted(found, key=_age):
            wanted = count_networks(policy)
            if kept < limits.policies and used + wanted <= limits.networks:
                kept, used = kept + 1, used + wanted
            else:
                excess.add(PolicyRef(namespace=namespace, name=policy.metadata.name))
    return frozenset(excess)


def count_networks(policy: EgressGatewayPolicy) -> int:
    return len(policy.spec.dest_subnet) + len(policy.spec.applied_to.pod_subnet)


def _age(policy: EgressGatewayPolicy) -> tuple[str, str]:
    created = policy.metadata.creation_timestamp
    return "" if created is None else created.isoformat(), policy.metadata.name
