"""What is renewed when: single decisions, and years of them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from coil.admission.certificate import (
    CertificateError,
    KeyPair,
    is_issued_by,
    issue_authority,
    issue_server,
    read_server,
    split_bundle,
)
from coil.admission.identity import (
    BUNDLE_LIMIT,
    HOST_LIMIT,
    Identity,
    Terms,
    parse_identity,
    plan_identity,
    render_identity,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOSTS = ("webhook.kube-system.svc", "192.0.2.1")
TERMS = Terms(authority=100 * DAY, server=10 * DAY, propagation=DAY)


def plan(
    stored: Identity | None,
    *,
    after: timedelta = timedelta(),
    hosts: tuple[str, ...] = HOSTS,
    trusted: bytes = b"",
) -> Identity:
    return plan_identity(stored, name="test", hosts=hosts, now=NOW + after, terms=TERMS, trusted=trusted)


@pytest.fixture(scope="module")
def first() -> Identity:
    return plan(None)


def vouched(server: KeyPair, bundle: bytes) -> bool:
    return any(is_issued_by(server, authority) for authority, _ in split_bundle(bundle))


def test_the_first_one_is_whole_and_stays(first: Identity) -> None:
    assert vouched(first.server, first.bundle)
    assert read_server(first.server).hosts == set(HOSTS)
    assert plan(first) is first
    assert plan(first, after=6 * DAY) is first


def test_it_survives_the_way_through_a_secret(first: Identity) -> None:
    assert parse_identity(render_identity(first)) == first


@pytest.mark.parametrize("part", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
def test_a_secret_that_lacks_something_is_no_identity(first: Identity, part: str) -> None:
    files = render_identity(first)
    del files[part]
    with pytest.raises(CertificateError, match=part):
        parse_identity(files)


def test_a_server_certificate_is_renewed_after_two_thirds_and_nothing_else_is(first: Identity) -> None:
    second = plan(first, after=7 * DAY)
    assert second.server != first.server
    assert (second.authority, second.bundle) == (first.authority, first.bundle)


def test_an_authority_is_renewed_beside_the_old_one_and_signs_nothing_at_first(first: Identity) -> None:
    old = replace(first, server=issue_server(first.authority, hosts=HOSTS, now=NOW + 60 * DAY, life=TERMS.server))
    second = plan(old, after=67 * DAY)
    assert second.authority != old.authority
    assert [part for part, _ in split_bundle(second.bundle)] == [
        second.authority.certificate,
        old.authority.certificate,
    ]
    # Its two thirds are over as well, but the API server may not have heard of the new authority yet.
    assert second.server == old.server
    assert plan(second, after=67.5 * DAY) is second
    third = plan(second, after=68 * DAY)
    assert is_issued_by(third.server, second.authority.certificate)


def test_what_has_ended_is_replaced_at_once_settled_or_not(first: Identity) -> None:
    late = plan(first, after=101 * DAY)
    assert late.authority != first.authority
    assert is_issued_by(late.server, late.authority.certificate)
    assert len(split_bundle(late.bundle)) == 1, "nothing is to be said for one that has ended"


def test_a_clock_that_was_ahead_leaves_nothing_that_is_not_valid_yet(first: Identity) -> None:
    ahead = plan(first, after=20_000 * DAY)
    mended = plan(ahead)
    facts = read_server(mended.server)
    assert facts.validity.includes(NOW)
    assert plan(mended) is mended


def test_replicas_with_different_hosts_agree(first: Identity) -> None:
    other = plan(first, hosts=("198.51.100.7",))
    assert read_server(other.server).hosts == {*HOSTS, "198.51.100.7"}
    assert plan(other) is other
    many = tuple(f"192.0.2.{number}" for number in range(1, HOST_LIMIT + 1))
    assert read_server(plan(other, hosts=many).server).hosts == set(many)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda identity, other: replace(identity, server=other.server),
        lambda identity, other: replace(identity, server=KeyPair(identity.server.certificate, other.server.key)),
        lambda identity, other: replace(identity, server=KeyPair(b"", b"")),
    ],
)
def test_a_spoilt_server_certificate_is_replaced(first: Identity, spoil: object) -> None:
    assert callable(spoil)
    other = plan(None)
    mended = plan(spoil(first, other))
    assert mended.authority == first.authority
    assert vouched(mended.server, first.bundle)
    assert plan(mended) is mended


def test_an_authority_without_its_key_is_replaced_and_still_trusted(first: Identity) -> None:
    spoilt = replace(first, authority=KeyPair(first.authority.certificate, b"lost"))
    mended = plan(spoilt)
    assert mended.authority.certificate != first.authority.certificate
    assert vouched(first.server, mended.bundle)
    assert plan(mended) is mended


def test_those_who_still_serve_the_old_certificate_stay_trusted_but_not_for_ever() -> None:
    trusted = b""
    for _ in range(2 * BUNDLE_LIMIT):
        identity = plan(None, trusted=trusted)
        assert vouched(identity.server, identity.bundle)
        trusted = identity.bundle
    assert len(split_bundle(trusted)) == BUNDLE_LIMIT


def test_an_old_bundle_of_rubbish_is_left_behind() -> None:
    assert len(split_bundle(plan(None, trusted=b"rubbish").bundle)) == 1


def test_for_a_year_each_certificate_was_trusted_before_it_was_shown() -> None:
    """Looked at every twelve hours, which is as long as the API server may take here to hear of a bundle."""
    identity = plan(None)
    writes = 0
    authorities = {identity.authority}
    for hours in range(0, 365 * 24, 12):
        published = identity.bundle
        following = plan(identity, after=timedelta(hours=hours))
        writes += following is not identity
        identity = following
        authorities.add(identity.authority)
        assert read_server(identity.server).validity.includes(NOW + timedelta(hours=hours))
        assert vouched(identity.server, published)
    assert len(authorities) == 6, "one each 67 days"
    assert writes <= 365 / 6.5 + 6


def test_our_authority_is_one_for_others_too() -> None:
    """A Secret that cert-manager or an admin has made of the same parts is taken as it is."""
    authority = issue_authority("elsewhere", now=NOW, life=100 * DAY)
    server = issue_server(authority, hosts=HOSTS, now=NOW, life=10 * DAY)
    theirs = Identity(server, authority, authority.certificate)
    assert plan(theirs) is theirs
