"""Placement, for any gateway, any policies and any history: what the module promises."""

import random
from collections import Counter
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address

from hypothesis import given
from hypothesis import strategies as st

from coil.crd.egress_gateway import (
    AddressPolicy,
    EgressGatewaySpec,
    NodePolicy,
    NodeSelector,
    PolicyRef,
    Ranges,
    Sharing,
)
from coil.crd.names import NodeName
from coil.eip.claim import Candidate, Claim, Eip, GatewayRules, Placed, RefusalReason, parse_rules
from coil.eip.placement import Placement, place

NAMES = [f"p{number}" for number in range(14)]
NODES = "abcd"


@st.composite
def gateways(draw: st.DrawFn) -> GatewayRules:
    size = draw(st.integers(1, 6))
    families = draw(st.sampled_from(["4", "6", "46"]))
    shift = draw(st.integers(0, 2))
    ranges = Ranges(
        policy=draw(st.sampled_from(AddressPolicy)),
        limit=draw(st.integers(1, 4)),
        ipv4=(f"10.0.0.{1 + shift}-10.0.0.{size + shift}",) if "4" in families else (),
        ipv6=(f"fd00::{1 + shift}-fd00::{size + shift}",) if "6" in families else (),
    )
    node_policy = draw(st.sampled_from(NodePolicy))
    selector = NodeSelector(policy=node_policy, limit=draw(st.integers(1, 5)))
    sharing = draw(st.sampled_from(Sharing))
    return parse_rules(EgressGatewaySpec(ranges=ranges, node_selector=selector, sharing=sharing))


PART = st.one_of(st.none(), st.integers(1, 7))
EIPS = st.tuples(PART, PART).map(
    lambda parts: (
        None
        if parts == (None, None)
        else Eip(
            None if parts[0] is None else IPv4Address(f"10.0.0.{parts[0]}"),
            None if parts[1] is None else IPv6Address(f"fd00::{parts[1]}"),
        )
    )
)
MOSTLY_ANY = st.one_of(st.none(), st.none(), EIPS)


@st.composite
def claim_lists(draw: st.DrawFn) -> list[Claim]:
    return [
        Claim(
            policy=PolicyRef(namespace=draw(st.sampled_from(["x", "y"])), name=name),
            asked=None if own else draw(MOSTLY_ANY),
            use_node_ip=own,
            cluster_policy=draw(st.sampled_from(["", "", "", "c"])),
            since=draw(st.sampled_from(["1", "2", "3"])),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
        for own in [draw(st.integers(0, 4)) == 0]
    ]


SOME_NODES = st.dictionaries(st.sampled_from(NODES), st.booleans()).map(
    lambda found: [Candidate(node=NodeName(name), ready=ready) for name, ready in found.items()]
)
HISTORY = st.lists(
    st.builds(
        Placed,
        policy=st.builds(PolicyRef, namespace=st.sampled_from(["x", "y"]), name=st.sampled_from(NAMES)),
        eip=EIPS,
        node=st.one_of(st.none(), st.sampled_from(NODES).map(NodeName)),
    ),
    unique_by=lambda placed: placed.policy,
)
SEEDS = st.integers(0, 1000)


def has_unused(rules: GatewayRules, used: Collection[Eip]) -> bool:
    """Whether an EIP can be made of addresses that nobody has."""
    taken4, taken6 = {eip.ipv4 for eip in used} - {None}, {eip.ipv6 for eip in used} - {None}
    return max(len(taken4), len(taken6)) < max(rules.ipv4.size, rules.ipv6.size)


def run(
    rules: GatewayRules,
    nodes: list[Candidate],
    claims: list[Claim],
    former: tuple[Placed, ...] | list[Placed],
    seed: int,
    limit: int = 1000,
) -> Placement:
    return place(rules, candidates=nodes, claims=claims, former=former, limit=limit, random=random.Random(seed).random)


@given(gateways(), SOME_NODES, claim_lists(), HISTORY, SEEDS)
def test_what_holds_of_every_placement(
    rules: GatewayRules, nodes: list[Candidate], claims: list[Claim], former: list[Placed], seed: int
) -> None:
    placement = run(rules, nodes, claims, former, seed)
    placed = {one.policy: one for one in placement.placed}
    assert len(placed) == len(placement.placed)
    assert placed.keys() | placement.refused.keys() == {claim.policy for claim in claims}
    assert not placed.keys() & placement.refused.keys()
    ready = {candidate.node for candidate in nodes if candidate.ready}
    # With a ready node all are somewhere, without one none is.
    assert all((one.node in ready) if ready else (one.node is None) for one in placed.values())
    # One EIP on one node, one partner for an address, and nothing outside of the ranges.
    homes: dict[Eip, NodeName | None] = {}
    owners: dict[IPv4Address | IPv6Address, Eip] = {}
    tenants: dict[Eip, str] = {}
    of = {claim.policy: rules.tenant(claim) for claim in claims}
    for one in placed.values():
        if one.eip is not None:
            assert homes.setdefault(one.eip, one.node) == one.node
            assert tenants.setdefault(one.eip, of[one.policy]) == of[one.policy]
            for address, ranges in ((one.eip.ipv4, rules.ipv4), (one.eip.ipv6, rules.ipv6)):
                if address is not None:
                    assert address in ranges
                    assert owners.setdefault(address, one.eip) == one.eip
    for claim in claims:
        if (mine := placed.get(claim.policy)) is not None:
            assert (mine.eip is None) == claim.use_node_ip
            assert claim.asked is None or (mine.eip is not None and mine.eip.agrees(claim.asked))
        # Who takes anything is refused only where others have all there is.
        elif claim.asked is None:
            assert placement.refused[claim.policy].reason is RefusalReason.NO_ADDRESS
            assert not has_unused(rules, homes)
            assert rules.sharing is Sharing.NAMESPACE
            assert rules.tenant(claim) not in tenants.values()


@given(gateways(), SOME_NODES, claim_lists(), SEEDS)
def test_policies_of_one_cluster_policy_leave_together(
    rules: GatewayRules, nodes: list[Candidate], claims: list[Claim], seed: int
) -> None:
    """By whatever one of them has got, if they take any."""
    placed = {one.policy: one for one in run(rules, nodes, claims, (), seed).placed}
    for own in (False, True):
        mine = [
            placed[claim.policy]
            for claim in claims
            if claim.cluster_policy and claim.asked is None and claim.use_node_ip is own and claim.policy in placed
        ]
        assert len({(one.eip, one.node) for one in mine}) <= 1


@given(gateways(), SOME_NODES, claim_lists(), HISTORY, SEEDS, SEEDS, st.integers(0, 6))
def test_a_full_gateway_serves_whom_it_served_and_no_more(
    rules: GatewayRules,
    nodes: list[Candidate],
    claims: list[Claim],
    former: list[Placed],
    seed: int,
    other: int,
    limit: int,
) -> None:
    placement = run(rules, nodes, claims, former, seed, limit)
    served = {one.policy for one in placement.placed}
    assert len(served - {one.policy for one in former}) <= max(0, limit - len(served & {one.policy for one in former}))
    refused = [refusal for refusal in placement.refused.values() if refusal.reason is RefusalReason.FULL]
    assert not refused or len(served) >= limit
    assert run(rules, nodes, claims, placement.placed, other, limit) == placement


@given(gateways(), SOME_NODES, claim_lists(), HISTORY, SEEDS, SEEDS)
def test_placing_again_changes_nothing(
    rules: GatewayRules, nodes: list[Candidate], claims: list[Claim], former: list[Placed], seed: int, other: int
) -> None:
    first = run(rules, nodes, claims, former, seed)
    assert run(rules, nodes, claims, first.placed, other) == first
    assert run(rules, nodes[::-1], claims[::-1], former[::-1], seed) == first


@given(gateways(), SOME_NODES, claim_lists(), SOME_NODES, claim_lists(), SEEDS)
def test_nothing_moves_without_need(
    rules: GatewayRules,
    nodes: list[Candidate],
    claims: list[Claim],
    later_nodes: list[Candidate],
    later_claims: list[Claim],
    seed: int,
) -> None:
    """Policies come and go, and so do nodes. What is still wanted, and whose node is still ready, stays."""
    before = {one.policy: one for one in run(rules, nodes, claims, (), seed).placed}
    after = {one.policy: one for one in run(rules, later_nodes, later_claims, list(before.values()), seed).placed}
    ready = {candidate.node for candidate in later_nodes if candidate.ready}
    kinds = {claim.policy: (claim.asked, claim.use_node_ip) for claim in claims}
    for claim in later_claims:
        old = before.get(claim.policy)
        if old is None or kinds[claim.policy] != (claim.asked, claim.use_node_ip):
            continue
        assert after[claim.policy].eip == old.eip
        if old.node in ready:
            assert after[claim.policy].node == old.node


@given(gateways(), SOME_NODES, claim_lists(), SEEDS)
def test_no_limit_is_passed_while_there_is_room(
    rules: GatewayRules, nodes: list[Candidate], claims: list[Claim], seed: int
) -> None:
    """Policies come one after the other; each time one that takes any address is put over a limit, none had room."""
    former: tuple[Placed, ...] = ()
    known: list[Claim] = []
    ready = {candidate.node for candidate in nodes if candidate.ready}
    for claim in sorted(claims, key=lambda claim: (claim.since, claim.policy)):
        known.append(claim)
        before, former = former, run(rules, nodes, known, former, seed).placed
        mine = next((one for one in former if one.policy == claim.policy), None)
        if mine is None or claim.asked is not None or claim.cluster_policy or mine.node is None:
            continue
        on_node = Counter(one.node for one in before)
        on_eip = Counter(one.eip for one in before if one.eip is not None)
        tenant = rules.tenant(claim)
        of = {one.policy: rules.tenant(one) for one in known}
        at = {one.eip: one.node for one in before if one.eip is not None and of[one.policy] == tenant}
        unused = has_unused(rules, on_eip)
        spare = {node for node in ready if on_node[node] < rules.node_limit}
        if rules.node_policy is NodePolicy.LIMIT and mine.node not in spare:
            reachable = ready if claim.use_node_ip or unused else set(at.values())
            if rules.address_policy is AddressPolicy.LIMIT and not claim.use_node_ip and not unused:
                open_at = {node for eip, node in at.items() if on_eip[eip] < rules.address_limit}
                reachable = open_at or reachable
            assert not spare & reachable
        used = 0 if mine.eip is None else on_eip[mine.eip]
        if rules.address_policy is AddressPolicy.LIMIT and used >= rules.address_limit:
            assert not unused
            assert all(on_eip[eip] >= rules.address_limit for eip in at)
        if rules.address_policy is AddressPolicy.PREFER_UNUSED and used:
            assert not unused
        if rules.node_policy is NodePolicy.AVERAGE and (claim.use_node_ip or unused):
            assert on_node[mine.node] == min(on_node[node] for node in ready)
