"""Certificates in a folder, replaced the ways in which files are replaced."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coil.admission.certificate import CertificateError, KeyPair, issue_authority, issue_server
from coil.admission.certificate_manager import CertificateFolder

NOW = datetime(2030, 1, 1, tzinfo=UTC)
AUTHORITY = issue_authority("test", now=NOW, life=timedelta(days=9))


def issue() -> KeyPair:
    return issue_server(AUTHORITY, hosts=["192.0.2.1"], now=NOW, life=timedelta(days=1))


def write(folder: Path, pair: KeyPair, authority: bytes = b"") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    if authority:
        (folder / "ca.crt").write_bytes(authority)


async def test_the_files_of_cert_manager(tmp_path: Path) -> None:
    pair = issue()
    write(tmp_path, pair, AUTHORITY.certificate)
    fetched = await CertificateFolder(tmp_path).fetch()
    assert (fetched.pair, fetched.bundle, fetched.wrote) == (pair, AUTHORITY.certificate, False)


async def test_without_an_authority_somebody_else_sees_to_the_trust(tmp_path: Path) -> None:
    write(tmp_path, issue())
    assert (await CertificateFolder(tmp_path).fetch()).bundle == b""


async def test_a_mounted_secret_changes_by_one_link(tmp_path: Path) -> None:
    """As the kubelet does it: files are links through `..data`, which is swapped."""
    pairs = [issue(), issue()]
    for number, pair in enumerate(pairs):
        write(tmp_path / f"..{number}", pair)
    (tmp_path / "..data").symlink_to("..0")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    source = CertificateFolder(tmp_path)
    assert (await source.fetch()).pair == pairs[0]
    (tmp_path / "..new").symlink_to("..1")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert (await source.fetch()).pair == pairs[1]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("tls.crt", b"", "not a certificate"),
        ("tls.crt", issue().certificate, "the key is not the certificate's"),
        ("tls.crt", issue().certificate[:200], "not a certificate"),
        ("tls.key", b"", "no unencrypted private key"),
        ("tls.key", issue().key, "the key is not the certificate's"),
        ("ca.crt", b"soon", "not a certificate"),
    ],
)
async def test_half_of_a_change_is_an_error_until_the_other_half_comes(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    pair = issue()
    write(tmp_path, pair, AUTHORITY.certificate)
    source = CertificateFolder(tmp_path)
    before = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CertificateError, match=why):
        await source.fetch()
    (tmp_path / name).write_bytes(before)
    assert (await source.fetch()).pair == pair


@pytest.mark.parametrize("name", ["tls.crt", "tls.key"])
async def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, issue())
    (tmp_path / name).unlink()
    with pytest.raises(CertificateError, match=f"{name} cannot be read: No such file"):
        await CertificateFolder(tmp_path).fetch()
