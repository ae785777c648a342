"""The way to the API server: through a proxy or not, and nothing read that is not ours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coil.crd.builtin import NAMESPACES
from coil.kube.access import Access
from coil.kube.client import KubeClient
from tests.coil.kube.faulty_server import FaultyServer, reply

FAR = "http://api.example.com:6443"
UNVERIFIED: dict[str, Any] = {"server": FAR, "insecure-skip-tls-verify": True}
NAMESPACE = {"metadata": {"name": "a"}}


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
