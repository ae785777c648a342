"""The Lease's texts, terms and times; what an agent may hold; what a controller sees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.egress_gateway import EgressGateway, EgressGatewayStatus, EipEntry, GatewayNode, PolicyRef
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.gateway_lease import (
    ANNOTATION_APPLIED,
    ANNOTATION_FENCE,
    LONGEST_FENCE,
    UNKNOWN_FENCE,
    GatewayLease,
    LeaseExpiry,
    lease_name,
    parse_gateway_lease,
    render_annotations,
)
from coil.eip.lease_renewal import LeaseRenewal, claim_term, held_entries, known_term, merge_applied

A = NodeName("a")


def lease(version: int, term: int = 1, *, holder: str = "a", fence: float = 0.6) -> GatewayLease:
    return GatewayLease(node=A, version=str(version), holder=holder, term=term, fence=fence)


@given(st.integers(1, 60_000), st.dictionaries(st.uuids().map(str), st.integers(0, 2**40), max_size=4))
def test_annotations_are_read_as_they_are_written(milliseconds: int, applied: dict[str, int]) -> None:
    annotations = render_annotations(fence=milliseconds / 1000, applied=applied)
    assert annotations[ANNOTATION_FENCE] == str(milliseconds)
    found = parse_gateway_lease(name=lease_name(A), version="9", holder="a", transitions=3, annotations=annotations)
    assert found == GatewayLease(node=A, version="9", holder="a", term=3, fence=milliseconds / 1000, applied=applied)


@pytest.mark.parametrize("fence", ["", "-1", "0.6", "x", "9" * 5000, "٣"])
@pytest.mark.parametrize("applied", ["", "[]", "{", '{"a": "b"}'])
def test_annotations_that_cannot_be_read_are_absent(fence: str, applied: str) -> None:
    annotations = {ANNOTATION_FENCE: fence, ANNOTATION_APPLIED: applied}
    found = parse_gateway_lease(name="coil-eip-a", version="9", holder="", transitions=3, annotations=annotations)
    assert found is not None
    assert (found.fence, dict(found.applied), found.held) == (UNKNOWN_FENCE, {}, False)


@pytest.mark.parametrize("milliseconds", ["60001", "999999999"])
def test_a_lease_is_believed_for_a_minute_at_most(milliseconds: str) -> None:
    """Or a node could keep its addresses for as long as it says after it has gone."""
    annotations = {ANNOTATION_FENCE: milliseconds}
    found = parse_gateway_lease(name="coil-eip-a", version="9", holder="a", transitions=3, annotations=annotations)
    assert found is not None
    assert found.fence == LONGEST_FENCE == 60.0


@pytest.mark.parametrize("name", ["coil-eip-", "coil", "other-a"])
def test_other_leases_are_nobodys(name: str) -> None:
    assert parse_gateway_lease(name=name, version="9", holder="a", transitions=3, annotations={}) is None


@pytest.mark.parametrize(
    ("lease", "known", "term"),
    [
        (None, 0, 1),
        (None, 4, 5),
        (lease(9, 3), 0, 3),
        (lease(9, 3), 3, 3),
        (lease(9, 3), 4, 5),
        (lease(9, 3, holder=""), 0, 4),
        (lease(9, 3, holder=""), 7, 8),
        (lease(9, 3, holder="b"), 0, 4),
    ],
)
def test_the_term_of_a_claim(lease: GatewayLease | None, known: int, term: int) -> None:
    assert claim_term(lease, A, known=known) == term


def test_what_was_applied_is_never_taken_back() -> None:
    lease = GatewayLease(node=A, version="1", holder="a", term=1, applied={"u1": 5, "u2": 7})
    assert merge_applied(lease, {"u1": 3, "u3": 1}) == {"u1": 5, "u2": 7, "u3": 1}
    assert merge_applied(None, {"u1": 3}) == {"u1": 3}


def renew(renewal: LeaseRenewal, lease: GatewayLease | None, *, known: int = 0) -> GatewayLease | None:
    return renewal.renew(lease, known_term=known, applied={}, gateways=()).lease


def test_a_renewal_counts_from_its_sending() -> None:
    renewal = LeaseRenewal(A, fence=0.6)
    written = renew(renewal, None)
    assert written == GatewayLease(node=A, version="", holder="a", term=1, fence=0.6)
    assert renewal.term(100.0) is None
    assert renewal.acknowledge(1, sent=100.0, now=100.4)
    assert renewal.remaining(100.5) == pytest.approx(0.1)
    assert renewal.term(100.59) == 1
    assert (renewal.term(100.61), renewal.remaining(101.0), renewal.begun_term) == (None, 0, 1)
    assert renewal.expire(100.59) == ""
    assert renewal.expire(100.61)
    assert renewal.begun_term is None


def test_an_answer_that_comes_too_late_begins_nothing() -> None:
    renewal = LeaseRenewal(A, fence=0.6)
    renew(renewal, None)
    assert not renewal.acknowledge(1, sent=100.0, now=100.7)
    assert renewal.term(100.7) is None
    assert renewal.begun_term is None


def test_an_answer_of_an_earlier_renewal_shortens_nothing_and_one_of_an_earlier_term_counts_for_nothing() -> None:
    renewal = LeaseRenewal(A, fence=0.6)
    renew(renewal, None)
    renewal.acknowledge(1, sent=100.2, now=100.2)
    assert not renewal.acknowledge(1, sent=100.0, now=100.3)
    assert renewal.remaining(100.3) == pytest.approx(0.5)
    renew(renewal, lease(9, 1, holder=""))
    assert not renewal.acknowledge(1, sent=100.4, now=100.5)
    assert renewal.term(100.5) is None


@pytest.mark.parametrize(
    ("lease", "written", "ended"),
    [
        (lease(9, 1), (1, "9"), ""),
        (lease(9, 1, holder=""), (2, "9"), "revoked"),
        (None, (2, ""), "the Lease was deleted"),
        (lease(9, 1, holder="b"), None, "the Lease names b"),
        (lease(9, 4), (4, "9"), "the term was changed by another writer"),
    ],
)
def test_a_term_ends_by_what_the_lease_says(
    lease: GatewayLease | None, written: tuple[int, str] | None, ended: str
) -> None:
    renewal = LeaseRenewal(A)
    renew(renewal, None)
    renewal.acknowledge(1, sent=100.0, now=100.0)
    decision = renewal.renew(lease, known_term=0, applied={}, gateways=())
    assert (decision.lease and (decision.lease.term, decision.lease.version)) == written
    assert decision.ended == ended
    assert renewal.term(100.0) == (None if ended else 1)


def test_a_lease_is_released_in_its_term_and_only_if_it_is_ours() -> None:
    renewal = LeaseRenewal(A)
    renew(renewal, None)
    renewal.acknowledge(1, sent=100.0, now=100.0)
    decision = renewal.release(lease(9, 1), applied={"u": 3}, gateways={"u"})
    assert decision.lease is not None
    assert (decision.lease.holder, decision.lease.term, decision.lease.applied) == ("", 1, {"u": 3})
    assert decision.ended == "not needed any more"
    assert renewal.term(100.0) is None
    for other in (None, lease(9, 7, holder="b"), lease(9, 8, holder="")):
        decision = renewal.release(other, applied={}, gateways=())
        assert (decision.lease, decision.ended) == (None, "")
    claimed = renew(renewal, None)
    assert claimed is not None
    assert claimed.term == 9


def test_the_kernel_answers_only_for_addresses_of_the_term_that_is_held() -> None:
    renewal = LeaseRenewal(A, fence=0.6)
    renew(renewal, None, known=6)
    renewal.acknowledge(7, sent=100.0, now=100.0)
    timeouts = [renewal.kernel_timeout(100.2, held_for=term) for term in (None, 6, 7, 8)]
    assert timeouts == [0, 0, pytest.approx(0.4), 0]
    assert renewal.kernel_timeout(100.6, held_for=7) == 0


def gateway(term: int = 2, revision: int = 5) -> EgressGateway:
    policies = (PolicyRef(namespace="ns", name="p"),)
    entries = (
        EipEntry(ipv4="10.6.0.1", policies=policies),
        EipEntry(ipv4="10.6.0.2", leaving=4),
        EipEntry(policies=policies),
    )
    listed = (GatewayNode(name="a", term=term, eips=entries), GatewayNode(name="b", term=9, eips=entries))
    return EgressGateway(
        metadata=ObjectMeta(name="eg", uid="u"), status=EgressGatewayStatus(revision=revision, node_list=listed)
    )


@pytest.mark.parametrize(
    ("term", "applied", "held"), [(2, 0, True), (2, 5, True), (2, 6, False), (1, 0, False), (3, 0, False)]
)
def test_what_a_node_may_hold(term: int, applied: int, held: bool) -> None:
    found = held_entries(gateway(), A, term=term, applied={"u": applied, "other": 99})
    assert [entry.ipv4 for entry in found] == (["10.6.0.1"] if held else [])


def test_the_highest_known_term() -> None:
    assert known_term([gateway(2), gateway(4), gateway(3)], A) == 4
    assert known_term([gateway(2)], NodeName("c")) == 0


def test_a_lease_lapses_when_it_does_not_change() -> None:
    expiry = LeaseExpiry()
    assert expiry.next_deadline() is None
    expiry.observe(lease(1), 10.0)
    expiry.observe(lease(1), 10.5)
    assert expiry.next_deadline() == pytest.approx(10.7)
    assert expiry.lapsed(10.69) == ()
    expiry.observe(lease(2), 10.69)
    assert expiry.lapsed(11.0) == ()
    (lapse,) = expiry.lapsed(11.4)
    assert (lapse.node, lapse.term, lapse.lease) == (A, 1, lease(2))


def test_a_revoked_lease_does_not_lapse_and_old_news_do_not_count() -> None:
    expiry = LeaseExpiry()
    expiry.observe(lease(1), 10.0)
    expiry.observe(lease(3, holder=""), 11.0)
    assert expiry.next_deadline() is None
    expiry.observe(lease(2), 11.1)
    assert expiry.lease(A) == lease(3, holder="")
    expiry.observe(lease(4, term=2), 11.2)
    assert expiry.lease(A) == lease(4, term=2)
    expiry.observe(lease(3, holder=""), 11.3)
    assert expiry.lease(A) == lease(4, term=2)


def test_a_missing_lease_lapses_after_the_fence_that_it_had() -> None:
    expiry = LeaseExpiry()
    expiry.observe(lease(1, term=3), 10.0)
    expiry.miss(A, term=2, now=11.0)
    expiry.miss(A, term=2, now=11.5)
    (lapse,) = expiry.lapsed(11.71)
    assert (lapse.lease, lapse.term) == (None, 3)
    expiry.observe(lease(7, term=1), 11.8)
    assert expiry.lease(A) == lease(7, term=1)


def test_one_that_was_never_seen_is_given_long() -> None:
    expiry = LeaseExpiry()
    expiry.miss(A, term=2, now=10.0)
    assert expiry.next_deadline() == pytest.approx(10.1 + UNKNOWN_FENCE)


def test_only_nodes_that_matter_are_kept() -> None:
    expiry = LeaseExpiry()
    expiry.observe(lease(1), 10.0)
    expiry.retain([A])
    assert expiry.lease(A) is not None
    expiry.retain([])
    assert expiry.lease(A) is None


@pytest.mark.parametrize(
    ("live", "answered", "due"),
    [
        (lease(1), 20.05, True),
        (lease(1), 20.2, False),
        (lease(2), 20.05, False),
        (lease(2, holder=""), 20.05, False),
        (lease(2, term=0), 20.05, False),
        (None, 20.05, False),
    ],
)
def test_a_lapse_is_confirmed_by_a_quick_read_without_change(
    live: GatewayLease | None, answered: float, due: bool
) -> None:
    expiry = LeaseExpiry()
    expiry.observe(lease(1), 10.0)
    (lapse,) = expiry.lapsed(20.0)
    assert expiry.confirm(lapse, live, asked=20.0, answered=answered) is due
    assert expiry.lease(A) == live
    # Whatever the answer was: it is not asked for again at once, unless it is to be revoked.
    assert bool(expiry.lapsed(answered)) is due


def test_a_missing_lease_is_confirmed_missing() -> None:
    expiry = LeaseExpiry()
    expiry.miss(A, term=2, now=0.0)
    (lapse,) = expiry.lapsed(20.0)
    assert expiry.confirm(lapse, None, asked=20.0, answered=20.0)
    assert not expiry.confirm(lapse, lease(5), asked=20.0, answered=20.0)
    assert expiry.lease(A) == lease(5)
