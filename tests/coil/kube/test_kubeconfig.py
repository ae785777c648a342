"""Kubeconfigs and service accounts: what is read from them, held against kubernetes-asyncio, and what is refused."""

import base64
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import load_kube_config

from coil.kube import kubeconfig
from coil.kube.kubeconfig import ClientConfig, PrivateFiles, load_kubeconfig, load_service_account


def write(folder: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    path = folder / "kubeconfig"
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example.com:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "preferences": {},
    }
    path.write_text(yaml.safe_dump(document))
    return path


FILES = PrivateFiles()


async def load(path: Path) -> ClientConfig:
    return await load_kubeconfig(path, FILES)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def content(file: object) -> str | None:
    return Path(str(file)).read_text() if file else None


async def by_library(path: Path) -> dict[str, object]:
    """What kubernetes-asyncio reads from it."""
    theirs = Configuration()
    await load_kube_config(config_file=str(path), client_configuration=theirs, persist_config=False)
    return {
        "server": theirs.host,
        "authorization": theirs.api_key.get("BearerToken", ""),
        "authority": content(theirs.ssl_ca_cert),
        "certificate": content(theirs.cert_file),
        "key": content(theirs.key_file),
        "verify": theirs.verify_ssl,
        "tls_server_name": theirs.tls_server_name or "",
        "proxy": theirs.proxy or "",
    }


def ours(config: ClientConfig) -> dict[str, object]:
    return {
        "server": config.server,
        "authorization": config.authorization,
        "authority": content(config.authority),
        "certificate": content(config.certificate),
        "key": content(config.key),
        "verify": config.verify,
        "tls_server_name": config.tls_server_name,
        "proxy": config.proxy,
    }


PLUGIN = """
import json, os
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps({**info, "status": {"token": info["apiVersion"]}}))
"""
CERTIFYING_PLUGIN = """
import json, os
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps({**info, "status": {"clientCertificateData": "C", "clientKeyData": "K"}}))
"""
EMBEDDED = {"client-certificate-data": encoded("C"), "client-key-data": encoded("K")}


def plugin(program: str, **fields: Any) -> dict[str, Any]:
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": ["-IS", "-c", program], **fields}}


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({}, {}),
        ({"insecure-skip-tls-verify": True}, {"token": "secret"}),
        ({"tls-server-name": "other", "proxy-url": "http://proxy:3128"}, {"tokenFile": "token"}),
        ({"certificate-authority": "ca.crt"}, {"client-certificate": "client.crt", "client-key": "client.key"}),
        ({"certificate-authority-data": encoded("CA")}, EMBEDDED),
        ({}, {"username": "a", "password": "b"}),
        ({}, plugin(PLUGIN)),
        ({}, plugin(CERTIFYING_PLUGIN)),
    ],
)
async def test_it_reads_what_the_library_reads(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> None:
    for name in ("token", "ca.crt", "client.crt", "client.key"):
        (tmp_path / name).write_text(f"content of {name}")
    path = write(tmp_path, cluster=cluster, user=user)
    assert ours(await load(path)) == await by_library(path)


async def test_a_plugin_is_found_beside_the_kubeconfig_and_gets_its_variables(tmp_path: Path) -> None:
    (tmp_path / "plugin").write_text('#!/bin/sh\necho "{\\"status\\": {\\"token\\": \\"$WHO\\"}}"\n')
    (tmp_path / "plugin").chmod(0o755)
    environment = [{"name": "WHO", "value": "me"}]
    path = write(tmp_path, user=plugin("", command="./plugin", args=None, env=environment))
    assert (await load(path)).authorization == "Bearer me"


@pytest.mark.parametrize(
    ("user", "message"),
    [
        (plugin("raise SystemExit('not logged in')"), "exit code 1: not logged in"),
        (plugin("", command="no-such-plugin", installHint="Get it."), r"no exec plugin no-such-plugin\. Get it\."),
        (plugin("print('no JSON')"), "malformed"),
        (plugin("print('{}')"), "status"),
        (plugin("import json; print(json.dumps({'status': {'clientCertificateData': 'C'}}))"), "neither a token"),
        ({"auth-provider": {"name": "oidc"}}, "use an exec plugin"),
        ({"client-key-data": "***"}, "not base64"),
        ({"token": ["a"]}, "token"),
    ],
)
async def test_what_cannot_be_used_is_refused(tmp_path: Path, user: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await load(write(tmp_path, user=user))


async def test_a_plugin_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "EXEC_SECONDS", 0.01)
    with pytest.raises(ValueError, match="did not answer within"):
        await load(write(tmp_path, user=plugin("import time; time.sleep(3600)")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current-context": ""}, "current-context"),
        ({"contexts": None}, "no context 'x'"),
        ({"clusters": None}, "no cluster 'c'"),
        ({"users": None}, "no user 'u'"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "no server"),
        ({"clusters": 5}, r"\$\.clusters"),
    ],
)
async def test_what_is_missing_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path)
    path.write_text(json.dumps(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        await load(path)


async def test_embedded_data_is_one_private_file_until_the_end(tmp_path: Path) -> None:
    files = PrivateFiles()
    path = write(tmp_path, cluster={"certificate-authority-data": encoded("CA")})
    first, second = [(await load_kubeconfig(path, files)).authority for _ in range(2)]
    assert first is not None
    assert first == second, "the same authority is not a changed one"
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    del files
    assert not first.exists()


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_service_account(tmp_path: Path, host: str, server: str) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    token.write_text("secret\n")
    authority.write_text("CA")
    found = load_service_account(token=token, authority=authority, environ=environ)
    assert found == ClientConfig(server=server, authorization="Bearer secret", authority=authority)
    for file in (token, authority):
        file.write_text("")
        with pytest.raises(ValueError, match=f"{file.name} is empty"):
            load_service_account(token=token, authority=authority, environ=environ)
        file.write_text("x")


def test_a_pod_pays_for_no_library_and_no_yaml() -> None:
    program = "import sys, coil.kube.client; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert not {"kubernetes_asyncio", "yaml", "urllib3"} & set(done.stdout.split())


def test_a_kubeconfig_is_read_without_the_library(tmp_path: Path) -> None:
    path = write(tmp_path, user={"username": "a", "password": "b"})
    program = (
        "import asyncio, sys, pathlib\n"
        "from coil.kube.access import Access\n"
        "access = Access.kubeconfig(pathlib.Path(sys.argv[1]))\n"
        "asyncio.run(access.read())\n"
        "print(access.config.server, *{name.partition('.')[0] for name in sys.modules})"
    )
    argv = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    server, *modules = done.stdout.split()
    assert server == "https://api.example.com:6443"
    assert "yaml" in modules
    assert not {"kubernetes_asyncio", "urllib3"} & set(modules)
