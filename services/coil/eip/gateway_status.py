"""A placement as the status of its gateway: what each node is told to hold, and when an address may change hands.

    placement ──┐
    old status ─┼─► plan_status ─► new status ─► agents
    leases ─────┘                      └─► as_listed ─► plan_policy_status

The status is the one place in which it is decided who holds what, so it is written as a whole, guarded by the resource
version of the gateway that it was planned from. Invariants, however late the news of the leases are:

* An address that a node may still hold is listed at that node, and at no other. It is over for the node when its lease
  is revoked, or has a later term than the one that the status names, or when the agent has applied the revision from
  which on the address leaves. A lease of an *earlier* term than the status names is old news, and says nothing.
* So an address whose policies were placed elsewhere first stays where it is, as one that leaves, and its policies have
  no node, though the entry names them. It is listed at the new node when the old one is done with it.
* `revision` grows by one with every change of the list, and with nothing else.

A gateway must not go, nor an address leave its ranges, as long as the list has an entry for it: what another gateway
makes of that address is not seen from here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import AddressValueError
from typing import Final

import msgspec

from coil.crd.egress_gateway import (
    AddressUsage,
    EgressGateway,
    EgressGatewayStatus,
    EipEntry,
    GatewayNode,
    PolicyRef,
    PolicyUsage,
)
from coil.crd.egress_gateway_policy import EgressGatewayPolicy, EgressGatewayPolicyStatus, PolicyEip
from coil.crd.egress_tunnel import TunnelPhase
from coil.crd.meta import Condition
from coil.crd.names import NodeName
from coil.eip.address_range import AddressRanges
from coil.eip.claim import Eip, Placed, Refusal, parse_eip, parse_rules, policy_ref
from coil.eip.gateway_choice import NoGateway
from coil.eip.placement import Placement
from coil.kernel.family import IPAddress

READY: Final = "Ready"
EXHAUSTED: Final = "Exhausted"
POD_NETWORKS_KNOWN: Final = "PodNetworksKnown"
NO_NODE: Final = "NoNode"
"""For the moment: a reason that needs no Event."""
_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is known of a node. Wanted for every node that the gateway selects, and every one that its status lists.

    `phase` is the tunnel's. `term` and `held` are the lease's as it was last seen; of a node that never had one, 0 and
    False. `applied` is the revision of this gateway that its agent has applied.
    """

    name: NodeName
    phase: str
    term: int
    applied: int | None
    held: bool
    selected: bool = True


@dataclass(slots=True)
class _Stay:
    """Addresses of the old status that their node may still hold, as far as they are not listed there again."""

    node: str
    ipv4: str
    ipv6: str
    leaving: int


def plan_status(
    gateway: EgressGateway, placement: Placement, nodes: Sequence[NodeFacts], *, limit: int = 0, now: datetime
) -> EgressGatewayStatus:
    """The status that follows on `gateway.status`; equal to it when there is nothing to write.

    `placement` is `place`'s, from `former_of` this gateway; `limit` is what it was told. `now` is for the conditions. A
    node that the status lists and `nodes` does not have may still hold what is listed there. Raises RangeError.
    """
    old = gateway.status
    facts = {fact.name: fact for fact in nodes}
    stays = [stay for listed in old.node_list for stay in _stays(listed, facts.get(NodeName(listed.name)))]
    entries = _plan_entries(placement, facts, stays)
    waiting = _waiting(placement, entries)
    for stay in stays:
        if stay.ipv4 or stay.ipv6:
            entry = EipEntry(
                ipv4=stay.ipv4,
                ipv6=stay.ipv6,
                policies=tuple(sorted(waiting.get(stay.ipv4, set()) | waiting.get(stay.ipv6, set()))),
                leaving=stay.leaving or old.revision + 1,
            )
            entries.setdefault(stay.node, []).append(entry)
    before = {listed.name: listed for listed in old.node_list}
    node_list = tuple(
        _listed(before.get(name, GatewayNode(name=name)), facts.get(NodeName(name)), entries.get(name, []))
        for name in sorted(entries.keys() | {fact.name for fact in nodes if fact.selected})
    )
    usage = _usage(gateway, placement, stays)
    ready = sum(fact.selected and fact.held and fact.phase == TunnelPhase.READY for fact in nodes)
    return EgressGatewayStatus(
        observed_generation=gateway.metadata.generation,
        revision=old.revision + (node_list != old.node_list),
        node_list=node_list,
        ip_usage=usage,
        policy_usage=PolicyUsage(served=len(placement.placed), limit=limit),
        conditions=keep_times(gateway_conditions(ready, usage), old.conditions, now),
    )


def as_listed(status: EgressGatewayStatus, placement: Placement) -> tuple[Placed, ...]:
    """The placement as far as `status` lists it: without a node where an address is still waited for."""
    listed = {
        (policy, listed.name)
        for listed in status.node_list
        for entry in listed.eips
        if not entry.leaving
        for policy in entry.policies
    }
    return tuple(
        placed if (placed.policy, placed.node) in listed else Placed(policy=placed.policy, eip=placed.eip, node=None)
        for placed in placement.placed
    )


def plan_policy_status(
    policy: EgressGatewayPolicy,
    gateway_name: str,
    outcome: Placed | Refusal | NoGateway,
    *,
    generation: int,
    others: Iterable[Condition] = (),
    now: datetime,
) -> EgressGatewayPolicyStatus:
    """The status that follows on `policy.status`; equal to it when there is nothing to write.

    `outcome` is one of `as_listed`, for the policy's spec of that `generation`, which may be older than `policy`. It is
    written after the gateway's status. The address stays in it while there is no node; a policy that is refused has
    none. `others` are conditions that do not follow from the outcome.
    """
    eip = outcome.eip if isinstance(outcome, Placed) else None
    node = outcome.node if isinstance(outcome, Placed) else None
    ipv4, ipv6 = _texts(eip)
    return EgressGatewayPolicyStatus(
        observed_generation=generation,
        egress_gateway_name=gateway_name,
        eip=PolicyEip(ipv4=ipv4, ipv6=ipv6),
        node=node or "",
        conditions=keep_times([policy_condition(outcome), *others], policy.status.conditions, now),
    )


def former_of(gateway: EgressGateway, policies: Iterable[EgressGatewayPolicy]) -> tuple[Placed, ...]:
    """What the policies of a gateway had before: by its status, and by their own where no node has their address.

    A text that is no address, which only somebody else can have written, is nothing that anybody had.
    """
    found: dict[PolicyRef, Placed] = {}
    for policy in policies:
        status, ref = policy.status, policy_ref(policy)
        eip = _eip(status.eip.ipv4, status.eip.ipv6)
        if status.egress_gateway_name == gateway.metadata.name and eip is not None:
            found[ref] = Placed(policy=ref, eip=eip, node=None)
    for listed in gateway.status.node_list:
        for entry in listed.eips:
            eip = _eip(entry.ipv4, entry.ipv6)
            if not entry.leaving and (eip is not None or not (entry.ipv4 or entry.ipv6)):
                for ref in entry.policies:
                    found[ref] = Placed(policy=ref, eip=eip, node=NodeName(listed.name))
    return tuple(found.values())


def _stays(listed: GatewayNode, fact: NodeFacts | None) -> Iterable[_Stay]:
    if fact is not None and (fact.term > listed.term or (fact.term == listed.term and not fact.held)):
        return
    for entry in listed.eips:
        done = entry.leaving and fact is not None and fact.applied is not None and fact.applied >= entry.leaving
        if not done and (entry.ipv4 or entry.ipv6):
            yield _Stay(listed.name, entry.ipv4, entry.ipv6, entry.leaving)


def _plan_entries(
    placement: Placement, facts: Mapping[NodeName, NodeFacts], stays: Iterable[_Stay]
) -> dict[str, list[EipEntry]]:
    """The entries that hold by node; what they have of `stays` is taken from there."""
    at: dict[str, list[_Stay]] = {}
    for stay in stays:
        for text in filter(None, (stay.ipv4, stay.ipv6)):
            at.setdefault(text, []).append(stay)
    groups: dict[tuple[NodeName, Eip | None], list[PolicyRef]] = {}
    for placed in placement.placed:
        if placed.node is not None and (fact := facts.get(placed.node)) and fact.held and fact.selected:
            groups.setdefault((placed.node, placed.eip), []).append(placed.policy)
    entries: dict[str, list[EipEntry]] = {}
    for (node, eip), policies in groups.items():
        ipv4, ipv6 = _texts(eip)
        here = [stay for text in (ipv4, ipv6) for stay in at.get(text, ())]
        if any(stay.node != node for stay in here):
            continue
        for stay in here:
            stay.ipv4 = "" if stay.ipv4 == ipv4 else stay.ipv4
            stay.ipv6 = "" if stay.ipv6 == ipv6 else stay.ipv6
        entries.setdefault(node, []).append(EipEntry(ipv4=ipv4, ipv6=ipv6, policies=tuple(sorted(policies))))
    return entries


def _waiting(placement: Placement, entries: Mapping[str, Sequence[EipEntry]]) -> dict[str, set[PolicyRef]]:
    """The policies that no entry has, by each of their addresses."""
    served = {policy for listed in entries.values() for entry in listed for policy in entry.policies}
    waiting: dict[str, set[PolicyRef]] = {}
    for placed in placement.placed:
        if placed.policy not in served:
            for text in filter(None, _texts(placed.eip)):
                waiting.setdefault(text, set()).add(placed.policy)
    return waiting


def _listed(before: GatewayNode, fact: NodeFacts | None, entries: list[EipEntry]) -> GatewayNode:
    """With the term that the entries are for: old news take none back."""
    eips = tuple(sorted(entries, key=_order))
    if fact is None:
        return msgspec.structs.replace(before, eips=eips)
    return GatewayNode(name=before.name, status=fact.phase, term=max(fact.term, before.term), eips=eips)


def _usage(gateway: EgressGateway, placement: Placement, stays: Iterable[_Stay]) -> AddressUsage:
    rules = parse_rules(gateway.spec)
    eips = {placed.eip for placed in placement.placed} | {_eip(stay.ipv4, stay.ipv6) for stay in stays}
    used = [eip for eip in eips if eip is not None]
    return AddressUsage(
        ipv4_total=min(rules.ipv4.size, _MOST),
        ipv4_free=_free(rules.ipv4, {eip.ipv4 for eip in used}),
        ipv6_total=min(rules.ipv6.size, _MOST),
        ipv6_free=_free(rules.ipv6, {eip.ipv6 for eip in used}),
    )


def _free(ranges: AddressRanges, used: Iterable[IPAddress | None]) -> int:
    return min(ranges.size - sum(address is not None and address in ranges for address in used), _MOST)


def _texts(eip: Eip | None) -> tuple[str, str]:
    if eip is None:
        return "", ""
    return "" if eip.ipv4 is None else str(eip.ipv4), "" if eip.ipv6 is None else str(eip.ipv6)


def _eip(ipv4: str, ipv6: str) -> Eip | None:
    try:
        return parse_eip(ipv4, ipv6)
    except AddressValueError:
        return None


def _order(entry: EipEntry) -> tuple[int, str, str]:
    """Stable from one status to the next."""
    return entry.leaving, entry.ipv4, entry.ipv6


def gateway_conditions(ready_nodes: int, usage: AddressUsage) -> tuple[Condition, ...]:
    """Ready: a node can carry addresses. Exhausted: no address is free, so that policies share them or get none."""
    if ready_nodes:
        ready = Condition(type=READY, status="True", reason="NodeReady", message="a node can carry its addresses")
    else:
        text = "no node that it selects can carry its addresses now"
        ready = Condition(type=READY, status="False", reason=NO_NODE, message=text)
    full4 = usage.ipv4_total > 0 and not usage.ipv4_free
    full6 = usage.ipv6_total > 0 and not usage.ipv6_free
    if full4 or full6:
        text = "every address is in use: a further policy shares one, if spec.sharing lets it, or gets none"
        return ready, Condition(type=EXHAUSTED, status="True", reason="NoFreeAddress", message=text)
    return ready, Condition(type=EXHAUSTED, status="False", reason="AddressesFree")


def policy_condition(outcome: Placed | Refusal | NoGateway) -> Condition:
    """Ready: a node carries the policy's traffic."""
    if not isinstance(outcome, Placed):
        return Condition(type=READY, status="False", reason=outcome.reason, message=outcome.message)
    if outcome.node is None:
        text = "no node carries it now: none is ready, or its address has not yet left another"
        return Condition(type=READY, status="False", reason=NO_NODE, message=text)
    return Condition(type=READY, status="True", reason="Placed", message=f"leaves by {outcome.node}")


def stray_condition(stray: str) -> Condition:
    """PodNetworksKnown: if not, traffic between pods takes the gateway, too. `stray` is a pod whose address is in no
    known network of the cluster, in words.
    """
    text = (
        f"{stray} is in no known network of the cluster: what pods of this policy send to such addresses leaves by the "
        "gateway; add the network to the key extra of the ConfigMap coil-cluster-networks"
    )
    return Condition(type=POD_NETWORKS_KNOWN, status="False", reason="PodNetworkUnknown", message=text)


def keep_times(conditions: Iterable[Condition], before: Iterable[Condition], now: datetime) -> tuple[Condition, ...]:
    """`conditions` with the time of their last change of status, by what they were before."""
    old = {condition.type: condition for condition in before}
    return tuple(msgspec.structs.replace(one, last_transition_time=_changed_at(one, old, now)) for one in conditions)


def _changed_at(condition: Condition, old: dict[str, Condition], now: datetime) -> datetime:
    before = old.get(condition.type)
    if before is None or before.status != condition.status or before.last_transition_time is None:
        # The API server keeps whole seconds.
        return now.replace(microsecond=0)
    return before.last_transition_time
