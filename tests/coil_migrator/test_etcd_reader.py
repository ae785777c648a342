import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coil_migrator import etcd_reader
from coil_migrator.etcd_reader import EtcdAccess, EtcdError, EtcdReader
from tests.coil.kube.certificate import Authority
from tests.coil_migrator.etcd_gateway import EtcdGateway

PREFIX = b"/coil/"


@pytest.fixture
async def etcd() -> AsyncIterator[EtcdGateway]:
    async with EtcdGateway() as gateway:
        gateway.keys = {PREFIX + f"ip/10.1.0.0/{number}".encode(): f"c{number}".encode() for number in range(7)}
        gateway.keys |= {b"/coil": b"before", b"/coil0": b"after", b"/other/pool/x": b"{}"}
        yield gateway


async def read(*endpoints: str, prefix: bytes = PREFIX, user: tuple[str, str] = ("", "")) -> list[tuple[bytes, bytes]]:
    access = EtcdAccess(endpoints=endpoints, username=user[0], password=user[1])
    async with EtcdReader(access) as reader:
        return await reader.read(prefix)


async def test_the_keys_below_the_prefix_and_no_others(etcd: EtcdGateway) -> None:
    assert await read(etcd.url) == [(f"ip/10.1.0.0/{number}".encode(), f"c{number}".encode()) for number in range(7)]


async def test_an_empty_value_and_an_empty_store(etcd: EtcdGateway) -> None:
    etcd.keys = {PREFIX + b"subnet/10.1.0.0": b""}
    assert await read(etcd.url) == [(b"subnet/10.1.0.0", b"")]
    etcd.keys.clear()
    assert await read(etcd.url) == []


@pytest.mark.parametrize(("prefix", "count"), [(b"\xff", 2), (b"a\xff", 1), (b"/", 10)])
async def test_the_end_of_a_prefix(etcd: EtcdGateway, prefix: bytes, count: int) -> None:
    etcd.keys |= {b"\xff1": b"", b"\xff\xff": b"", b"a\xff1": b"", b"b": b""}
    assert len(await read(etcd.url, prefix=prefix)) == count


@pytest.mark.parametrize("page", [1, 3, 7, 8])
async def test_pages_are_of_one_revision(etcd: EtcdGateway, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(etcd_reader, "PAGE", page)
    assert len(await read(etcd.url)) == 7
    assert len(etcd.questions) == -(-7 // page)
    assert {question["revision"] for question in etcd.questions[1:]} <= {"10"}
    assert etcd.questions[0]["revision"] == "0"


async def test_a_read_that_a_compaction_overtakes_is_begun_again(
    etcd: EtcdGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_reader, "PAGE", 3)
    etcd.compactions = 2
    assert len(await read(etcd.url)) == 7
    etcd.compactions = 9
    with pytest.raises(EtcdError, match="compacted faster"):
        await read(etcd.url)


@pytest.mark.parametrize("api", ["/v3beta", "/v3alpha"])
async def test_older_etcds_have_the_gateway_elsewhere(api: str) -> None:
    async with EtcdGateway(api=api) as etcd:
        etcd.keys = {PREFIX + b"pool/default": b"{}"}
        assert await read(etcd.url) == [(b"pool/default", b"{}")]


async def test_a_server_that_is_no_etcd(etcd: EtcdGateway) -> None:
    async with EtcdGateway(api="/elsewhere") as other:
        with pytest.raises(EtcdError, match="has no JSON gateway"):
            await read(other.url)
    etcd.body = b"<html>"
    with pytest.raises(EtcdError, match="does not answer as etcd does"):
        await read(etcd.url)


async def test_an_answer_without_end(etcd: EtcdGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_reader, "MAX_ANSWER", 1000)
    etcd.body = b" " * 1001
    with pytest.raises(EtcdError, match=r"more than 1000 bytes"):
        await read(etcd.url)


async def test_the_next_endpoint_is_tried(etcd: EtcdGateway) -> None:
    assert len(await read("http://127.0.0.1:1", etcd.url)) == 7


async def test_nobody_answers() -> None:
    with pytest.raises(EtcdError, match=r"http://127\.0\.0\.1:1: .*check --etcd-endpoints"):
        await read("http://127.0.0.1:1", "http://127.0.0.1:2")


async def test_a_user(etcd: EtcdGateway) -> None:
    etcd.users = {"coil": "secret"}
    assert len(await read(etcd.url, user=("coil", "secret"))) == 7
    with pytest.raises(EtcdError, match="user name is empty; give a user"):
        await read(etcd.url)
    with pytest.raises(EtcdError, match=r"authentication failed.*; give a user"):
        await read(etcd.url, user=("coil", "wrong"))


async def test_client_certificates(tmp_path: Path) -> None:
    authority = Authority("etcd-ca")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.certificate)
    server = authority.issue("etcd").write(tmp_path, "etcd")
    client = authority.issue("coil").write(tmp_path, "coil")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    tls.load_cert_chain(*server)
    tls.verify_mode = ssl.CERT_REQUIRED
    async with EtcdGateway(tls=tls) as etcd:
        etcd.keys = {PREFIX + b"pool/default": b"{}"}
        access = EtcdAccess(endpoints=(etcd.url,), ca=ca, certificate=client[0], key=client[1])
        async with EtcdReader(access) as reader:
            assert await reader.read(PREFIX) == [(b"pool/default", b"{}")]
        async with EtcdReader(EtcdAccess(endpoints=(etcd.url,), ca=ca)) as reader:
            with pytest.raises(EtcdError, match="does not answer"):
                await reader.read(PREFIX)
        async with EtcdReader(EtcdAccess(endpoints=(etcd.url,))) as reader:
            with pytest.raises(EtcdError, match=r"certificate.*--etcd-tls"):
                await reader.read(PREFIX)


async def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    for access in (
        EtcdAccess(endpoints=("https://127.0.0.1:1",), ca=tmp_path / "missing"),
        EtcdAccess(endpoints=("https://127.0.0.1:1",), certificate=tmp_path / "missing"),
    ):
        with pytest.raises(EtcdError, match="--etcd-tls flags cannot be used"):
            await EtcdReader(access).__aenter__()
