"""A webhook server's identity and when to renew which part of it: the decision, without clock, input or output.

An identity is a server certificate, the authority that signs it, and the bundle of authorities that the API server
is to trust. Replicas share one, so a plan must be stable: what one of them has just written, another, with a clock
that is not an hour off, leaves as it is.

How an authority is replaced without a moment in which a server is not trusted:

    two thirds of its life are over     a new authority; the bundle has both; servers still show the old certificate
    an hour later at the earliest       everybody trusts both; a server certificate that is due is signed by the new
    the old one has ended               it leaves the bundle with the next authority
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from coil.admission.certificate import (
    CLOCK_SKEW,
    CertificateError,
    KeyPair,
    is_issued_by,
    issue_authority,
    issue_server,
    read_authority,
    read_server,
    split_bundle,
)

BUNDLE_LIMIT = 4
"""Authorities that are trusted at once, however often somebody deletes the Secret."""

HOST_LIMIT = 16
"""Names in one certificate. Replicas with different names agree on all of theirs, up to this many."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How long things live. `propagation`: how old an authority is before it signs what need not be signed now."""

    authority: timedelta = timedelta(days=3650)
    server: timedelta = timedelta(days=365)
    propagation: timedelta = timedelta(hours=1)


DEFAULT_TERMS = Terms()


@dataclass(frozen=True, slots=True)
class Identity:
    """`bundle` is PEM, the certificate of `authority` first."""

    server: KeyPair
    authority: KeyPair
    bundle: bytes


def parse_identity(files: Mapping[str, bytes]) -> Identity:
    """From the data of a Secret, whose worth `plan_identity` decides on. Raises CertificateError."""
    try:
        server = KeyPair(files["tls.crt"], files["tls.key"])
        authority = KeyPair(split_bundle(files["ca.crt"])[0][0], files["ca.key"])
    except KeyError as missing:
        raise CertificateError(f"{missing.args[0]} is missing") from None
    return Identity(server, authority, files["ca.crt"])


def render_identity(identity: Identity) -> dict[str, bytes]:
    """The data of a Secret, under the names that kubernetes.io/tls and cert-manager use."""
    return {
        "tls.crt": identity.server.certificate,
        "tls.key": identity.server.key,
        "ca.crt": identity.bundle,
        "ca.key": identity.authority.key,
    }


def plan_identity(
    stored: Identity | None,
    *,
    name: str,
    hosts: Collection[str],
    now: datetime,
    terms: Terms = DEFAULT_TERMS,
    trusted: bytes = b"",
) -> Identity:
    """The identity to have: `stored` itself as long as nothing of it is due.

    `trusted` are authorities whose servers may still run: a new authority is put beside them.
    """
    planned = stored
    if planned is None or not _is_standing(planned.authority, now):
        authority = issue_authority(name, now=now, life=terms.authority)
        before = trusted if planned is None else planned.bundle + trusted
        bundle = _bundle(authority.certificate, before, now)
        server = None if planned is None else planned.server
        planned = Identity(server or _issue(authority, hosts, now, terms), authority, bundle)
    names = _plan_hosts(planned, hosts, now, terms)
    if names:
        planned = Identity(_issue(planned.authority, names, now, terms), planned.authority, planned.bundle)
    return planned


def _issue(authority: KeyPair, hosts: Collection[str], now: datetime, terms: Terms) -> KeyPair:
    return issue_server(authority, hosts=hosts, now=now, life=terms.server)


def _is_standing(authority: KeyPair, now: datetime) -> bool:
    """Whether it may go on signing."""
    try:
        validity = read_authority(authority)
    except CertificateError:
        return False
    return validity.includes(now) and not validity.is_aging(now)


def _plan_hosts(identity: Identity, hosts: Collection[str], now: datetime, terms: Terms) -> Collection[str]:
    """The names for a new server certificate; none if the present one is good."""
    try:
        facts = read_server(identity.server)
        trusted = any(is_issued_by(identity.server, each) for each, _ in split_bundle(identity.bundle))
    except CertificateError:
        return hosts
    if not trusted or not facts.validity.includes(now):
        return hosts
    if not facts.hosts.issuperset(hosts):
        # Whoever asked for the other names may still run, and would have them back.
        union = facts.hosts.union(hosts)
        return union if len(union) <= HOST_LIMIT else hosts
    propagated = now - read_authority(identity.authority).since >= CLOCK_SKEW + terms.propagation
    return hosts if facts.validity.is_aging(now) and propagated else ()


def _bundle(newest: bytes, before: bytes, now: datetime) -> bytes:
    """`newest`, and what of `before` is still good for something, each once."""
    try:
        older = [each for each, validity in split_bundle(before) if now < validity.until] if before else []
    except CertificateError:
        older = []
    return b"".join(list(dict.fromkeys([newest, *older]))[:BUNDLE_LIMIT])
