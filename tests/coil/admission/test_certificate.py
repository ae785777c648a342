"""Certificates as we make and read them; what proves them is a TLS handshake, in test_serving_context."""

from datetime import UTC, datetime, timedelta

import pytest

from coil.admission.certificate import (
    CLOCK_SKEW,
    CertificateError,
    KeyPair,
    Validity,
    is_issued_by,
    issue_authority,
    issue_server,
    read_authority,
    read_server,
    split_bundle,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
HOSTS = ("webhook.kube-system.svc", "192.0.2.1", "fd00::1")


@pytest.fixture(scope="module")
def authority() -> KeyPair:
    return issue_authority("test", now=NOW, life=10 * YEAR)


def test_a_server_says_who_it_is_and_who_vouches_for_it(authority: KeyPair) -> None:
    pair = issue_server(authority, hosts=HOSTS, now=NOW, life=YEAR)
    facts = read_server(pair)
    assert facts.hosts == set(HOSTS)
    assert facts.validity == Validity(NOW - CLOCK_SKEW, NOW + YEAR)
    assert is_issued_by(pair, authority.certificate)
    assert not is_issued_by(pair, issue_authority("other", now=NOW, life=YEAR).certificate)


def test_a_server_does_not_outlive_its_authority(authority: KeyPair) -> None:
    late = NOW + 9.5 * YEAR
    assert read_server(issue_server(authority, hosts=HOSTS, now=late, life=YEAR)).validity.until == NOW + 10 * YEAR


def test_an_authority_has_its_time(authority: KeyPair) -> None:
    validity = read_authority(authority)
    assert [validity.includes(NOW + age) for age in (-2 * CLOCK_SKEW, timedelta(), 10 * YEAR)] == [False, True, False]
    assert [validity.is_aging(NOW + age) for age in (timedelta(), 6 * YEAR, 7 * YEAR)] == [False, False, True]


def test_a_bundle_is_taken_apart(authority: KeyPair) -> None:
    other = issue_authority("other", now=NOW, life=YEAR)
    parts = split_bundle(authority.certificate + other.certificate)
    assert [part for part, _ in parts] == [authority.certificate, other.certificate]


def test_the_key_is_in_no_text(authority: KeyPair) -> None:
    assert "PRIVATE" not in repr(authority)
    assert authority.key.splitlines()[1].decode() not in repr(authority)


@pytest.mark.parametrize(
    "broken",
    [
        lambda pair, _: KeyPair(b"", pair.key),
        lambda pair, _: KeyPair(pair.certificate[:-40], pair.key),
        lambda pair, _: KeyPair(b"\xff\x00", pair.key),
        lambda pair, _: KeyPair(pair.certificate, b""),
        lambda pair, _: KeyPair(pair.certificate, pair.key[: len(pair.key) // 2]),
        lambda pair, _: KeyPair(pair.certificate, pair.certificate),
        lambda pair, other: KeyPair(pair.certificate, other.key),
    ],
)
def test_a_broken_pair_is_told_from_a_good_one(authority: KeyPair, broken: object) -> None:
    assert callable(broken)
    pair = issue_server(authority, hosts=HOSTS, now=NOW, life=YEAR)
    for read in (read_server, read_authority):
        with pytest.raises(CertificateError) as error:
            read(broken(pair, authority))
        assert "PRIVATE" not in str(error.value)


def test_a_server_is_no_authority(authority: KeyPair) -> None:
    with pytest.raises(CertificateError, match="not one of an authority"):
        read_authority(issue_server(authority, hosts=HOSTS, now=NOW, life=YEAR))


def test_a_machine_that_believes_it_is_1970_can_still_issue() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    made = issue_authority("early", now=epoch, life=YEAR)
    assert read_authority(made).includes(epoch)
