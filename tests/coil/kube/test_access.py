"""Credentials that change while the process runs."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coil.kube.access import REREAD_SECONDS, Access, AccessError
from coil.kube.client import KubeClient
from coil.kube.errors import UnauthorizedError, UnavailableError
from tests.coil.kube.certificate import Authority, KeyPair
from tests.coil.kube.faulty_server import Answer, Exchange, FaultyServer, fail, reply
from tests.coil.kube.thing import THINGS, bookmark, thing


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _accept_only(token: str) -> Answer:
    async def answer(exchange: Exchange) -> None:
        good = exchange.request.headers.get("authorization") == f"Bearer {token}"
        await (reply(thing("a", version=1)) if good else fail(401, reason="Unauthorized"))(exchange)

    return answer


def _tokens(server: FaultyServer) -> list[str]:
    return [request.headers["authorization"].removeprefix("Bearer ") for request in server.requests]


async def test_a_changed_token_file_is_read_again_in_time(server: FaultyServer, tmp_path: Path) -> None:
    clock = Clock()
    token = tmp_path / "token"
    token.write_text("one\n")  # with a line break, as an editor leaves it
    server.otherwise = reply(thing("a", version=1))
    access = Access.kubeconfig(server.write_kubeconfig(tmp_path, user={"tokenFile": "token"}), clock=clock)
    async with KubeClient(access) as client:
        await client.get(THINGS, "a", namespace="here")
        token.write_text("two")
        clock.now += REREAD_SECONDS - 1
        await client.get(THINGS, "a", namespace="here")
        clock.now += 1
        await client.get(THINGS, "a", namespace="here")
    assert _tokens(server) == ["one", "one", "two"]


async def test_a_refused_token_is_read_again_at_once(server: FaultyServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    server.otherwise = _accept_only("two")
    access = Access.kubeconfig(server.write_kubeconfig(tmp_path, user={"tokenFile": "token"}), clock=Clock())
    async with KubeClient(access) as client:
        token.write_text("two")
        found = await client.get(THINGS, "a", namespace="here")
        assert found.metadata.name == "a"
        async with client.collection(THINGS).watch(resource_version="1") as batches:
            assert batches is not None
    assert _tokens(server) == ["one", "two", "two"]


async def test_a_refused_token_that_has_not_changed_is_not_tried_again(server: FaultyServer, tmp_path: Path) -> None:
    server.otherwise = fail(401, reason="Unauthorized", message="who are you?")
    async with KubeClient(Access.kubeconfig(server.write_kubeconfig(tmp_path), clock=Clock())) as client:
        with pytest.raises(UnauthorizedError, match=r"who are you\?"):
            await client.get(THINGS, "a", namespace="here")
    assert _tokens(server) == ["first"]


async def test_many_refusals_at_once_end_with_the_new_token(server: FaultyServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    server.otherwise = _accept_only("two")
    access = Access.kubeconfig(server.write_kubeconfig(tmp_path, user={"tokenFile": "token"}), clock=Clock())
    async with KubeClient(access) as client:
        token.write_text("two")
        await asyncio.gather(*(client.get(THINGS, "a", namespace="here") for _ in range(10)))
    assert set(_tokens(server)) == {"one", "two"}
    assert len(server.requests) <= 20


async def test_a_token_file_that_is_away_for_a_moment(server: FaultyServer, tmp_path: Path) -> None:
    clock = Clock()
    token = tmp_path / "token"
    token.write_text("one")
    server.otherwise = _accept_only("one")
    access = Access.kubeconfig(server.write_kubeconfig(tmp_path, user={"tokenFile": "token"}), clock=clock)
    async with KubeClient(access) as client:
        token.unlink()
        clock.now += REREAD_SECONDS
        await client.get(THINGS, "a", namespace="here")
        server.otherwise = _accept_only("two")
        with pytest.raises(UnauthorizedError, match="token"):  # the message names the missing file
            await client.get(THINGS, "a", namespace="here")
        token.write_text("two")
        await client.get(THINGS, "a", namespace="here")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("", "cannot be used"),
        ("{", "cannot be used"),
        ("[]", "cannot be used"),
        ("current-context: gone\ncontexts: []\nclusters: []\nusers: []", "gone"),
    ],
)
async def test_a_kubeconfig_that_is_none(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(AccessError, match=message) as caught:
        async with KubeClient.connect(path):
            pytest.fail("there is nothing to connect to")
    assert str(path) in str(caught.value)


async def test_no_kubeconfig_and_no_pod(tmp_path: Path) -> None:
    access = Access.in_cluster(directory=tmp_path, environ={})
    with pytest.raises(AccessError, match="no kubeconfig given and no service account usable"):
        await access.read()


def _server_context(directory: Path, pair: KeyPair, *, client_ca: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=client_ca.certificate.decode())
    context.load_cert_chain(*pair.write(directory, "server"))
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@asynccontextmanager
async def _tls_server(directory: Path, authority: Authority) -> AsyncIterator[FaultyServer]:
    context = _server_context(directory, authority.issue("server"), client_ca=authority)
    async with FaultyServer(tls=context) as server:
        yield server


async def test_a_server_whose_certificate_has_no_key_identifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters have such certificates, and what is written in Go accepts them. Python does not, from 3.13 on."""
    create = ssl.create_default_context

    def create_strict_context(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = create(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    authority = Authority("ca")
    pair = authority.issue("server", identifiers=False)
    async with FaultyServer(tls=_server_context(tmp_path, pair, client_ca=authority)) as server:
        monkeypatch.setattr(ssl, "create_default_context", create_strict_context)
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        (tmp_path / "token").write_text("one")
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        server.otherwise = reply(thing("a", version=1))
        async with KubeClient(Access.in_cluster(directory=tmp_path, environ=environ)) as client:
            await client.get(THINGS, "a", namespace="here")


async def test_in_a_pod(tmp_path: Path) -> None:
    authority = Authority("ca")
    async with _tls_server(tmp_path, authority) as server:
        clock = Clock()
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        (tmp_path / "token").write_text("one")
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        server.otherwise = reply(thing("a", version=1))
        async with KubeClient(Access.in_cluster(directory=tmp_path, environ=environ, clock=clock)) as client:
            await client.get(THINGS, "a", namespace="here")
            (tmp_path / "token").write_text("two")
            clock.now += REREAD_SECONDS
            await client.get(THINGS, "a", namespace="here")
        assert _tokens(server) == ["one", "two"]


async def test_a_rotated_authority_and_client_certificate(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    clock = Clock()
    async with _tls_server(tmp_path, old) as server:
        subjects: list[str] = []

        async def note_subject(exchange: Exchange) -> None:
            certificate = exchange.peer_certificate
            subjects.append(certificate["subject"][0][0][1])
            await reply(thing("a", version=1))(exchange)

        server.otherwise = note_subject
        (tmp_path / "ca.crt").write_bytes(old.certificate)
        old.issue("client-1").write(tmp_path, "client")
        kubeconfig = server.write_kubeconfig(
            tmp_path,
            user={"client-certificate": "client.crt", "client-key": "client.key"},
            cluster={"certificate-authority": "ca.crt"},
        )
        async with KubeClient(Access.kubeconfig(kubeconfig, clock=clock)) as client:
            await client.get(THINGS, "a", namespace="here")

            await server.stop()
            server.tls = _server_context(tmp_path, new.issue("server"), client_ca=new)
            await server.start()
            with pytest.raises(UnavailableError, match=r"[cC]ertificate"):
                await client.get(THINGS, "a", namespace="here")

            # In the middle of the rotation: the new certificate with the old key.
            (tmp_path / "ca.crt").write_bytes(new.certificate)
            pair = new.issue("client-2")
            (tmp_path / "client.crt").write_bytes(pair.certificate)
            clock.now += REREAD_SECONDS
            with pytest.raises(UnavailableError):
                await client.get(THINGS, "a", namespace="here")
            (tmp_path / "client.key").write_bytes(pair.key)
            clock.now += REREAD_SECONDS
            await client.get(THINGS, "a", namespace="here")
        assert subjects == ["client-1", "client-2"]


async def test_a_watch_outlives_the_rotation_of_the_client_certificate(tmp_path: Path) -> None:
    authority = Authority("ca")
    clock = Clock()
    go_on = asyncio.Event()

    async def bookmark_later(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(bookmark(7))
        await go_on.wait()
        await exchange.send(bookmark(8))
        await exchange.end()

    async with _tls_server(tmp_path, authority) as server:
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        authority.issue("client-1").write(tmp_path, "client")
        kubeconfig = server.write_kubeconfig(
            tmp_path,
            user={"client-certificate": "client.crt", "client-key": "client.key"},
            cluster={"certificate-authority": "ca.crt"},
        )
        server.script(bookmark_later, reply(thing("a", version=1)))
        async with (
            KubeClient(Access.kubeconfig(kubeconfig, clock=clock)) as client,
            client.collection(THINGS).watch(resource_version="6") as batches,
        ):
            assert len(await anext(batches)) == 1
            authority.issue("client-2").write(tmp_path, "client")
            clock.now += REREAD_SECONDS
            await client.get(THINGS, "a", namespace="here")
            go_on.set()
            assert len(await anext(batches)) == 1
            with pytest.raises(StopAsyncIteration):
                await anext(batches)
