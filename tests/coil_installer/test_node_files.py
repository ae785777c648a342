"""Installing, installing again, upgrading, failing, removing; the plugin is really run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coil_cni.invocation import SUPPORTED
from coil_installer import node_files
from coil_installer.conflist import INSTALLED, install_conflist
from coil_installer.node_files import install, uninstall
from coil_installer.settings import InstallError
from integration.plugin.executable import plugin_executable
from tests.coil_cni.edges import ENVIRON, NETCONF
from tests.coil_cni.foreign_server import foreign_server
from tests.coil_cni.protobuf import protobuf_message
from tests.coil_installer.node import (
    CONFLIST,
    conflist_of,
    environ_of,
    plugin_of,
    run_plugin_at,
    settings_of,
    snapshot,
)


def version_of(tmp_path: Path, addition: bytes) -> str:
    """Another version of the plugin: what stands behind the end of an ELF file is not looked at."""
    plugin = tmp_path / f"version-{len(list(tmp_path.iterdir()))}"
    plugin.write_bytes(plugin_executable().read_bytes() + addition)
    return str(plugin)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


def test_installed_it_answers(node: Path) -> None:
    install(settings_of(node))
    assert json.loads(conflist_of(node).read_text()) == CONFLIST | {INSTALLED: CONFLIST["plugins"]}
    answer = run_plugin_at(plugin_of(node), CNI_COMMAND="VERSION")
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert json.loads(answer.stdout)["supportedVersions"] == [*SUPPORTED]


def test_installed_it_adds_a_pod(node: Path, tmp_path: Path) -> None:
    install(settings_of(node))
    socket = tmp_path / "coild.sock"
    stdin = json.dumps(NETCONF | {"socket": str(socket)}).encode()
    away = run_plugin_at(plugin_of(node), stdin, **ENVIRON)
    assert (away.returncode, json.loads(away.stdout)["code"], away.stderr) == (1, 11, b"")
    response = protobuf_message("pkg.cnirpc.AddResponse", result=b'{"cniVersion":"1.0.0","ips":[]}')
    with foreign_server(socket, {"Add": lambda _, __: response}):
        answer = run_plugin_at(plugin_of(node), stdin, **ENVIRON)
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert json.loads(answer.stdout) == {"cniVersion": "1.0.0", "ips": []}


def test_bad_input_to_the_process_is_a_cni_error_without_a_traceback(node: Path) -> None:
    install(settings_of(node))
    for stdin, environ, code in [(b"", {}, 4), (b"{", ENVIRON, 6), (b"x" * (2 << 20), ENVIRON, 5)]:
        answer = run_plugin_at(plugin_of(node), stdin, **environ)
        assert (answer.returncode, json.loads(answer.stdout)["code"], answer.stderr) == (1, code, b"")


def test_the_plugin_writes_nothing_and_needs_nothing_of_the_environment(node: Path, tmp_path: Path) -> None:
    install(settings_of(node))
    before = snapshot(node)
    (tmp_path / "coil_cni").mkdir()
    (tmp_path / "coil_cni" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    misleading = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/nowhere", "LC_ALL": "C"}
    for more in ({}, misleading):
        answer = run_plugin_at(plugin_of(node), **{"CNI_COMMAND": "VERSION"} | more)
        assert (answer.returncode, answer.stderr) == (0, b"")
    assert snapshot(node) == before


def test_it_runs_through_a_link_and_without_a_current_directory(node: Path, tmp_path: Path) -> None:
    install(settings_of(node))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(plugin_of(node).parent)
    answer = run_plugin_at(elsewhere / "coil", CNI_COMMAND="VERSION")
    assert answer.returncode == 0


def test_again_nothing_is_touched(node: Path) -> None:
    install(settings_of(node))
    before = snapshot(node)
    install(settings_of(node))
    assert snapshot(node) == before


def test_damage_is_repaired(node: Path) -> None:
    install(settings_of(node))
    wanted = {path: content for path, (_, _, content) in snapshot(node).items()}
    for path in wanted:
        (node / path).write_bytes(b"damaged")
        (node / path).chmod(0o600)
    install(settings_of(node))
    after = snapshot(node)
    assert {path: content for path, (_, _, content) in after.items()} == wanted
    assert {oct(mode & 0o777) for _, mode, _ in after.values()} == {"0o755", "0o644"}


def test_an_upgrade_is_a_new_file_in_the_old_ones_place(node: Path, tmp_path: Path) -> None:
    install(settings_of(node))
    before = snapshot(node)
    with plugin_of(node).open("rb") as running:
        install(settings_of(node, COIL_PATH=version_of(tmp_path, b"newer")))
        assert running.read() == plugin_executable().read_bytes()
    after = snapshot(node)
    assert after.keys() == before.keys()
    assert {path for path in after if after[path] != before[path]} == {"opt/cni/bin/coil"}
    assert after["opt/cni/bin/coil"][2].endswith(b"newer")
    assert run_plugin_at(plugin_of(node), CNI_COMMAND="VERSION").returncode == 0


def test_what_a_crash_left_is_overwritten_and_removed(node: Path) -> None:
    install(settings_of(node))
    left = [plugin_of(node).with_name(".coil.new"), conflist_of(node).with_name(".10-coil.conflist.new")]
    for path in left:
        path.write_text("half of it")
    plugin_of(node).unlink()
    conflist_of(node).unlink()
    install(settings_of(node))
    assert not any(path.exists() for path in left)
    for path in left:
        path.write_text("half of it")
    uninstall(settings_of(node).folders)
    assert snapshot(node) == {}


def test_foreign_files_are_left_alone(node: Path) -> None:
    plugin_of(node).parent.mkdir(parents=True)
    conflist_of(node).parent.mkdir(parents=True)
    (plugin_of(node).parent / "bridge").write_text("another plugin")
    (conflist_of(node).parent / "99-other.conflist").write_text("another network")
    before = snapshot(node)
    install(settings_of(node))
    assert snapshot(node).items() >= before.items()
    uninstall(settings_of(node).folders)
    assert snapshot(node) == before
    uninstall(settings_of(node).folders)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"", "not an executable of 64 bits"),
        (lambda: b"#!/bin/sh\necho '{}'\n", "not an executable of 64 bits"),
        (lambda: plugin_executable().read_bytes()[:100], "not an executable of 64 bits"),
        (lambda: Path(sys.executable).read_bytes(), "needs shared libraries"),
        (lambda: plugin_executable().read_bytes()[:50_000], "does not answer|cannot be run"),
        (lambda: Path("/bin/busybox").read_bytes(), "does not answer"),
    ],
    ids=["empty", "script", "beginning", "shared", "half", "another"],
)
def test_a_plugin_that_does_not_work_never_takes_the_place(
    node: Path, tmp_path: Path, make: Callable[[], bytes], message: str
) -> None:
    install(settings_of(node))
    before = snapshot(node)
    wrong = tmp_path / "wrong"
    wrong.write_bytes(make())
    with pytest.raises(InstallError, match=message):
        install(settings_of(node, COIL_PATH=str(wrong)))
    assert snapshot(node) == before


def test_the_configuration_appears_last(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def observed(path: Path, wanted: str) -> None:
        assert path == conflist_of(node)
        answer = run_plugin_at(plugin_of(node), CNI_COMMAND="VERSION")
        seen.append(answer.returncode == 0)
        install_conflist(path, wanted)

    monkeypatch.setattr(node_files, "install_conflist", observed)
    install(settings_of(node))
    assert seen == [True]


def test_a_full_disk_leaves_what_was_there(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(settings_of(node))
    before = snapshot(node)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        install(settings_of(node, COIL_PATH=version_of(tmp_path, b"newer")))
    assert snapshot(node) == before


@pytest.mark.parametrize("arguments", [[], ["install"]])
def test_the_command(node: Path, arguments: list[str]) -> None:
    def run(*more: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "coil_installer.main", *more],
            env=environ_of(node, **environ),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    bad = run(*arguments, CNI_NETCONF="{")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("coil-installer: the network configuration is not JSON")
    assert bad.stderr.count("\n") == 1
    assert not node.exists()
    assert run(*arguments).returncode == 0
    assert plugin_of(node).exists()
    assert run("uninstall").returncode == 0
    assert snapshot(node) == {}


def test_under_kuryrs_name(node: Path) -> None:
    conf = {"name": "kuryr-network", "type": "kuryr"}
    settings = settings_of(node, CNI_CONF_NAME="10-kuryr.conf", CNI_PLUGIN_NAME="kuryr", CNI_NETCONF=json.dumps(conf))
    install(settings)
    plugin = node / "opt/cni/bin/kuryr"
    said = json.loads(run_plugin_at(plugin, CNI_COMMAND="VERSION").stdout)
    assert "0.1.0" in said["supportedVersions"]
    assert json.loads((node / "etc/cni/net.d/10-kuryr.conf").read_text()) == conf
    uninstall(settings.folders)
    assert snapshot(node) == {}
