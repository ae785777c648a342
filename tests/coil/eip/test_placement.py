"""Placement by cases: the modes of the proposal, requests, refusals, what is kept."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address

import pytest

from coil.crd.egress_gateway import (
    AddressPolicy,
    EgressGatewaySpec,
    IpPools,
    NodePolicy,
    NodeSelector,
    PolicyRef,
    PreferredNode,
    Ranges,
    Sharing,
)
from coil.crd.egress_gateway_policy import EgressGatewayPolicy, EgressGatewayPolicySpec, EgressIP
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.address_range import RangeError
from coil.eip.claim import Candidate, Claim, Eip, GatewayRules, Placed, RefusalReason, parse_claim, parse_rules
from coil.eip.placement import Placement, place

DUAL = Ranges(ipv4=("10.6.0.1-10.6.0.4",), ipv6=("fd00::1-fd00::4",))


def eip(last: int, other: int | None = None) -> Eip:
    return Eip(IPv4Address(f"10.6.0.{last}"), IPv6Address(f"fd00::{last if other is None else other}"))


def rules(
    ranges: Ranges = DUAL,
    node_policy: str = NodePolicy.AVERAGE,
    node_limit: int = 5,
    sharing: str = Sharing.NAMESPACE,
) -> GatewayRules:
    selector = NodeSelector(policy=node_policy, limit=node_limit)
    return parse_rules(EgressGatewaySpec(ranges=ranges, node_selector=selector, sharing=sharing))


def ref(name: str, namespace: str = "ns") -> PolicyRef:
    return PolicyRef(namespace=namespace, name=name)


def claims(count: int, begin: int = 0) -> list[Claim]:
    return [Claim(policy=ref(f"p{number:04}"), since=f"{number:04}") for number in range(begin, begin + count)]


def nodes(names: str, down: str = "") -> list[Candidate]:
    return [Candidate(node=NodeName(name), ready=name not in down) for name in names]


def run(
    given_rules: GatewayRules,
    wanted: Sequence[Claim],
    *,
    on: Iterable[Candidate] = nodes("abc"),
    former: Sequence[Placed] = (),
    reserved: Sequence[IPv4Address | IPv6Address] = (),
    limit: int = 10_000,
    seed: int = 1,
) -> Placement:
    return place(
        given_rules,
        candidates=list(on),
        claims=wanted,
        former=former,
        reserved=reserved,
        limit=limit,
        random=random.Random(seed).random,
    )


def per_node(placement: Placement) -> Counter[str]:
    return Counter(placed.node or "" for placed in placement.placed)


def per_eip(placement: Placement) -> Counter[Eip]:
    return Counter(placed.eip for placed in placement.placed if placed.eip is not None)


def unused() -> Ranges:
    return Ranges(policy=AddressPolicy.PREFER_UNUSED, ipv4=("10.6.0.0/24",), ipv6=("fd00::/120",))


def test_average_selection_spreads() -> None:
    assert sorted(per_node(run(rules(unused()), claims(10))).values()) == [3, 3, 4]


def test_the_proposals_spelling_of_it_is_the_same() -> None:
    proposed = rules(unused(), NodePolicy.AVERAGE_AS_PROPOSED)
    assert run(proposed, claims(10)) == run(rules(unused()), claims(10))


def test_minimum_nodes_stays_on_one() -> None:
    first = run(rules(unused(), NodePolicy.MINIMUM), claims(10))
    assert len(per_node(first)) == 1
    again = run(rules(unused(), NodePolicy.MINIMUM), claims(20), former=first.placed)
    assert per_node(again).keys() == per_node(first).keys()


def test_the_node_limit_fills_one_after_the_other_and_then_any() -> None:
    limited = rules(unused(), NodePolicy.LIMIT, 4)
    assert sorted(per_node(run(limited, claims(9))).values()) == [1, 4, 4]
    full = run(limited, claims(30))
    assert sum(per_node(full).values()) == 30
    assert min(per_node(full).values()) >= 4


def test_unused_addresses_come_first_and_then_used_ones() -> None:
    ranges = Ranges(policy=AddressPolicy.PREFER_UNUSED, ipv4=DUAL.ipv4, ipv6=DUAL.ipv6)
    assert set(per_eip(run(rules(ranges), claims(4))).values()) == {1}
    assert sum(per_eip(run(rules(ranges), claims(9))).values()) == 9


def test_the_address_limit_fills_one_before_the_next() -> None:
    ranges = Ranges(policy=AddressPolicy.LIMIT, limit=3, ipv4=DUAL.ipv4)
    assert sorted(per_eip(run(rules(ranges), claims(8), on=nodes("a"))).values()) == [2, 3, 3]
    assert sorted(per_eip(run(rules(ranges), claims(12))).values()) == [3, 3, 3, 3]
    assert sum(per_eip(run(rules(ranges), claims(20))).values()) == 20


def test_random_takes_used_ones_too() -> None:
    counts = [len(per_eip(run(rules(), claims(4), on=nodes("a"), seed=seed))) for seed in range(40)]
    assert min(counts) < 4 == max(counts)


def test_pairs_go_by_index() -> None:
    for placed in run(rules(), claims(12)).placed:
        assert placed.eip is not None
        assert int(placed.eip.ipv4 or 0) & 0xFF == int(placed.eip.ipv6 or 0) & 0xFF


def test_a_request_for_one_half_brings_its_partner() -> None:
    for asked in (Eip(IPv4Address("10.6.0.2")), Eip(None, IPv6Address("fd00::2"))):
        (placed,) = run(rules(), [Claim(policy=ref("p"), asked=asked)]).placed
        assert placed.eip == eip(2)


def test_a_pair_across_leaves_two_halves_that_are_joined() -> None:
    crossed = Claim(policy=ref("p"), asked=eip(2, 3), since="0")
    ranges = Ranges(policy=AddressPolicy.PREFER_UNUSED, ipv4=DUAL.ipv4, ipv6=DUAL.ipv6)
    placement = run(rules(ranges), [crossed, *claims(3, 1)])
    assert set(per_eip(placement)) == {eip(2, 3), eip(3, 2), eip(1), eip(4)}


def test_another_partner_of_a_bound_address_is_refused() -> None:
    first = run(rules(), [Claim(policy=ref("p1"), asked=eip(1), since="1")])
    both = [Claim(policy=ref("p1"), asked=eip(1), since="2"), Claim(policy=ref("p0"), asked=eip(1, 2), since="1")]
    placement = run(rules(), both, former=first.placed)
    assert placement.placed == first.placed
    assert placement.refused[ref("p0")].reason is RefusalReason.PAIR
    assert "10.6.0.1 and fd00::1" in placement.refused[ref("p0")].message


def test_two_halves_of_different_pairs_are_refused() -> None:
    wanted = [
        Claim(policy=ref("p1"), asked=eip(1), since="1"),
        Claim(policy=ref("p2"), asked=eip(2), since="2"),
        Claim(policy=ref("p3"), asked=eip(1, 2), since="3"),
    ]
    assert run(rules(), wanted).refused[ref("p3")].reason is RefusalReason.PAIR


def test_a_conflict_is_told_the_same_when_it_is_looked_at_again() -> None:
    """With what was bound after it was found, too."""
    two = rules(Ranges(ipv4=("10.6.0.1-10.6.0.2",), ipv6=("fd00::1-fd00::2",)))
    wanted = [
        Claim(policy=ref("first"), since="1", asked=Eip(None, IPv6Address("fd00::1"))),
        Claim(policy=ref("pair"), since="2", asked=eip(1, 2)),
        *claims(20, begin=3),
    ]
    for seed in range(10):
        placement = run(two, wanted, seed=seed)
        told = placement.refused[ref("pair")].message
        assert told == "10.6.0.1 and fd00::2 cannot go together: " + ", ".join(
            f"bound are {one}" for one in sorted(map(str, per_eip(placement)))
        )
        assert run(two, wanted, former=placement.placed, seed=seed) == placement


def test_another_tenants_address_is_refused_and_ones_own_is_shared() -> None:
    wanted = [
        Claim(policy=ref("p1", "shop"), asked=eip(1), since="1"),
        Claim(policy=ref("p2", "bank"), asked=eip(1), since="2"),
        Claim(policy=ref("p3", "shop"), asked=eip(1), since="3"),
    ]
    placement = run(rules(), wanted)
    assert {placed.policy for placed in placement.placed} == {ref("p1", "shop"), ref("p3", "shop")}
    assert placement.refused[ref("p2", "bank")].reason is RefusalReason.TAKEN


def of_tenants(*names: str) -> list[Claim]:
    """A policy of each, the first the oldest."""
    return [Claim(policy=ref(f"p{at}", name), since=f"{at}") for at, name in enumerate(names)]


@pytest.mark.parametrize("policy", AddressPolicy)
def test_tenants_do_not_share_addresses(policy: AddressPolicy) -> None:
    """However often they draw; where others have all of them, a tenant gets none, and policies of an owner share."""
    ranges = Ranges(policy=policy, limit=1, ipv4=("10.6.0.1-10.6.0.2",))
    wanted = of_tenants("shop", "bank", "thief", "shop")
    for seed in range(40):
        placement = run(rules(ranges), wanted, seed=seed)
        homes = {placed.policy.namespace: placed.eip for placed in placement.placed}
        assert len(placement.placed) == 3
        assert homes["shop"] != homes["bank"]
        assert placement.refused[ref("p2", "thief")].reason is RefusalReason.NO_ADDRESS
        assert "by others" in placement.refused[ref("p2", "thief")].message
        later = run(rules(ranges), wanted[1:3], former=placement.placed, seed=seed)
        assert len(later.placed) == 2, "as the first one has deleted its policies"


def test_tenants_share_addresses_where_the_gateway_says_so() -> None:
    ranges = Ranges(ipv4=("10.6.0.1-10.6.0.2",))
    wanted = of_tenants("shop", "bank", "third", "shop")
    assert sum(per_eip(run(rules(ranges, sharing=Sharing.ANY), wanted)).values()) == 4


def pooled(sharing: str = "", default: int = 2) -> GatewayRules:
    pools = IpPools(
        ipv4=("10.6.0.1-10.6.0.4",),
        ipv6=("fd00::1-fd00::4",),
        ipv4_default_eip=f"10.6.0.{default}",
        ipv6_default_eip=f"fd00::{default}",
    )
    return parse_rules(EgressGatewaySpec(ippools=pools, sharing=sharing))


def asking(name: str, namespace: str, given_rules: GatewayRules, allocator: str, ipv4: str = "") -> Claim:
    spec = EgressGatewayPolicySpec(egress_ip=EgressIP(allocator_policy=allocator, ipv4=ipv4))
    metadata = ObjectMeta(name=name, namespace=namespace, creation_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    claim = parse_claim(EgressGatewayPolicy(metadata=metadata, spec=spec), given_rules.default_eip)
    assert isinstance(claim, Claim)
    return claim


def test_the_default_eip_is_everybodys_and_each_of_rr_has_its_own() -> None:
    given_rules = pooled()
    wanted = [
        *(asking(f"p{number}", f"ns{number}", given_rules, "default") for number in range(3)),
        *(asking(f"r{number}", "ns0", given_rules, "rr") for number in range(3)),
    ]
    placement = run(given_rules, wanted)
    found = {placed.policy.name: placed.eip for placed in placement.placed}
    assert {found[f"p{number}"] for number in range(3)} == {eip(2)}
    assert {found[f"r{number}"] for number in range(3)} == {eip(1), eip(3), eip(4)}
    again = run(given_rules, wanted, former=placement.placed)
    assert again == placement
    late = run(given_rules, [*wanted, asking("r3", "ns0", given_rules, "rr")], former=placement.placed)
    assert {name.name: refusal.reason for name, refusal in late.refused.items()} == {"r3": RefusalReason.NO_ADDRESS}


def preferring(nodes: Mapping[int, str]) -> GatewayRules:
    """By the last part of an address, where it is to be."""
    preferred = tuple(PreferredNode(eip=f"10.6.0.{last}", node=node) for last, node in nodes.items())
    selector = NodeSelector(preferred_nodes=(*preferred, PreferredNode(eip="x", node="a")))
    return parse_rules(EgressGatewaySpec(ranges=DUAL, node_selector=selector))


def test_an_address_moves_to_the_node_that_somebody_prefers_and_back_when_it_returns() -> None:
    wanted = claims(4)
    before = run(rules(), wanted)
    (first, *_others) = before.placed
    assert first.eip is not None
    target = next(name for name in "abc" if name != first.node)
    given_rules = preferring({int(str(first.eip.ipv4).rpartition(".")[2]): target})
    moved = run(given_rules, wanted, former=before.placed)
    assert {one.policy: one.node for one in moved.placed if one.eip == first.eip} == {
        one.policy: target for one in before.placed if one.eip == first.eip
    }
    assert [one for one in moved.placed if one.eip != first.eip] == [
        one for one in before.placed if one.eip != first.eip
    ], "nothing else moves"
    lost = run(given_rules, wanted, former=moved.placed, on=nodes("abc", down=target))
    assert target not in {one.node for one in lost.placed}
    returned = run(given_rules, wanted, former=lost.placed)
    assert {one.node for one in returned.placed if one.eip == first.eip} == {target}


def test_a_new_policys_address_begins_where_it_is_preferred() -> None:
    everywhere = preferring(dict.fromkeys(range(1, 5), "c"))
    assert {one.node for one in run(everywhere, claims(6)).placed} == {"c"}
    assert {one.node for one in run(preferring({1: "elsewhere"}), claims(6)).placed} == set("abc")


def of_cluster_policy(name: str, *namespaces: str, own: bool = False) -> list[Claim]:
    return [
        Claim(policy=PolicyRef(namespace=namespace, name=f"egcp-{name}"), cluster_policy=name, use_node_ip=own)
        for namespace in namespaces
    ]


@pytest.mark.parametrize("sharing", Sharing)
def test_an_egress_cluster_policy_has_one_address_in_all_its_namespaces(sharing: Sharing) -> None:
    given_rules = rules(Ranges(ipv4=("10.6.0.1-10.6.0.3",)), sharing=sharing)
    wanted = [*of_cluster_policy("a", "x", "y", "z"), *of_cluster_policy("b", "x", "y")]
    placement = run(given_rules, wanted)
    assert placement.refused == {}
    for name in ("a", "b"):
        assert len({(one.eip, one.node) for one in placement.placed if one.policy.name == f"egcp-{name}"}) == 1
    again = run(given_rules, [*wanted, *of_cluster_policy("a", "w")], former=placement.placed)
    assert len({one.eip for one in again.placed if one.policy.name == "egcp-a"}) == 1
    if sharing is Sharing.NAMESPACE:
        stranger = Claim(policy=ref("p", "x"), asked=again.placed[0].eip)
        assert run(given_rules, [*wanted, stranger], former=again.placed).refused.keys() == {ref("p", "x")}


def test_policies_of_a_cluster_policy_leave_by_one_node_wherever_it_goes() -> None:
    wanted = of_cluster_policy("a", "x", "y", "z", own=True)
    placement = run(rules(), wanted)
    (node,) = {one.node for one in placement.placed}
    rest = [candidate for candidate in nodes("abc") if candidate.node != node]
    moved = run(rules(), wanted, former=placement.placed, on=rest)
    assert {one.node for one in moved.placed} < {candidate.node for candidate in rest}
    assert len({one.node for one in moved.placed}) == 1


def test_what_egressgateway_has_given_a_cluster_policy_stays() -> None:
    """It names such a policy without a namespace, and calls it by its own name."""
    former = [Placed(policy=PolicyRef(name="a"), eip=eip(3), node=NodeName("a"))]
    placement = run(rules(), of_cluster_policy("a", "x", "y"), former=former)
    assert {(one.eip, one.node) for one in placement.placed} == {(eip(3), NodeName("a"))}


def test_a_gateway_may_keep_its_default_eip_to_one_namespace() -> None:
    given_rules = pooled(Sharing.NAMESPACE)
    wanted = [asking(name, name, given_rules, "default") for name in ("a", "b")]
    placement = run(given_rules, wanted)
    assert [placed.policy.name for placed in placement.placed] == ["a"]
    assert placement.refused[ref("b", "b")].reason is RefusalReason.TAKEN


def test_another_namespaces_address_may_be_asked_for_only_where_all_share() -> None:
    for sharing in ("", Sharing.NAMESPACE):
        given_rules = pooled(sharing)
        wanted = [asking("a", "a", given_rules, "", "10.6.0.3"), asking("b", "b", given_rules, "rr", "10.6.0.3")]
        placement = run(given_rules, wanted)
        assert {one.policy.name: one.eip for one in placement.placed} == (
            {"a": eip(3)} if sharing else {"a": eip(3), "b": eip(3)}
        )
        assert {name.name: refusal.reason for name, refusal in placement.refused.items()} == (
            {"b": RefusalReason.TAKEN} if sharing else {}
        )
        assert run(given_rules, wanted, former=placement.placed) == placement


def test_the_default_eip_that_nobody_writes_is_the_first_of_the_pools() -> None:
    pools = IpPools(ipv4=("", "10.6.0.3", "10.6.0.1-10.6.0.2"), ipv6=("fd00::7/127", "fd00::3"), ipv6_default_eip="")
    given_rules = parse_rules(EgressGatewaySpec(ippools=pools, ranges=Ranges(ipv4=("10.5.0.1",), ipv6=("fd00::1",))))
    assert given_rules.default_eip == Eip(IPv4Address("10.6.0.3"), IPv6Address("fd00::6"))


def test_without_pools_the_gateway_chooses() -> None:
    given_rules = rules(unused())
    placement = run(given_rules, [asking("a", "ns", given_rules, "default")])
    assert len(placement.placed) == 1


def test_of_tenants_that_shared_an_address_the_oldest_policy_keeps_it() -> None:
    wanted = of_tenants("bank", "shop", "bank", "shop")
    former = [Placed(policy=claim.policy, eip=eip(1), node=NodeName("a")) for claim in wanted]
    placed = {one.policy: one.eip for one in run(rules(), wanted, former=former).placed}
    assert placed[ref("p0", "bank")] == placed[ref("p2", "bank")] == eip(1)
    assert eip(1) not in {placed[ref("p1", "shop")], placed[ref("p3", "shop")]}
    assert run(rules(sharing=Sharing.ANY), wanted, former=former).placed == tuple(
        sorted(former, key=lambda one: (one.policy.namespace, one.policy.name))
    )


def test_an_address_of_a_node_is_given_to_nobody_and_stays_with_whom_it_was() -> None:
    """Its partner of the other family is not lost with it."""
    asking = Claim(policy=ref("asks"), asked=Eip(IPv4Address("10.6.0.2")))
    reserved: list[IPv4Address | IPv6Address] = [
        IPv4Address("10.6.0.2"),
        IPv6Address("fd00::3"),
        IPv4Address("192.0.2.1"),
    ]
    ranges = Ranges(policy=AddressPolicy.PREFER_UNUSED, ipv4=DUAL.ipv4, ipv6=DUAL.ipv6)
    for seed in range(20):
        placement = run(rules(ranges), [*claims(3), asking], reserved=reserved, seed=seed)
        eips = per_eip(placement)
        assert not {part for each in eips for part in (each.ipv4, each.ipv6)}.intersection(reserved)
        assert eip(3, 2) in eips
        assert placement.refused[ref("asks")].message == "10.6.0.2 is an address of a Node"
    former = [Placed(policy=ref("p0000"), eip=eip(2), node=NodeName("a"))]
    assert eip(2) in per_eip(run(rules(ranges), claims(2), former=former, reserved=reserved))


def test_where_all_addresses_are_nodes_there_is_none() -> None:
    placement = run(rules(Ranges(ipv4=("10.6.0.1",))), claims(1), reserved=[IPv4Address("10.6.0.1")])
    assert placement.refused[ref("p0000")].reason is RefusalReason.NO_ADDRESS


@pytest.mark.parametrize("asked", [Eip(IPv4Address("10.6.0.5")), Eip(IPv4Address("10.6.0.1"), IPv6Address("fd00::5"))])
def test_what_is_not_in_the_ranges_is_refused(asked: Eip) -> None:
    placement = run(rules(), [Claim(policy=ref("p"), asked=asked)])
    assert placement.refused[ref("p")].reason is RefusalReason.OUT_OF_RANGE


def test_without_ranges_there_are_only_the_nodes_own_addresses() -> None:
    wanted = [Claim(policy=ref("p")), Claim(policy=ref("own"), use_node_ip=True)]
    placement = run(rules(Ranges()), wanted)
    assert placement.refused[ref("p")].reason is RefusalReason.NO_ADDRESS
    (own,) = placement.placed
    assert own.eip is None
    assert own.node in {"a", "b", "c"}


def test_a_lost_nodes_addresses_are_spread_and_nobody_else_moves() -> None:
    before = run(rules(unused()), claims(30))
    after = run(rules(unused()), claims(30), former=before.placed, on=nodes("abc", down="a"))
    assert per_node(after) == {"b": 15, "c": 15}
    for old, new in zip(before.placed, after.placed, strict=True):
        assert old.eip == new.eip
        assert old.node in {new.node, "a"}
    # It comes back, and gets only what is new.
    back = run(rules(unused()), claims(30), former=after.placed)
    assert back == after
    assert per_node(run(rules(unused()), claims(40), former=after.placed))["a"] == 10


def test_without_a_ready_node_addresses_stay() -> None:
    before = run(rules(unused()), claims(10))
    none = run(rules(unused()), claims(11), former=before.placed, on=nodes("abc", down="abc"))
    assert {placed.node for placed in none.placed} == {None}
    assert [placed.eip for placed in none.placed][:10] == [placed.eip for placed in before.placed]
    later = run(rules(unused()), claims(11), former=none.placed, on=nodes("b"))
    assert [placed.eip for placed in later.placed] == [placed.eip for placed in none.placed]
    assert per_node(later) == {"b": 11}


def test_the_last_policy_takes_its_address_with_it() -> None:
    before = run(rules(), [Claim(policy=ref("p"), asked=eip(1))])
    after = run(rules(), [Claim(policy=ref("q", "other"), asked=eip(1, 2))], former=before.placed)
    assert [placed.eip for placed in after.placed] == [eip(1, 2)]


def test_an_address_that_the_ranges_have_lost_is_given_up() -> None:
    before = run(rules(), [Claim(policy=ref("p"))], on=nodes("a"))
    moved = rules(Ranges(ipv4=("10.7.0.1",), ipv6=("fd00:7::1",)))
    (placed,) = run(moved, [Claim(policy=ref("p"))], former=before.placed).placed
    assert placed.eip == Eip(IPv4Address("10.7.0.1"), IPv6Address("fd00:7::1"))


def test_a_second_family_is_added_to_what_is_there() -> None:
    single = rules(Ranges(ipv4=DUAL.ipv4))
    before = run(single, claims(3))
    after = run(rules(), claims(3), former=before.placed)
    assert [p.eip and p.eip.ipv4 for p in after.placed] == [p.eip and p.eip.ipv4 for p in before.placed]
    assert all(placed.eip is not None and placed.eip.ipv6 is not None for placed in after.placed)
    assert [p.eip for p in run(single, claims(3), former=after.placed).placed] == [p.eip for p in before.placed]


def test_own_addresses_move_only_from_a_lost_node() -> None:
    own = [Claim(policy=ref(f"own{number}"), use_node_ip=True) for number in range(6)]
    before = run(rules(Ranges()), own)
    assert per_node(before) == {"a": 2, "b": 2, "c": 2}
    after = run(rules(Ranges()), own, former=before.placed, on=nodes("abc", down="b"))
    assert per_node(after) == {"a": 3, "c": 3}
    assert run(rules(Ranges()), own, former=after.placed) == after


def test_families_of_different_size_are_told() -> None:
    with pytest.raises(RangeError, match="4 IPv4 addresses but 1 IPv6"):
        rules(Ranges(ipv4=DUAL.ipv4, ipv6=("fd00::1",)))


def test_a_thousand_policies_in_a_huge_range_use_a_thousand_addresses() -> None:
    huge = rules(Ranges(policy=AddressPolicy.PREFER_UNUSED, ipv6=("2001:db8::/64",)))
    assert len(per_eip(run(huge, claims(1000)))) == 1000
