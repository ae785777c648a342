"""The plugin is replaced while it is called: each call is answered, by the old one or by the new one."""

import json
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import coil_cni
from coil_cni.invocation import NEWEST
from coil_installer.node_files import uninstall
from integration.plugin.executable import plugin_executable
from integration.plugin.jail import Jail
from integration.plugin.test_jail import CONF, answer
from tests.coil_cni.edges import ENVIRON
from tests.coil_cni.foreign_server import foreign_server
from tests.coil_cni.test_service import RESULT

UPGRADES = 10
CALLERS = 4


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """An executable that says of itself that it speaks another version."""
    source = shutil.copytree(
        Path(coil_cni.__file__).parent, tmp_path / "coil_cni", ignore=shutil.ignore_patterns("__pycache__")
    )
    with (source / "invocation.py").open("a") as file:
        file.write('SUPPORTED = ("9.9.9",)\n')
    return plugin_executable(source)


def test_every_call_during_upgrades_is_answered(jail: Jail, newer: Path) -> None:
    over = threading.Event()

    def keep_calling() -> list[str]:
        """The newest version that each answer named."""
        named = []
        while not over.is_set():
            done = jail.run({"CNI_COMMAND": "VERSION"}, b"")
            assert done.returncode == 0, done.stdout
            named.append(json.loads(done.stdout)["supportedVersions"][-1])
        return named

    with ThreadPoolExecutor(CALLERS) as threads:
        callers = [threads.submit(keep_calling) for _ in range(CALLERS)]
        try:
            for _ in range(UPGRADES):
                jail.install(newer)
                jail.install(plugin_executable())
        finally:
            over.set()
        named = [version for caller in callers for version in caller.result(60)]
    assert set(named) <= {NEWEST, "9.9.9"}
    assert len(named) >= CALLERS


def test_a_call_under_way_ends_as_it_began(jail: Jail, newer: Path) -> None:
    called, release = threading.Event(), threading.Event()

    def wait(request: Any, context: grpc.ServicerContext) -> Any:
        called.set()
        assert release.wait(60)
        return answer(request, context)

    with foreign_server(jail.socket, {"Add": wait}), jail.start(ENVIRON) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(CONF).encode())
        process.stdin.close()
        process.stdin = None
        assert called.wait(60)
        jail.install(newer)
        assert jail.run({"CNI_COMMAND": "VERSION"}, b"").stdout.count(b"9.9.9") == 1
        uninstall(jail.folders())
        release.set()
        output, complaints = process.communicate(timeout=60)
    assert (process.returncode, json.loads(output), complaints) == (0, RESULT, b"")


def test_uninstalled_nothing_of_it_is_there(jail: Jail) -> None:
    uninstall(jail.folders())
    assert not any(stat.S_ISREG(mode) for _, mode, _, _ in jail.listing().values())
