"""The way to the API server: through a proxy or not, and nothing read that is not ours, nor left behind."""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coil.crd.builtin import NAMESPACES
from coil.kube.access import Access
from coil.kube.client import KubeClient
from tests.coil.kube.faulty_server import GUARD_SECONDS, FaultyServer, reply

FAR = "http://api.example.com:6443"
UNVERIFIED: dict[str, Any] = {"server": FAR, "insecure-skip-tls-verify": True}
NAMESPACE = {"metadata": {"name": "a"}}
_FAREWELL_SECONDS = 30.0  # asyncio.constants.SSL_SHUTDOWN_TIMEOUT


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def ask(server: FaultyServer, folder: Path, cluster: Mapping[str, Any] | None = None) -> str:
    """The value of the Host header with which the scripted server was asked."""
    server.script(reply(NAMESPACE))
    async with KubeClient(Access.kubeconfig(server.write_kubeconfig(folder, cluster=cluster))) as client:
        await client.get(NAMESPACES, "a")
    [request] = server.requests
    return request.headers["host"]


async def test_the_environments_proxy(server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    assert await ask(server, tmp_path, UNVERIFIED) == "api.example.com:6443"


async def test_a_server_that_is_reached_without_it(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert await ask(server, tmp_path) == f"127.0.0.1:{server.port}"


async def test_the_kubeconfigs_proxy_comes_first(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert await ask(server, tmp_path, {**UNVERIFIED, "proxy-url": server.url}) == "api.example.com:6443"


async def test_no_password_of_the_users_netrc(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    server.script(reply(NAMESPACE))
    path = server.write_kubeconfig(tmp_path, user={"username": "nobody"})
    async with KubeClient(Access.kubeconfig(path)) as client:
        await client.get(NAMESPACES, "a")
    assert "authorization" not in server.requests[0].headers


async def test_a_call_that_is_given_up_leaves_no_connection(server: FaultyServer, tmp_path: Path) -> None:
    """Even if the server never answers to that."""
    deaf = DeafServer(server.tls)
    server.port = deaf.port
    async with KubeClient(Access.kubeconfig(server.write_kubeconfig(tmp_path))) as client:
        call = asyncio.create_task(client.get(NAMESPACES, "a"))
        try:
            connection = await asyncio.to_thread(deaf.accept)
            call.cancel()
            await asyncio.wait([call])
            assert await asyncio.to_thread(is_cut, connection)
        finally:
            deaf.close()


class DeafServer:
    """Reads one request, and neither answers nor closes."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(GUARD_SECONDS)
        self._connections: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])

    def accept(self) -> socket.socket:
        """The connection, without TLS, when a request has come over it."""
        accepted, _ = self._listener.accept()
        self._connections.append(accepted)
        accepted.settimeout(GUARD_SECONDS)
        tls = self._tls.wrap_socket(accepted.dup(), server_side=True)
        self._connections.append(tls)
        tls.settimeout(GUARD_SECONDS)
        assert tls.recv(4096)
        return accepted

    def close(self) -> None:
        for each in (self._listener, *self._connections):
            each.close()


def is_cut(connection: socket.socket) -> bool:
    """Whether the peer has closed the connection itself, in less time than it would wait for an end of TLS."""
    connection.settimeout(_FAREWELL_SECONDS / 2)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True
