"""Certificates and keys as PEM: issued, read, and checked. No input or output, no clock.

ECDSA on P-256, which every client of the last ten years accepts and which is made in a fraction of a millisecond.
A key never appears in a `repr`, and so in no log line.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCK_SKEW = timedelta(hours=1)
"""How much earlier a certificate is valid than it was made: not all clocks of a cluster agree."""

_KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class CertificateError(Exception):
    """A certificate or a key that cannot be used; the message says why, and never what the key is."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM: a certificate, followed by intermediate ones if there are any, and its private key."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Validity:
    """The time in which a certificate is good for anything."""

    since: datetime
    until: datetime

    def includes(self, now: datetime) -> bool:
        return self.since <= now < self.until

    def is_aging(self, now: datetime) -> bool:
        """Whether two thirds are over: time to replace it, and time enough for replacing it to fail for long."""
        return now - self.since >= (self.until - self.since) * 2 / 3


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server's certificate says about itself. `hosts` are names and addresses as text."""

    validity: Validity
    hosts: frozenset[str]


def issue_authority(name: str, *, now: datetime, life: timedelta) -> KeyPair:
    """A new self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"{name} {now:%Y-%m-%dT%H:%M:%SZ}")
    builder = (
        _builder(key, subject=subject, issuer=subject, validity=Validity(now - CLOCK_SKEW, now + life))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return _signed(builder, key=key, signer=key)


def issue_server(authority: KeyPair, *, hosts: Collection[str], now: datetime, life: timedelta) -> KeyPair:
    """A new certificate for a server at `hosts`, names or addresses; it never outlives its authority."""
    issuer, signer = _load_authority(authority)
    until = min(now + life, issuer.not_valid_after_utc)
    names = sorted(hosts)
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(key, subject=_subject(names[0]), issuer=issuer.subject, validity=Validity(now - CLOCK_SKEW, until))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )
    return _signed(builder, key=key, signer=signer)


def read_authority(authority: KeyPair) -> Validity:
    """When an authority may sign. Raises CertificateError when it never may."""
    certificate, _ = _load_authority(authority)
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError) as error:
        raise CertificateError(f"the authority's certificate has no usable constraints: {error}") from error
    if not constraints.ca:
        raise CertificateError("the authority's certificate is not one of an authority")
    return _validity(certificate)


def read_server(pair: KeyPair) -> ServerFacts:
    """What a server can show of itself. Raises CertificateError, also when the key is another certificate's."""
    certificate, _ = _load(pair)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ServerFacts(_validity(certificate), frozenset())
    except ValueError as error:
        raise CertificateError(f"the certificate's names cannot be read: {error}") from error
    hosts = {
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    }
    return ServerFacts(_validity(certificate), frozenset(hosts))


def is_issued_by(pair: KeyPair, authority: bytes) -> bool:
    """Whether the authority whose certificate this is has signed the pair's. Raises CertificateError."""
    (certificate, *_), (issuer, *_) = _certificates(pair.certificate), _certificates(authority)
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def split_bundle(bundle: bytes) -> list[tuple[bytes, Validity]]:
    """The certificates of a bundle, each as PEM, with its validity. Raises CertificateError."""
    found = _certificates(bundle)
    return [(each.public_bytes(serialization.Encoding.PEM), _validity(each)) for each in found]


def _load(pair: KeyPair) -> tuple[x509.Certificate, PrivateKeyTypes]:
    certificate = _certificates(pair.certificate)[0]
    try:
        key = serialization.load_pem_private_key(pair.key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not what the library says about it: its words might quote what they are about.
        raise CertificateError("the key is no unencrypted private key in PEM") from None
    if key.public_key() != certificate.public_key():
        raise CertificateError("the key is not the certificate's")
    return certificate, key


def _load_authority(authority: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key = _load(authority)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the authority's key is not of the kind that we make")
    return certificate, key


def _certificates(pem: bytes) -> Sequence[x509.Certificate]:
    """At least one."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"not a certificate in PEM: {error}") from error


def _validity(certificate: x509.Certificate) -> Validity:
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def _builder(
    key: ec.EllipticCurvePrivateKey, *, subject: x509.Name, issuer: x509.Name, validity: Validity
) -> x509.CertificateBuilder:
    # X.509 begins with the Unix epoch, and a machine without a battery with the same.
    since = max(validity.since, datetime(1970, 1, 1, tzinfo=UTC))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(validity.until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder, *, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> KeyPair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), private)


def _subject(name: str) -> x509.Name:
    # 64 is X.520's limit; who is meant stands in the alternative names.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*purposes: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in purposes for usage in _KEY_USAGES})
