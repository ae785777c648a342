"""Kubeconfigs and service accounts: what is read, held against kubernetes-asyncio alone, and what is refused."""

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

from coil.kube import exec_plugin
from coil.kube.client_config import ClientConfig, load_service_account
from coil.kube.kubeconfig import Kubeconfig


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


KEPT: list[Kubeconfig] = []
"""Files for embedded data are there as long as these are."""


async def load(*paths: Path, context: str = "") -> ClientConfig:
    KEPT.append(Kubeconfig(paths, context))
    return await KEPT[-1].load()


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
        ({"auth-provider": {"name": "azure"}}, "auth-provider azure is not supported: use an exec plugin"),
        ({"auth-provider": "name"}, "auth-provider of 'u' has no name"),
        ({"auth-provider": {"name": "gcp", "config": {"expiry": 5}}}, "config of the auth-provider gcp"),
        ({"auth-provider": {"name": "gcp", "config": {"access-token": "a", "expiry": "soon"}}}, "soon"),
        ({"auth-provider": {"name": "gcp"}}, "no cmd-path"),
        ({"auth-provider": {"name": "oidc"}}, "log in again"),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": "a.b"}}}, "no JSON Web Token"),
        ({"auth-provider": {"name": "oidc"}, **plugin(PLUGIN)}, "both an exec plugin and an auth-provider"),
        ({"client-key-data": "***"}, "not base64"),
        ({"token": ["a"]}, "token"),
    ],
)
async def test_what_cannot_be_used_is_refused(tmp_path: Path, user: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await load(write(tmp_path, user=user))


async def test_a_plugin_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_plugin, "SECONDS", 0.01)
    with pytest.raises(ValueError, match="did not answer within"):
        await load(write(tmp_path, user=plugin("import time; time.sleep(3600)")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current-context": ""}, "current-context"),
        ({"contexts": None}, "no context 'x'"),
        ({"clusters": None}, "name c in .*clusters"),
        ({"users": None}, "no user 'u'"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "no server"),
        ({"clusters": [{"name": "c"}] * 2}, "only one object with name c in .*clusters"),
        ({"clusters": 5}, "clusters is no list"),
        ({"users": [{"user": {}}]}, "users has an entry without a name"),
        ({"users": [{"name": "u", "user": "me"}]}, "'u' in users is no user"),
        ({"clusters": [{"name": "c", "cluster": {"insecure-skip-tls-verify": "yes"}}]}, "is no boolean"),
    ],
)
async def test_what_is_missing_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path)
    path.write_text(json.dumps(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        await load(path)


async def test_embedded_data_is_one_private_file_until_the_end(tmp_path: Path) -> None:
    kubeconfig = Kubeconfig([write(tmp_path, cluster={"certificate-authority-data": encoded("CA")})])
    first, second = [(await kubeconfig.load()).authority for _ in range(2)]
    assert first is not None
    assert first == second, "the same authority is not a changed one"
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    del kubeconfig
    assert not first.exists()


GCLOUD = """
import json, sys
print(json.dumps({"credential": {"access_token": sys.argv[1], "token_expiry": "2017-11-05T00:00:00Z"}}))
"""


@pytest.mark.parametrize(
    ("settings", "token"),
    [
        ({"access-token": "kept"}, "kept"),
        ({"access-token": "kept", "expiry": "2100-01-01T00:00:00Z"}, "kept"),
        ({"access-token": "old", "expiry": "2017-11-05T00:00:00Z"}, "the new one"),
        ({}, "the new one"),
    ],
)
async def test_gcp(tmp_path: Path, settings: dict[str, Any], token: str) -> None:
    (tmp_path / "gcloud.py").write_text(GCLOUD)
    asked = {"cmd-path": sys.executable, "cmd-args": f"-IS {tmp_path / 'gcloud.py'} 'the new one'"}
    path = write(tmp_path, user={"auth-provider": {"name": "gcp", "config": {**asked, **settings}}})
    content = path.read_bytes()
    assert (await load(path)).authorization == f"Bearer {token}"
    assert path.read_bytes() == content


async def test_of_several_files_the_first_that_has_an_entry_is_right(tmp_path: Path) -> None:
    """Names of files are relative to the folder of the file that has them."""
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for file in ("ca.crt", "client.crt", "client.key"):
            (tmp_path / name / file).write_text(f"{file} of {name}")
        user = {"client-certificate": "client.crt", "client-key": "client.key"}
        paths.append(write(tmp_path / name, cluster={"certificate-authority": "ca.crt"}, user=user))
    first, second = paths
    document = yaml.safe_load(first.read_text())
    first.write_text(yaml.safe_dump({**document, "users": [], "contexts": []}))
    document = yaml.safe_load(second.read_text())
    second.write_text(yaml.safe_dump({**document, "current-context": "other"}))
    found = await load(first, second)
    assert content(found.authority) == "ca.crt of a"
    assert (content(found.certificate), content(found.key)) == ("client.crt of b", "client.key of b")
    assert (await load(second, first, context="x")).authority == tmp_path / "b" / "ca.crt"
    with pytest.raises(ValueError, match="no context 'other'"):
        await load(second, first)


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


def test_a_kubeconfig_is_read_without_the_librarys_models(tmp_path: Path) -> None:
    path = write(tmp_path, user={"username": "a", "password": "b"})
    program = (
        "import asyncio, sys, pathlib\n"
        "from coil.kube.access import Access\n"
        "access = Access.kubeconfig(pathlib.Path(sys.argv[1]))\n"
        "asyncio.run(access.read())\n"
        "from kubectl_coil.cluster import Cluster\n"
        "from coil.kube.light_import import _modules\n"
        "print(access.config.server, len(_modules), *sys.modules)\n"
        "import kubernetes_asyncio.client as whole\n"
        "print(whole.ApiClient.__name__, whole.V1Pod.__name__, whole.models.V1Pod is whole.V1Pod)"
    )
    argv = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    first, last = done.stdout.splitlines()
    server, number, *modules = first.split()
    assert server == "https://api.example.com:6443"
    assert int(number) < 30
    assert not {"kubernetes_asyncio"} & {name.partition(".")[0] for name in modules}
    assert last == "ApiClient V1Pod True"
