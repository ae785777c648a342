"""Certificates replaced under a running server, seen by real TLS clients."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coil.admission.certificate import CertificateError, KeyPair, issue_authority, issue_server
from coil.admission.server import ServingContext

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
HOST = "127.0.0.1"
AUTHORITY = issue_authority("test", now=NOW, life=48 * HOUR)


def issue(authority: KeyPair = AUTHORITY) -> KeyPair:
    return issue_server(authority, hosts=[HOST, "webhook.test"], now=NOW, life=24 * HOUR)


def issue_rsa() -> KeyPair:
    """Self-signed, with the other kind of key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rsa")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - HOUR)
        .not_valid_after(NOW + HOUR)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private)


class Echo:
    """A TLS server that repeats what it hears, and its clients."""

    def __init__(self, serving: ServingContext, port: int) -> None:
        self.serving = serving
        self.port = port

    async def shown(self, *, name: str | None = None, version: ssl.TLSVersion | None = None) -> bytes:
        """The certificate that a new client is shown, DER; `name` is what it asks for."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
        if version is not None:
            client.maximum_version = version
        _, writer = await asyncio.open_connection(HOST, self.port, ssl=client, server_hostname=name or "")
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return certificate


def der(pair: KeyPair) -> bytes:
    return x509.load_pem_x509_certificate(pair.certificate).public_bytes(serialization.Encoding.DER)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Echo]:
    serving = ServingContext()
    listening = await asyncio.start_server(echo, HOST, 0, ssl=serving.context)
    async with listening:
        yield Echo(serving, listening.sockets[0].getsockname()[1])


async def test_before_there_is_a_certificate_no_handshake_succeeds(server: Echo) -> None:
    assert not server.serving.loaded
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await server.shown()


@pytest.mark.parametrize("name", [None, "webhook.test", "somebody.else"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_newest_is_shown_whatever_is_asked_for(
    server: Echo, name: str | None, version: ssl.TLSVersion
) -> None:
    for pair in (issue(), issue(), issue_rsa(), issue()):
        assert server.serving.load(pair)
        assert await server.shown(name=name, version=version) == der(pair)


async def test_it_is_verified_by_its_authority(server: Echo) -> None:
    server.serving.load(issue())
    client = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    for host in (HOST, "webhook.test"):
        _, writer = await asyncio.open_connection(HOST, server.port, ssl=client, server_hostname=host)
        writer.close()
        await writer.wait_closed()


async def test_a_client_of_old_is_turned_away(server: Echo) -> None:
    server.serving.load(issue())
    assert server.serving.context.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_an_open_connection_goes_on(server: Echo) -> None:
    first = issue()
    server.serving.load(first)
    client = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    reader, writer = await asyncio.open_connection(HOST, server.port, ssl=client)
    server.serving.load(issue(issue_authority("another", now=NOW, life=48 * HOUR)))
    writer.write(b"still here")
    assert await reader.readexactly(10) == b"still here"
    writer.close()
    await writer.wait_closed()


def encrypted(pair: KeyPair) -> KeyPair:
    key = serialization.load_pem_private_key(pair.key, password=None)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    return KeyPair(pair.certificate, private)


@pytest.mark.parametrize(
    "broken",
    [
        KeyPair(issue().certificate, issue().key),
        KeyPair(issue().certificate[:100], issue().key),
        KeyPair(b"", b""),
        encrypted(issue()),
    ],
    ids=["not its key", "cut off", "nothing", "encrypted"],
)
async def test_a_broken_pair_is_refused_and_the_good_one_goes_on(server: Echo, broken: KeyPair) -> None:
    good = issue()
    server.serving.load(good)
    with pytest.raises(CertificateError) as error:
        server.serving.load(broken)
    assert "PRIVATE" not in str(error.value)
    assert await server.shown() == der(good)
    assert not server.serving.load(good), "it is the same"


async def test_a_clients_certificate_is_asked_for(tmp_path: Path) -> None:
    """On whichever context a handshake began."""
    trusted = issue_authority("clients", now=NOW, life=HOUR)
    others = issue_authority("others", now=NOW, life=HOUR)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(trusted.certificate)
    serving = ServingContext(client_ca=ca)
    pair = issue()
    assert serving.load(pair)
    async with await asyncio.start_server(echo, HOST, 0, ssl=serving.context) as listening:
        port = listening.sockets[0].getsockname()[1]
        assert await echoes(port, client_of(trusted, tmp_path))
        assert not await echoes(port, client_of(others, tmp_path))
        assert not await echoes(port, None)
        # The authorities are changed while it runs.
        ca.write_bytes(others.certificate)
        assert serving.load(pair)
        assert not serving.load(pair)
        assert await echoes(port, client_of(others, tmp_path))
        assert not await echoes(port, client_of(trusted, tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"\xff"])
def test_without_authorities_of_clients_nothing_is_served(tmp_path: Path, content: bytes | None) -> None:
    ca = tmp_path / "ca.crt"
    if content is not None:
        ca.write_bytes(content)
    serving = ServingContext(client_ca=ca)
    with pytest.raises(CertificateError, match=r"authorities of clients .*ca\.crt"):
        serving.load(issue())
    assert not serving.loaded


def client_of(authority: KeyPair, folder: Path) -> Path:
    """A file with a client's certificate and its key."""
    found = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]))
        .issuer_name(found.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - HOUR)
        .not_valid_after(NOW + HOUR)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    path = folder / "client.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


async def echoes(port: int, client: Path | None) -> bool:
    context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    if client is not None:
        context.load_cert_chain(client)
    try:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        try:
            writer.write(b"anybody?")
            return await reader.readexactly(8) == b"anybody?"
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    except (OSError, asyncio.IncompleteReadError):
        return False
