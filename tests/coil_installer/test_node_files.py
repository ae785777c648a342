"""Installing, installing again, upgrading, failing, removing; the plugin is really run."""

import json
import shutil
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

import coil_cni
from coil_installer import node_files
from coil_installer.durable_file import write_file
from coil_installer.error import InstallError
from coil_installer.node_files import install, uninstall
from tests.coil_cni.edges import ENVIRON, NETCONF
from tests.coil_cni.foreign_server import foreign_server
from tests.coil_cni.protobuf import protobuf_message
from tests.coil_installer.node import (
    CONFLIST,
    conflist_of,
    environ_of,
    launcher_of,
    run_launcher,
    settings_of,
    snapshot,
)


def source_with(tmp_path: Path, addition: str) -> str:
    """Another version of the plugin."""
    source = tmp_path / f"version-{len(list(tmp_path.iterdir()))}" / "coil_cni"
    shutil.copytree(Path(coil_cni.__file__).parent, source, ignore=shutil.ignore_patterns("__pycache__"))
    with (source / "version.py").open("a") as file:
        file.write(addition)
    return str(source)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


def test_installed_it_answers(node: Path) -> None:
    install(settings_of(node))
    assert json.loads(conflist_of(node).read_text()) == CONFLIST
    answer = run_launcher(launcher_of(node), CNI_COMMAND="VERSION")
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert json.loads(answer.stdout)["supportedVersions"] == ["0.3.1", "0.4.0", "1.0.0"]


def test_installed_it_adds_a_pod(node: Path, tmp_path: Path) -> None:
    install(settings_of(node))
    socket = tmp_path / "coild.sock"
    stdin = json.dumps(NETCONF | {"socket": str(socket)}).encode()
    away = run_launcher(launcher_of(node), stdin, **ENVIRON)
    assert (away.returncode, json.loads(away.stdout)["code"], away.stderr) == (1, 11, b"")
    response = protobuf_message("pkg.cnirpc.AddResponse", result=b'{"cniVersion":"1.0.0","ips":[]}')
    with foreign_server(socket, {"Add": lambda _, __: response}):
        answer = run_launcher(launcher_of(node), stdin, **ENVIRON)
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert json.loads(answer.stdout) == {"cniVersion": "1.0.0", "ips": []}


def test_bad_input_to_the_process_is_a_cni_error_without_a_traceback(node: Path) -> None:
    install(settings_of(node))
    for stdin, environ, code in [(b"", {}, 4), (b"{", ENVIRON, 6), (b"x" * (2 << 20), ENVIRON, 5)]:
        answer = run_launcher(launcher_of(node), stdin, **environ)
        assert (answer.returncode, json.loads(answer.stdout)["code"], answer.stderr) == (1, code, b"")


def test_the_plugin_writes_nothing_and_needs_nothing_of_the_environment(node: Path, tmp_path: Path) -> None:
    install(settings_of(node))
    before = snapshot(node)
    (tmp_path / "coil_cni").mkdir()
    (tmp_path / "coil_cni" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    for _ in range(2):
        answer = run_launcher(
            launcher_of(node),
            CNI_COMMAND="VERSION",
            PYTHONPATH=str(tmp_path),
            PYTHONHOME="/nowhere",
            PYTHONSTARTUP="/nowhere",
            LC_ALL="C",
        )
        assert answer.returncode == 0
    assert snapshot(node) == before


def test_it_runs_through_a_link_and_without_a_current_directory(node: Path, tmp_path: Path) -> None:
    install(settings_of(node))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(launcher_of(node).parent)
    answer = run_launcher(elsewhere / "coil", CNI_COMMAND="VERSION")
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


def test_an_upgrade_leaves_the_replaced_bundle_for_plugins_that_have_just_started(node: Path, tmp_path: Path) -> None:
    hidden = launcher_of(node).parent / ".coil"
    kept: list[set[str]] = []
    for addition in ("A = 1\n", "A = 2\n", "A = 3\n"):
        old_launcher = launcher_of(node).read_bytes() if launcher_of(node).exists() else None
        install(settings_of(node, COIL_PATH=source_with(tmp_path, addition)))
        kept.append({path.name for path in hidden.iterdir()})
        if old_launcher is not None:
            # What a runtime that had the old file open goes on to do.
            stale = launcher_of(node).parent / "stale"
            stale.write_bytes(old_launcher)
            stale.chmod(0o755)
            assert run_launcher(stale, CNI_COMMAND="VERSION").returncode == 0
            stale.unlink()
    first, second, third = kept
    assert (len(first), len(second), len(third)) == (1, 2, 2)
    assert not first & third


def test_what_a_crash_left_is_overwritten_and_removed(node: Path) -> None:
    install(settings_of(node))
    hidden = launcher_of(node).parent / ".coil"
    left = [
        launcher_of(node).with_name(".coil.new"),
        conflist_of(node).with_name(".10-coil.conflist.new"),
        hidden / ".0123456789abcdef.new",
    ]
    for path in left:
        path.write_text("half of it")
    launcher_of(node).unlink()
    conflist_of(node).unlink()
    install(settings_of(node))
    assert not any(path.exists() for path in left)
    for path in left:
        path.write_text("half of it")
    uninstall(settings_of(node).place)
    assert snapshot(node) == {}


def test_foreign_files_are_left_alone(node: Path) -> None:
    launcher_of(node).parent.mkdir(parents=True)
    conflist_of(node).parent.mkdir(parents=True)
    (launcher_of(node).parent / "bridge").write_text("another plugin")
    (conflist_of(node).parent / "99-other.conflist").write_text("another network")
    before = snapshot(node)
    install(settings_of(node))
    assert snapshot(node).items() >= before.items()
    uninstall(settings_of(node).place)
    assert snapshot(node) == before
    assert not (launcher_of(node).parent / ".coil").exists()
    uninstall(settings_of(node).place)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks the module"),
        ("import no_such_module\ndef main(): ...\n", "does not answer"),
        ("def main(): print('hello')\n", "does not answer"),
        ("def main(): print('{}')\n", "does not answer"),
        ("def main(): raise SystemExit(3)\n", "does not answer"),
    ],
)
def test_a_plugin_that_does_not_work_never_takes_the_place(node: Path, tmp_path: Path, text: str, message: str) -> None:
    install(settings_of(node))
    before = snapshot(node)
    source = Path(source_with(tmp_path, ""))
    if text:
        (source / "main.py").write_text(text)
    else:
        (source / "error.py").unlink()
    with pytest.raises(InstallError, match=message):
        install(settings_of(node, COIL_PATH=str(source)))
    after = snapshot(node)
    assert after.items() >= before.items()
    assert {Path(path).parent.name for path in after.keys() - before.keys()} <= {".coil"}
    install(settings_of(node))


def test_an_interpreter_that_is_none(node: Path, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="cannot be run"):
        install(settings_of(node, COIL_PYTHON=str(tmp_path / "absent")))
    assert not launcher_of(node).exists()
    assert not conflist_of(node).exists()
    with pytest.raises(InstallError, match="does not answer"):
        install(settings_of(node, COIL_PYTHON="/bin/true"))


def test_another_python_is_told_apart_from_ours(node: Path) -> None:
    install(settings_of(node))
    text = launcher_of(node).read_bytes()
    other = text.replace(repr(MAGIC_NUMBER).encode(), b"b'other'")
    assert other != text
    launcher_of(node).write_bytes(other)
    answer = run_launcher(launcher_of(node), CNI_COMMAND="VERSION")
    assert (answer.returncode, answer.stderr) == (1, b"")
    assert json.loads(answer.stdout)["code"] == 999


def test_the_configuration_appears_last(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def observed(path: Path, data: bytes, *, mode: int) -> None:
        if path == conflist_of(node):
            answer = run_launcher(launcher_of(node), CNI_COMMAND="VERSION")
            seen.append(answer.returncode == 0)
        write_file(path, data, mode=mode)

    monkeypatch.setattr(node_files, "write_file", observed)
    install(settings_of(node))
    assert seen == [True]


def test_a_full_disk_leaves_what_was_there(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(settings_of(node))
    before = snapshot(node)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        install(settings_of(node, COIL_PATH=source_with(tmp_path, "A = 1\n")))
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
    assert launcher_of(node).exists()
    assert run("uninstall").returncode == 0
    assert snapshot(node) == {}
