"""From a placement to the status, and back: when an address may change hands."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address

import msgspec
import pytest

from coil.crd.egress_gateway import (
    AddressUsage,
    EgressGateway,
    EgressGatewaySpec,
    EgressGatewayStatus,
    EipEntry,
    GatewayNode,
    PolicyRef,
    PolicyUsage,
    Ranges,
)
from coil.crd.egress_gateway_policy import EgressGatewayPolicy, EgressGatewayPolicyStatus, PolicyEip
from coil.crd.meta import Condition, ObjectMeta
from coil.crd.names import NodeName
from coil.eip.claim import Eip, Placed, Refusal, RefusalReason
from coil.eip.gateway_choice import ChoiceReason, NoGateway
from coil.eip.gateway_status import NodeFacts, as_listed, former_of, plan_policy_status, plan_status
from coil.eip.placement import Placement

NOW = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
X = Eip(IPv4Address("10.6.0.1"), IPv6Address("fd00::1"))
OWN = None


def ref(name: str) -> PolicyRef:
    return PolicyRef(namespace="ns", name=name)


def placement(**nodes: str | None) -> Placement:
    """X for each policy, on these nodes."""
    return Placement(
        placed=tuple(
            Placed(policy=ref(name), eip=X, node=None if node is None else NodeName(node))
            for name, node in nodes.items()
        )
    )


def fact(
    name: str, term: int = 1, *, held: bool = True, applied: int | None = None, selected: bool = True
) -> NodeFacts:
    return NodeFacts(name=NodeName(name), phase="Ready", term=term, applied=applied, held=held, selected=selected)


def entry(*policies: str, leaving: int = 0) -> EipEntry:
    return EipEntry(ipv4="10.6.0.1", ipv6="fd00::1", policies=tuple(ref(name) for name in policies), leaving=leaving)


def gateway(*listed: GatewayNode, revision: int = 7) -> EgressGateway:
    return EgressGateway(
        metadata=ObjectMeta(name="eg"),
        spec=EgressGatewaySpec(ranges=Ranges(ipv4=("10.6.0.1-10.6.0.2",), ipv6=("fd00::1-fd00::2",))),
        status=EgressGatewayStatus(revision=revision, node_list=listed),
    )


def node(name: str, *eips: EipEntry, term: int = 1) -> GatewayNode:
    return GatewayNode(name=name, status="Ready", term=term, eips=eips)


def test_a_first_placement_is_listed_at_once() -> None:
    status = plan_status(gateway(revision=0), placement(p="a", q="a"), [fact("a"), fact("b")], now=NOW)
    assert status.node_list == (node("a", entry("p", "q")), node("b"))
    assert status.revision == 1
    assert status.ip_usage == AddressUsage(ipv4_total=2, ipv4_free=1, ipv6_total=2, ipv6_free=1)


def test_how_many_policies_are_served_is_told_beside_the_limit() -> None:
    status = plan_status(gateway(), placement(p="a", q="a"), [fact("a")], limit=7, now=NOW)
    assert status.policy_usage == PolicyUsage(served=2, limit=7)


def test_a_full_gateway_of_the_longest_names_fits_into_an_object() -> None:
    """While all that it has moves, too: etcd takes no more than 1.5 MiB, and after that nobody has a failover."""
    count = 2000  # the chart's eip.limits.policiesPerGateway
    nodes = [NodeName(letter * 253) for letter in "ab"]
    longest = IPv6Address("fd90:e2f1:4732:ffff:ffff:ffff:ffff:0")

    def placed_on(node: NodeName) -> Placement:
        return Placement(
            placed=tuple(
                Placed(
                    policy=PolicyRef(namespace=f"{number:063}", name=f"{number:063}"),
                    eip=Eip(IPv4Address("198.18.0.0") + number, longest + number),
                    node=node,
                )
                for number in range(count)
            )
        )

    moved = gateway(revision=1 << 40)
    facts = [fact(name, applied=0) for name in nodes]
    for target in nodes:
        status = plan_status(moved, placed_on(target), facts, limit=count, now=NOW)
        moved = msgspec.structs.replace(moved, status=status)
        assert sum(len(listed.eips) for listed in status.node_list) >= count
        assert len(msgspec.json.encode(moved)) < 1 << 20
    assert all(eip.leaving for eip in moved.status.node_list[0].eips), "they leave the one before the other has them"


def test_nothing_new_is_the_same_status() -> None:
    before = gateway(revision=0)
    status = plan_status(before, placement(p="a"), [fact("a")], now=NOW)
    again = msgspec.structs.replace(before, status=status)
    assert plan_status(again, placement(p="a"), [fact("a", applied=1)], now=NOW + timedelta(1)) == status


@pytest.mark.parametrize(
    ("facts", "handed_over"),
    [
        (fact("a"), False),
        (fact("a", applied=7), False),
        (fact("a", selected=False), False),
        # Revoked, or revoked and acquired anew.
        (fact("a", held=False), True),
        (fact("a", term=2), True),
        # Older than the status: it may hold a later term by now.
        (fact("a", term=0, held=False), False),
        (None, False),
    ],
)
def test_an_address_is_handed_over_when_its_node_cannot_have_it(facts: NodeFacts | None, handed_over: bool) -> None:
    before = gateway(node("a", entry("p")), node("b"))
    nodes = [fact("b")] if facts is None else [facts, fact("b")]
    status = plan_status(before, placement(p="b"), nodes, now=NOW)
    listed = {one.name: one.eips for one in status.node_list}
    assert status.revision == 8
    if handed_over:
        assert listed == {"a": (), "b": (entry("p"),)}
        assert as_listed(status, placement(p="b"))[0].node == "b"
    else:
        assert listed == {"a": (entry("p", leaving=8),), "b": ()}
        assert as_listed(status, placement(p="b"))[0] == Placed(policy=ref("p"), eip=X, node=None)


@pytest.mark.parametrize(("applied", "gone"), [(None, False), (7, False), (8, True), (9, True)])
def test_what_leaves_is_waited_for(applied: int | None, gone: bool) -> None:
    before = gateway(node("a", entry("p", leaving=8)), node("b"), revision=8)
    status = plan_status(before, placement(p="b"), [fact("a", applied=applied, selected=False), fact("b")], now=NOW)
    if gone:
        assert status.node_list == (node("b", entry("p")),)
        assert status.revision == 9
    else:
        assert status.node_list == before.status.node_list
        assert status.revision == 8
    assert status.ip_usage.ipv4_free == 1


def test_what_leaves_may_stay_after_all() -> None:
    before = gateway(node("a", entry("p", leaving=8)), revision=8)
    status = plan_status(before, placement(p="a"), [fact("a")], now=NOW)
    assert status.node_list == (node("a", entry("p")),)
    assert status.revision == 9


def test_an_address_without_policies_leaves_and_is_free_then() -> None:
    before = gateway(node("a", entry("p")))
    leaving = plan_status(before, Placement(), [fact("a")], now=NOW)
    assert leaving.node_list == (node("a", entry(leaving=8)),)
    assert leaving.ip_usage.ipv4_free == 1
    gone = plan_status(msgspec.structs.replace(before, status=leaving), Placement(), [fact("a", applied=8)], now=NOW)
    assert gone.node_list == (node("a"),)
    assert gone.ip_usage.ipv4_free == 2


def test_half_of_a_pair_leaves_alone() -> None:
    before = gateway(node("a", EipEntry(ipv4="10.6.0.1", ipv6="fd00::2", policies=(ref("p"),))))
    status = plan_status(before, placement(p="a"), [fact("a")], now=NOW)
    assert status.node_list == (node("a", entry("p"), EipEntry(ipv6="fd00::2", leaving=8)),)


def test_a_new_term_is_for_what_is_listed_with_it() -> None:
    before = gateway(node("a", entry("p"), term=1))
    status = plan_status(before, placement(p="a"), [fact("a", term=2)], now=NOW)
    assert status.node_list == (node("a", entry("p"), term=2),)
    assert status.revision == 8


def test_old_news_take_no_term_back() -> None:
    before = gateway(node("a", entry("p"), term=3))
    assert plan_status(before, placement(p="a"), [fact("a", term=2)], now=NOW).node_list == before.status.node_list


def test_own_addresses_need_no_handing_over() -> None:
    own = GatewayNode(name="a", status="Ready", term=1, eips=(EipEntry(policies=(ref("p"),)),))
    moved = Placement(placed=(Placed(policy=ref("p"), eip=OWN, node=NodeName("b")),))
    status = plan_status(gateway(own), moved, [fact("a"), fact("b")], now=NOW)
    assert status.node_list == (node("a"), node("b", EipEntry(policies=(ref("p"),))))
    assert as_listed(status, moved) == moved.placed


def test_conditions_of_a_gateway() -> None:
    def found(status: EgressGatewayStatus) -> dict[str, tuple[str, str]]:
        return {one.type: (one.status, one.reason) for one in status.conditions}

    before = gateway(revision=0)
    status = plan_status(before, placement(p="a"), [fact("a")], now=NOW)
    assert found(status) == {"Ready": ("True", "NodeReady"), "Exhausted": ("False", "AddressesFree")}
    assert {one.last_transition_time for one in status.conditions} == {NOW.replace(microsecond=0)}
    other = Eip(IPv4Address("10.6.0.2"), IPv6Address("fd00::2"))
    full = Placement(placed=(*placement(p="a").placed, Placed(policy=ref("q"), eip=other, node=None)))
    later = plan_status(
        msgspec.structs.replace(before, status=status), full, [fact("a", held=False)], now=NOW + timedelta(1)
    )
    assert found(later) == {"Ready": ("False", "NoNode"), "Exhausted": ("True", "NoFreeAddress")}


def test_counts_of_addresses_end_where_the_api_ends() -> None:
    huge = EgressGateway(metadata=ObjectMeta(name="eg"), spec=EgressGatewaySpec(ranges=Ranges(ipv6=("fd00::/48",))))
    usage = plan_status(huge, Placement(), [], now=NOW).ip_usage
    assert usage == AddressUsage(ipv6_total=2**63 - 1, ipv6_free=2**63 - 1)


def policy(name: str, status: EgressGatewayPolicyStatus = EgressGatewayPolicyStatus()) -> EgressGatewayPolicy:  # noqa: B008
    return EgressGatewayPolicy(metadata=ObjectMeta(name=name, namespace="ns"), status=status)


def test_former_placements_survive_the_loss_of_every_node() -> None:
    kept = EgressGatewayPolicyStatus(egress_gateway_name="eg", eip=PolicyEip(ipv4="10.6.0.2"), node="a")
    elsewhere = EgressGatewayPolicyStatus(egress_gateway_name="other", eip=PolicyEip(ipv4="10.6.0.2"))
    broken = EgressGatewayPolicyStatus(egress_gateway_name="eg", eip=PolicyEip(ipv4="x"))
    listed = gateway(node("a", entry("p")), node("b", entry("q", leaving=7), EipEntry(policies=(ref("own"),))))
    policies = [policy("p", kept), policy("q", kept), policy("r", elsewhere), policy("s", broken), policy("own")]
    assert {placed.policy.name: placed for placed in former_of(listed, policies)} == {
        "p": Placed(policy=ref("p"), eip=X, node=NodeName("a")),
        "q": Placed(policy=ref("q"), eip=Eip(IPv4Address("10.6.0.2")), node=None),
        "own": Placed(policy=ref("own"), eip=None, node=NodeName("b")),
    }


def test_status_of_a_policy() -> None:
    placed = Placed(policy=ref("p"), eip=X, node=NodeName("a"))
    status = plan_policy_status(policy("p"), "eg", placed, generation=3, now=NOW)
    assert (status.observed_generation, status.egress_gateway_name, status.eip, status.node) == (
        3,
        "eg",
        PolicyEip(ipv4="10.6.0.1", ipv6="fd00::1"),
        "a",
    )
    assert [(one.type, one.status, one.reason) for one in status.conditions] == [("Ready", "True", "Placed")]
    assert plan_policy_status(policy("p", status), "eg", placed, generation=3, now=NOW + timedelta(1)) == status
    waiting = plan_policy_status(
        policy("p", status), "eg", Placed(policy=ref("p"), eip=X, node=None), generation=3, now=NOW + timedelta(1)
    )
    assert (waiting.eip, waiting.node) == (status.eip, "")
    assert waiting.conditions[0].last_transition_time == NOW.replace(microsecond=0) + timedelta(1)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Refusal(RefusalReason.PAIR, "text"), "EgressIPPairConflict"),
        (NoGateway(ChoiceReason.NOT_ALLOWED, "text"), "GatewayNotAllowed"),
    ],
)
def test_status_of_a_policy_that_gets_nothing(outcome: Refusal | NoGateway, reason: str) -> None:
    had = EgressGatewayPolicyStatus(egress_gateway_name="eg", eip=PolicyEip(ipv4="10.6.0.1"), node="a")
    status = plan_policy_status(policy("p", had), "", outcome, generation=1, now=NOW)
    assert (status.eip, status.node) == (PolicyEip(), "")
    since = NOW.replace(microsecond=0)
    assert status.conditions == (
        Condition(type="Ready", status="False", reason=reason, message="text", last_transition_time=since),
    )
