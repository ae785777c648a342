"""The plugin for arm64 in a root of its own: VERSION, refusals, and the life of a pod with a coild on a kernel."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from coil_cni.invocation import SUPPORTED
from integration.netns.netns import Netns
from integration.plugin.daemon import Daemon
from integration.plugin.jail import Jail
from integration.plugin.test_jail import CONF
from integration.plugin.test_process import INPUTS
from tests.coil_cni.edges import ENVIRON, run_plugin

WITHOUT_CONTAINER = {name: value for name, value in ENVIRON.items() if name != "CNI_CONTAINERID"}


def text(**changes: object) -> bytes:
    return json.dumps(CONF | changes).encode()


def test_version(jail: Jail) -> None:
    done = jail.run({"CNI_COMMAND": "VERSION"}, b"")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"cniVersion": SUPPORTED[-1], "supportedVersions": list(SUPPORTED)}


@pytest.mark.parametrize(
    ("environ", "stdin", "code"),
    [
        ({}, b"", 4),
        (ENVIRON | {"CNI_COMMAND": "GONE"}, text(), 4),
        (WITHOUT_CONTAINER, text(), 4),
        (ENVIRON | {"CNI_IFNAME": "a/b"}, text(), 4),
        (ENVIRON | {"CNI_ARGS": "a=b=c"}, text(), 4),
        (ENVIRON, text(cniVersion="9.9.9"), 1),
        (ENVIRON, b" " * (2 << 20), 5),
        (ENVIRON, b"{", 6),
        (ENVIRON, b"\xff", 6),
        (ENVIRON, b"[" * 100_000, 6),
        (ENVIRON, text(name=""), 7),
        (ENVIRON, text(name="a/b"), 7),
        (ENVIRON, text(), 11),  # nobody listens at the socket
        (ENVIRON | {"CNI_COMMAND": "STATUS"}, text(cniVersion="1.1.0"), 50),
    ],
)
def test_a_refusal_has_the_specifications_code(jail: Jail, environ: dict[str, str], stdin: bytes, code: int) -> None:
    done = jail.run(environ, stdin)
    document = json.loads(done.stdout)
    assert (done.returncode, document["code"]) == (1, code)
    assert document.keys() == {"cniVersion", "code", "msg", "details"}
    assert document["cniVersion"] in SUPPORTED
    assert document["msg"]


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"])
def test_bad_input_is_answered_as_the_sources_answer_it(jail: Jail, command: str) -> None:
    environ = ENVIRON | {"CNI_COMMAND": command}
    for stdin in INPUTS:
        answer, expected = jail.run(environ, stdin), run_plugin(environ, stdin)
        assert (answer.returncode, answer.stdout) == (expected.status, expected.output), stdin


@pytest.fixture
async def daemon(new_netns: Callable[[], Netns], jail: Jail) -> AsyncIterator[Daemon]:
    """coild, of this machine's architecture, behind the socket that the plugin finds."""
    async with Daemon.start(new_netns, jail.socket, pods=1) as daemon:
        yield daemon


async def call(jail: Jail, daemon: Daemon, command: str, **changes: str) -> tuple[int, Any]:
    """Exit status and document of one call for the one pod."""
    environ = ENVIRON | {"CNI_COMMAND": command, "CNI_NETNS": str(daemon.pods[0].path)} | changes
    done = await asyncio.to_thread(jail.run, environ, text())
    return done.returncode, json.loads(done.stdout) if done.stdout else None


@pytest.mark.kernel
async def test_the_life_of_a_pod(jail: Jail, daemon: Daemon) -> None:
    before = daemon.kernel()

    status, result = await call(jail, daemon, "ADD")
    assert (status, result["cniVersion"]) == (0, CONF["cniVersion"])
    assert [ip["address"] for ip in result["ips"]] == ["10.64.0.1/32", "fd64::1/128"]
    [pod, host] = result["interfaces"]
    assert (pod["name"], pod["sandbox"]) == ("eth0", str(daemon.pods[0].path))
    link = daemon.host.link(host["name"])
    assert link is not None
    assert link["ifalias"] == f"COIL:default:{ENVIRON['CNI_CONTAINERID']}:eth0"
    assert daemon.pods[0].link("eth0") is not None

    assert await call(jail, daemon, "ADD") == (0, result)
    assert await call(jail, daemon, "CHECK") == (0, None)
    assert await call(jail, daemon, "DEL") == (0, None)
    assert await call(jail, daemon, "DEL", CNI_NETNS="") == (0, None)
    assert daemon.kernel() == before
    assert daemon.records == []
    assert daemon.answered == 5


@pytest.mark.kernel
async def test_a_refusal_of_coilds_reaches_the_runtime(jail: Jail, daemon: Daemon) -> None:
    before = daemon.kernel()
    status, document = await call(jail, daemon, "ADD", CNI_NETNS="/run/netns/absent")
    assert (status, document["code"]) == (1, 3)
    assert "/run/netns/absent" in document["msg"] + document["details"]
    status, document = await call(jail, daemon, "CHECK")
    assert (status, document["code"]) == (1, 3)
    assert daemon.kernel() == before
    assert daemon.records == []
