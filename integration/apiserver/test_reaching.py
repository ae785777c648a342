"""Whom a program asks, by which proxy and as whom, is what kubectl does with the same environment and kubeconfig.

What kubectl would do and we do not is refused with a sentence.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.apiserver.reaching import NAME, PROXY, SERVER4, SERVER6, Reaching
from integration.cluster.control_plane import find_kubectl
from integration.netns.netns import create_netns, delete_netns

pytestmark = [pytest.mark.apiserver, pytest.mark.kernel]

SECONDS = 180.0
ROOT = Path(__file__).resolve().parents[2]
OURS = """
import asyncio, json, os, sys
from pathlib import Path
from coil.kube.access import Access, AccessError
from coil.kube.errors import ApiError
from coil.kube.transport import Timeouts, Transport

async def ask(path):
    try:
        async with Transport(Access.kubeconfig(Path(path)), timeouts=Timeouts(connect=60.0, total=60.0)) as transport:
            await transport.call("GET", "/version")
    except (AccessError, ApiError) as error:
        return str(error)
    return ""

for line in sys.stdin:
    case = json.loads(line)
    os.environ.clear()
    os.environ.update(case["environ"])
    print(json.dumps(asyncio.run(ask(case["kubeconfig"]))), flush=True)
"""
URL4, URL6, NAMED = f"https://{SERVER4}:6443", f"https://[{SERVER6}]:6443", f"https://{NAME}:6443"
HTTPS = {"HTTPS_PROXY": f"http://{PROXY}:3128"}
HTTP = {"HTTP_PROXY": f"http://{PROXY}:3128"}
WRAPPED = "wrapped"
"""In place of the authority's certificate: as `base64 FILE` writes it."""


@dataclass(frozen=True)
class Case:
    """`environ` is all that the programs have of an environment; `refused` is what we say and kubectl need not.

    The user has a token if nothing is said: kubectl asks a terminal for the name of one who has nothing.
    """

    name: str
    server: str = URL4
    environ: dict[str, str] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] | None = field(default_factory=lambda: {"token": "secret"})
    document: dict[str, Any] = field(default_factory=dict)
    refused: str = ""


def bypassing(*entries: str, server: str = URL4) -> list[Case]:
    """One case for each entry of NO_PROXY."""
    return [Case(f"NO_PROXY={entry} for {server}", server, {**HTTPS, "NO_PROXY": entry}) for entry in entries]


PLUGIN = "import json; print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', "
PLUGIN += "'status': {'token': 'of-the-plugin'}}))"
EXEC = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": sys.executable,
    "args": ["-IS", "-c", PLUGIN],
    "interactiveMode": "Never",
}
CASES = [
    # --- proxies of the environment
    Case("directly"),
    Case("by the proxy", environ=HTTPS),
    Case("IPv6 by the proxy", URL6, HTTPS),
    Case("a name by the proxy", NAMED, HTTPS),
    Case("lower case", environ={"https_proxy": HTTPS["HTTPS_PROXY"]}),
    Case("upper before lower case", environ={**HTTPS, "https_proxy": f"http://{PROXY}:3129"}),
    Case("empty before lower case", environ={"HTTPS_PROXY": "", "https_proxy": f"http://{PROXY}:3129"}),
    Case("a proxy without a scheme", environ={"HTTPS_PROXY": f"{PROXY}:3128"}),
    Case("a proxy that wants to know who it is", environ={"HTTPS_PROXY": f"http://me:pass%21@{PROXY}:3128"}),
    Case("ALL_PROXY means nothing", environ={"ALL_PROXY": f"http://{PROXY}:3128"}),
    Case("HTTP_PROXY is not for HTTPS", environ=HTTP),
    Case("HTTPS_PROXY is not for HTTP", f"http://{SERVER4}:8080", HTTPS),
    Case("HTTP by the proxy", f"http://{SERVER4}:8080", HTTP),
    Case("SOCKS", environ={"HTTPS_PROXY": f"socks5://{PROXY}:3128"}, refused="socks5://192.0.2.20 is not supported"),
    # --- what no proxy is asked for
    Case("localhost", "https://localhost:6443", HTTPS),
    Case("127.0.0.1", "https://127.0.0.1:6443", HTTPS),
    Case("127.8.9.1", "https://127.8.9.1:6443", HTTPS),
    Case("::1", "https://[::1]:6443", HTTPS),
    *bypassing(
        *("*", "192.0.2.10", "192.0.2.10:6443", "192.0.2.10:443", "192.0.2.10:", "192.0.2.0/24", "192.0.2.99/24"),
        *("192.0.2.0/29", "0.0.0.0/0", "::/0", "10.0.0.0/8, 192.0.2.10", " 192.0.2.10 ", ",,", "192.0.2", ".2.10"),
        *("*.2.10", "::ffff:192.0.2.10", "::ffff:192.0.2.0/120", "192.0.2.0/255.255.255.0", ":6443", "nonsense"),
    ),
    *bypassing(
        *("2001:db8::10", "[2001:db8::10]", "[2001:db8::10]:6443", "[2001:db8::10]:443", "2001:db8::/32"),
        *("2001:DB8:0::0010", "2001:db8::", "::/0", "0.0.0.0/0"),
        server=URL6,
    ),
    *bypassing(
        *("other.example", "pi.example", ".pi.example", "api.example.", "api.example:443", "192.0.2.0/24"),
        server=NAMED,
    ),
    Case("no_proxy in lower case", environ={**HTTPS, "no_proxy": "192.0.2.0/24"}),
    Case("NO_PROXY before no_proxy", environ={**HTTPS, "NO_PROXY": "10.0.0.1", "no_proxy": SERVER4}),
    # --- the kubeconfig's own proxy
    Case("its own proxy", cluster={"proxy-url": f"http://{PROXY}:3129"}),
    Case("its own before the environment's", environ=HTTPS, cluster={"proxy-url": f"http://{PROXY}:3129"}),
    Case("its own whatever NO_PROXY says", environ={"NO_PROXY": "*"}, cluster={"proxy-url": f"http://{PROXY}:3129"}),
    Case("its own for this host, too", "https://127.0.0.1:6443", cluster={"proxy-url": f"http://{PROXY}:3129"}),
    Case("its own is SOCKS", cluster={"proxy-url": f"socks5://{PROXY}:3128"}, refused="socks5://192.0.2.20 is not"),
    Case("its own is nonsense", cluster={"proxy-url": "ftp://192.0.2.20"}, refused="ftp://192.0.2.20 is not supported"),
    # --- servers
    Case("a path", f"{URL4}/clusters/x"),
    Case("a slash at the end", f"{URL4}/"),
    Case("without a scheme", f"{SERVER4}:6443"),
    Case("without a scheme, and nothing of TLS", f"{SERVER4}:8080", cluster={"certificate-authority-data": None}),
    Case("without a scheme, with a path", f"{SERVER4}:6443/x", refused="is neither a URL nor a host with a port"),
    Case("another name in the certificate", URL4, cluster={"tls-server-name": NAME}),
    Case("a name that the certificate does not have", cluster={"tls-server-name": "other.example"}),
    Case("an unknown authority", cluster={"certificate-authority-data": None}),
    Case("nothing is verified", cluster={"certificate-authority-data": None, "insecure-skip-tls-verify": True}),
    Case("no server", "", refused="has no server"),
    # --- who it is
    Case("a token in a file", user={"tokenFile": "token"}),
    Case("a token file before a token", user={"tokenFile": "token", "token": "secret"}),
    Case("a password", user={"username": "me", "password": "pass:word"}),
    Case("a certificate", user={"client-certificate": "client.crt", "client-key": "client.key"}),
    Case("a plugin", user={"exec": EXEC}),
    Case("a token before a plugin", user={"exec": EXEC, "token": "secret"}),
    Case("nobody is told on the way", f"http://{SERVER4}:8080", user={"token": "secret"}),
    Case("nor is a password", f"http://{SERVER4}:8080", user={"username": "me", "password": "word"}),
    Case("nor a plugin's token", f"http://{SERVER4}:8080", user={"exec": EXEC}),
    Case("a token and a password", user={"token": "secret", "username": "me"}, refused="both a token and a password"),
    Case("as somebody else", user={"token": "secret", "as": "other"}, refused="to act as another user"),
    Case("a plugin with a terminal", user={"exec": EXEC | {"interactiveMode": "Always"}}, refused="wants a terminal"),
    Case("a plugin that asks", user={"exec": EXEC | {"provideClusterInfo": True}}, refused="provideClusterInfo"),
    # --- how it is written
    Case("base64 with line ends", cluster={"certificate-authority-data": WRAPPED}),
    Case("null fields", cluster={"proxy-url": None}, user={"token": "secret", "exec": None, "tokenFile": None}),
    Case("null lists", user={"exec": EXEC | {"env": None}}, document={"preferences": None, "extensions": None}),
    Case("unknown fields", cluster={"disable-compression": True, "new": 1}, document={"kind": "Config", "new": {}}),
    Case("no current context", document={"current-context": ""}, refused="names no current-context"),
    Case("a context that is not there", document={"current-context": "y"}, refused="there is no context 'y'"),
]


class Programs:
    """kubectl and ours, in the namespace."""

    def __init__(self, stage: Reaching, folder: Path) -> None:
        self._stage = stage
        self._folder = folder
        self._inside = ["nsenter", f"--net={stage.netns.path}", "--"]
        (folder / "token").write_text("of-the-file\n")
        stage.client.write(folder, "client")
        self._ours = subprocess.Popen(
            [*self._inside, sys.executable, "-c", OURS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def close(self) -> None:
        self._ours.communicate(timeout=SECONDS)

    def write(self, case: Case) -> Path:
        """Its kubeconfig."""
        encoded = base64.b64encode(self._stage.ca).decode()
        cluster = {"server": case.server, "certificate-authority-data": encoded, **case.cluster}
        if cluster["certificate-authority-data"] == WRAPPED:
            cluster["certificate-authority-data"] = "".join(base64.encodebytes(self._stage.ca).decode())
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": case.user}],
            **case.document,
        }
        path = self._folder / "kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def kubectl(self, case: Case, kubeconfig: Path) -> tuple[bool, list[str]]:
        """Whether it got an answer, and whom it asked."""
        command = [find_kubectl(), f"--kubeconfig={kubeconfig}", "--request-timeout=60s", "get", "--raw", "/version"]
        done = subprocess.run(
            [*self._inside, *command],
            env={"HOME": str(self._folder), "PATH": os.environ["PATH"], **case.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode == 0, self._stage.witness.take()

    def ours(self, case: Case, kubeconfig: Path) -> tuple[str, list[str]]:
        """What is wrong, and whom it asked."""
        assert self._ours.stdin is not None
        assert self._ours.stdout is not None
        environ = {"PATH": os.environ["PATH"], **case.environ}
        self._ours.stdin.write(json.dumps({"kubeconfig": str(kubeconfig), "environ": environ}) + "\n")
        self._ours.stdin.flush()
        return json.loads(self._ours.stdout.readline()), self._stage.witness.take()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    folder = tmp_path_factory.mktemp("reaching")
    [netns] = create_netns(1)
    try:
        with Reaching(netns, folder).served() as stage:
            programs = Programs(stage, folder)
            yield programs
            programs.close()
    finally:
        delete_netns([netns])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_kubectl(programs: Programs, case: Case) -> None:
    kubeconfig = programs.write(case)
    answered, asked = programs.kubectl(case, kubeconfig)
    trouble, ours = programs.ours(case, kubeconfig)
    if case.refused:
        assert case.refused in trouble
        assert ours == [], "somebody was asked all the same"
    else:
        assert (not trouble, ours) == (answered, asked), trouble


def test_the_oracle_sees_differences(programs: Programs) -> None:
    """Each of the four is asked by some case: a stage on which nothing happens would agree with everybody."""
    seen: set[str] = set()
    for name in ("directly", "by the proxy", "its own proxy", "HTTP by the proxy", "nobody is told on the way"):
        case = next(case for case in CASES if case.name == name)
        answered, asked = programs.kubectl(case, programs.write(case))
        assert answered
        seen |= {line.partition(":")[0] for line in asked}
    assert seen == {"server", "plain server", "proxy", "other proxy"}
