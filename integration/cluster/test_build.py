"""Building Kubernetes, with stand-ins for Debian's tools: what is left in the cache, whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.cluster import build
from integration.cluster.apt_source import render_source_entries, render_source_lines
from integration.cluster.build import BUILD_COMMANDS, BUILT, BuildError, Program, locate

TOOLS = {
    # The last argument is the package with its version; apt-get's other use here is `update`.
    "apt-get": 'for last; do :; done; case "$last" in *=*) touch "${last%%=*}_1.dsc";; esac',
    "apt-cache": 'echo "Package: x"; echo "Version: 1.20.5+really1.20.2-1.1"; echo "Version: 1.19.9-1"',
    "dpkg-source": 'for last; do :; done; mkdir -p "$last/vendor/github.com/modern-go/reflect2"',
    "make": 'mkdir -p "$2/_output/bin"; cd "$2/_output/bin"; touch ' + " ".join(BUILT),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, package sources, and tools that succeed at once."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for command in {*BUILD_COMMANDS, *TOOLS} - {"setpriv"}:
        write_tool(tools, command, TOOLS.get(command, "exit 0"))
    etc = tmp_path / "apt"
    etc.mkdir()
    (etc / "sources.list").write_text("deb https://packages.test/debian stable main\n")
    monkeypatch.setattr(build, "ETC_APT", etc)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "cache" / "coil"


def write_tool(tools: Path, command: str, script: str) -> None:
    (tools / command).write_text(f"#!/bin/sh\n{script}\n")
    (tools / command).chmod(0o755)


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_a_build_leaves_one_whole_entry_which_is_used_from_then_on(cache: Path) -> None:
    entry = f"kubernetes-1.20.2-r{build.RECIPE}"
    kubelet = locate([Program.KUBELET])[Program.KUBELET]

    assert kubelet == cache / entry / "kubelet"
    assert folders(cache) == [entry]
    assert sorted(path.name for path in (cache / entry).iterdir()) == sorted(BUILT)
    write_tool(cache.parents[1] / "bin", "make", "exit 1")
    assert locate([Program.KUBELET])[Program.KUBELET] == kubelet


def test_a_failed_build_tells_the_end_of_the_output_and_leaves_nothing(cache: Path) -> None:
    write_tool(cache.parents[1] / "bin", "make", "echo compiler out of ideas; exit 7")

    with pytest.raises(BuildError, match=r"(?s)compiling.*exit code 7.*compiler out of ideas"):
        locate([Program.KUBELET])
    assert folders(cache) == []


def test_what_a_killed_build_left_is_removed(cache: Path) -> None:
    leftover = cache / "build.leftover" / "gopath"
    leftover.mkdir(parents=True)
    locate([Program.KUBELET])
    assert folders(cache) == [f"kubernetes-1.20.2-r{build.RECIPE}"]


def test_an_entry_that_is_not_whole_is_made_again(cache: Path) -> None:
    entry = cache / f"kubernetes-1.20.2-r{build.RECIPE}"
    entry.mkdir(parents=True)
    (entry / "kubelet").touch()
    assert locate([Program.PROXY]) == {Program.PROXY: entry / "kube-proxy"}


def test_a_missing_tool_is_named_with_its_package(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"go \(package golang-go\).*apt-get"):
        locate([Program.KUBELET])
    assert not cache.exists()


def test_deb822_stanzas_become_source_stanzas() -> None:
    text = (
        "# the main archive\nTypes: deb\nURIs: https://packages.test/debian\nSuites: stable\nComponents: main\n"
        "Signed-By:\n -----BEGIN\n .\n x\n\n"
        "Enabled: no\nTypes: deb\nURIs: https://off.test\nSuites: x\n"
    )
    assert render_source_entries(text) == (
        "Types: deb-src\nURIs: https://packages.test/debian\nSuites: stable\nComponents: main\n"
        "Signed-By:\n -----BEGIN\n .\n x\n\n"
    )


def test_one_line_entries_become_source_entries_once() -> None:
    text = (
        "# deb https://off.test stable main\ndeb [arch=amd64 signed-by=/k.gpg] https://packages.test stable main\n"
        "deb-src [arch=amd64 signed-by=/k.gpg] https://packages.test stable main\n\n"
    )
    assert render_source_lines(text) == "deb-src [arch=amd64 signed-by=/k.gpg] https://packages.test stable main\n"
