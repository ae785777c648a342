"""The security group of a namespace: which rules of it are coil-raven's, and which of these are out of date. Pure.

What an administrator adds to the group stays there, and holds.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from coil.kernel.family import IPNetwork
from coil.neutron.resource import SecurityGroupId, SecurityGroupRule

OWN_RULE: Final = "by coil-raven"
"""The description of its rules."""
_VERSIONS: Final = (4, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPolicy:
    """What is wanted of all namespaces. Pods that are `isolated` receive from each other, and from load balancers in
    the networks `balancers`.

    `enforced_by_nodes`: no agent of Neutron enforces the rules, so the nodes of the pods are told of them.
    """

    isolated: bool = False
    balancers: tuple[IPNetwork, ...] = ()
    enforced_by_nodes: bool = True


def group_rules(
    group: SecurityGroupId, versions: Collection[int], policy: GroupPolicy
) -> tuple[SecurityGroupRule, ...]:
    """What the pods of a namespace may receive and send, in these IP versions."""
    rules: list[SecurityGroupRule] = []
    for version in sorted(versions):
        ingress = SecurityGroupRule(direction="ingress", ethertype=f"IPv{version}", description=OWN_RULE)
        rules.append(SecurityGroupRule(direction="egress", ethertype=f"IPv{version}", description=OWN_RULE))
        if not policy.isolated:
            rules.append(ingress)
            continue
        rules.append(msgspec.structs.replace(ingress, remote_group_id=group))
        for network in policy.balancers:
            if network.version == version:
                rules.append(msgspec.structs.replace(ingress, remote_ip_prefix=str(network)))
    return tuple(rules)


def is_stale(rule: SecurityGroupRule, group: SecurityGroupId, wanted: Collection[tuple[object, ...]]) -> bool:
    """Whether the rule is one of coil-raven's and allows something else than what is `wanted`. Former versions of it,
    and Neutron for every new group, made theirs without a description.
    """
    if rule.allows() in wanted:
        return False
    plain = (GroupPolicy(), GroupPolicy(isolated=True))
    own = {each.allows() for policy in plain for each in group_rules(group, _VERSIONS, policy)}
    return rule.description == OWN_RULE or rule.allows() in own
