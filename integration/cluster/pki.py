"""Certificates of a cluster: a short-lived authority, whose certificates prove every component to every other.

Kubernetes reads a user from a client certificate's subject: the common name is the user, each organization a group.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = dt.timedelta(days=30)
_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate, PEM files that only their owner can read."""

    key: Path
    certificate: Path


class CertificateAuthority:
    """A self-signed authority whose files live in ``folder``.

    Its certificates have no key identifiers, as those of many clusters: what is written in Go does not ask for them.
    """

    def __init__(self, folder: Path, *, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name, "")
        builder = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate = folder / "ca.crt"
        """The file that those who trust this authority are given."""
        _write(self.certificate, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(
        self, common_name: str, *, organization: str = "", hosts: Collection[str] = (), file: str = ""
    ) -> KeyPair:
        """A certificate for ``common_name``, for clients and, with ``hosts`` (names or addresses), for servers.

        Written to ``<file>.key`` and ``<file>.crt``; ``file`` is the common name unless given.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        # etcd's HTTP gateway is a client of its own server, with the server's certificate: clientAuth for servers too.
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = (
            _builder(_subject(common_name, organization), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        stem = file or common_name
        pair = KeyPair(key=self._folder / f"{stem}.key", certificate=self._folder / f"{stem}.crt")
        _write(pair.key, _private_bytes(key))
        _write(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        return pair


def issue_signing_key(folder: Path, file: str) -> KeyPair:
    """What service account tokens are signed with; ``certificate`` is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = KeyPair(key=folder / f"{file}.key", certificate=folder / f"{file}.pub")
    _write(pair.key, _private_bytes(key))
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _write(pair.certificate, public)
    return pair


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + LIFETIME)
    )


def _subject(common_name: str, organization: str) -> x509.Name:
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        # Kubernetes and etcd read this form in every version.
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
