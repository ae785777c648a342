"""A node that the installer's first version has been on: what it left goes, and nothing else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coil_installer import node_files
from coil_installer.conflist import install_conflist
from coil_installer.node_files import install, uninstall
from coil_installer.settings import InstallError
from tests.coil_installer.node import conflist_of, plugin_of, run_plugin_at, settings_of, snapshot

DIGESTS = ("0123456789abcdef", "fedcba9876543210")
UNFINISHED = (".0123456789abcdef.new", ".0123456789abcdef.x1_yz2ab")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As it was left, a crash in between included."""
    monkeypatch.setattr(node_files, "_LAUNCH_SECONDS", 0.0)
    root = tmp_path / "node"
    bundles_of(root).mkdir(parents=True)
    for name in (*DIGESTS, *UNFINISHED):
        (bundles_of(root) / name).write_bytes(b"modules")
    plugin_of(root).write_text("#!/usr/bin/python3 -IS\n")
    return root


def bundles_of(root: Path) -> Path:
    return plugin_of(root).parent / ".coil"


def test_installing_removes_it(node: Path) -> None:
    install(settings_of(node))
    assert snapshot(node).keys() == {"opt/cni/bin/coil", "etc/cni/net.d/10-coil.conflist"}
    assert not bundles_of(node).exists()
    install(settings_of(node))


def test_it_goes_after_the_new_plugin_and_the_configuration_are_there(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []

    def observed(path: Path, wanted: str) -> None:
        install_conflist(path, wanted)
        whole = run_plugin_at(plugin_of(node), CNI_COMMAND="VERSION").returncode == 0
        seen.append((whole, bundles_of(node).is_dir()))

    monkeypatch.setattr(node_files, "install_conflist", observed)
    install(settings_of(node))
    assert seen == [(True, True)]


def test_an_install_that_fails_leaves_it(node: Path, tmp_path: Path) -> None:
    before = snapshot(node)
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"")
    with pytest.raises(InstallError):
        install(settings_of(node, COIL_PATH=str(wrong)))
    assert snapshot(node) == before


def test_uninstalling_removes_it(node: Path) -> None:
    uninstall(settings_of(node).folders)
    assert snapshot(node) == {}
    assert not bundles_of(node).exists()
    uninstall(settings_of(node).folders)


def test_an_empty_one_goes_too(node: Path) -> None:
    for path in bundles_of(node).iterdir():
        path.unlink()
    install(settings_of(node))
    assert not bundles_of(node).exists()


def add_file(folder: Path) -> None:
    (folder / "notes").write_text("precious")


def add_folder(folder: Path) -> None:
    (folder / "aaaaaaaaaaaaaaaa").mkdir()


def add_link(folder: Path) -> None:
    (folder / "aaaaaaaaaaaaaaaa").symlink_to("/etc/hostname")


def become_link(folder: Path) -> None:
    elsewhere = folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(elsewhere)


def become_file(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("precious")


@pytest.mark.parametrize("change", [add_file, add_folder, add_link, become_link, become_file])
def test_what_it_did_not_make_stays(node: Path, change: Callable[[Path], None]) -> None:
    change(bundles_of(node))
    before = listing(plugin_of(node).parent)
    install(settings_of(node))
    assert listing(plugin_of(node).parent) == before
    uninstall(settings_of(node).folders)
    assert listing(plugin_of(node).parent) == before - {"coil"}
    assert not conflist_of(node).exists()


def listing(folder: Path) -> set[str]:
    """All paths below it; what links lead to is not looked at."""
    return {
        os.path.relpath(os.path.join(found, name), folder)  # noqa: PTH118 - paths as text
        for found, folders, files in os.walk(folder)
        for name in (*folders, *files)
    }
