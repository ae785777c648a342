"""Building the programs, with stand-ins for Go and Debian's tools: what is left in the cache, whatever happens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from integration.cluster import debian_build, programs
from integration.cluster.apt_source import render_source_entries, render_source_lines
from integration.cluster.build_steps import BuildError
from integration.cluster.programs import CLUSTER, COIL_V2, CONFORMANCE, KUBERNETES, Program, Release, locate, main

GO = """
here="$(dirname "$0")/.."
echo "$*" >>"$here/asked"
echo "$* CGO_ENABLED=$CGO_ENABLED $GOFLAGS" >>"$here/environments"
case "$1" in
  version) echo "go version go1.26.3 linux/amd64";;
  list)
    [ ! -e "$here/offline" ] || { echo "no route to the module proxy"; exit 1; }
    coil="$GOMODCACHE/github.com/cybozu-go/coil/v2@v2.15.0"
    mkdir -p "$coil/config/rbac"
    touch "$coil/config/rbac/coild_role.yaml" "$coil/kustomization.yaml" "$coil/netconf.json" "$coil/go.mod";;
  build|test)
    while [ "$1" != -o ]; do shift; done
    case "$2" in */kubelet) [ ! -e "$here/broken" ] || { echo "compiler out of ideas"; exit 7; };; esac
    touch "$2";;
esac
"""
DEBIAN_TOOLS = {
    # The last argument is the package with its version; apt-get's other use here is `update`.
    "apt-get": 'for last; do :; done; case "$last" in *=*) touch "${last%%=*}_1.dsc";; esac',
    "apt-cache": 'echo "Package: x"; echo "Version: 1.20.5+really1.20.2-1.1"; echo "Version: 1.19.9-1"',
    "dpkg-source": 'for last; do :; done; mkdir -p "$last/vendor/github.com/modern-go/reflect2"',
    "make": 'mkdir -p "$2/_output/bin"; cd "$2/_output/bin"; touch ' + " ".join(KUBERNETES),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, package sources, and tools that succeed at once."""
    tools = tmp_path / "bin"
    tools.mkdir()
    wanted = {**dict.fromkeys(debian_build.COMMANDS, "exit 0"), **DEBIAN_TOOLS, "go": GO}
    wanted.update(dict.fromkeys((Program.ETCD, Program.CONTAINERD, Program.SHIM, Program.CTR, Program.RUNC), "exit 0"))
    del wanted["setpriv"]
    for command, script in wanted.items():
        write_tool(tools, command, script)
    etc = tmp_path / "apt"
    etc.mkdir()
    (etc / "sources.list").write_text("deb https://packages.test/debian stable main\n")
    monkeypatch.setattr(debian_build, "ETC_APT", etc)
    # Stand-ins fill no disk, and Debian 13 has /tmp in memory.
    monkeypatch.setattr(programs, "FREE_BYTES", 0)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("COIL_KUBERNETES", Release.NEWEST)
    return tmp_path / "cache" / "coil"


def write_tool(tools: Path, command: str, script: str) -> None:
    (tools / command).write_text(f"#!/bin/sh\n{script}\n")
    (tools / command).chmod(0o755)


def folders(cache: Path) -> list[str]:
    return sorted(path.name.rpartition("-")[0] for path in cache.iterdir() if path.is_dir())


def test_a_build_leaves_whole_entries_which_are_used_from_then_on(cache: Path) -> None:
    found = locate(CLUSTER)

    assert folders(cache) == ["kubernetes-1.37.2", "runc-1.5.2", "runtime-2.4.2"]
    assert {program: path.name for program, path in found.items()} == {program: program.value for program in CLUSTER}
    assert all(path.is_file() for path in found.values())
    (cache.parents[1] / "broken").touch()
    assert locate(CLUSTER) == found


def test_kubernetes_own_tests_are_built_for_who_asks_for_them(cache: Path) -> None:
    found = locate(CONFORMANCE)

    assert folders(cache) == ["conformance-1.37.2"]
    assert {program: path.name for program, path in found.items()} == {
        program: program.value for program in CONFORMANCE
    }
    asked = (cache.parents[1] / "asked").read_text().splitlines()
    # As a program; the tests of what it imports are nobody's affair.
    assert [line.rsplit(maxsplit=1)[1] for line in asked if line.startswith("test -c ")] == [
        "k8s.io/kubernetes/test/e2e"
    ]
    assert "list -deps -test k8s.io/kubernetes/test/e2e" in asked
    assert locate(tuple(Program)).keys() == set(Program)
    assert folders(cache) == ["coil-2.15.0", "conformance-1.37.2", "kubernetes-1.37.2", "runc-1.5.2", "runtime-2.4.2"]


def test_the_programs_of_coil_v2_are_kept_with_their_manifests(cache: Path) -> None:
    folder = locate(COIL_V2)[Program.COIL_V2_COILD].parent

    assert folders(cache) == ["coil-2.15.0"]
    assert {path.name for path in folder.iterdir()} == {*COIL_V2, "config", "kustomization.yaml", "netconf.json"}
    assert (folder / "config" / "rbac" / "coild_role.yaml").is_file()
    shutil.rmtree(folder / "config")
    assert main(["coil-v2"]) == 0
    assert (folder / "config").is_dir()


def test_debian_has_nothing_in_the_place_of_kubernetes_own_tests(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache.parents[1] / "offline").touch()
    assert main(["conformance"]) == 1
    assert "no route to the module proxy" in capsys.readouterr().err
    assert folders(cache) == []


def test_each_release_has_its_entry(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = locate([Program.KUBELET])
    monkeypatch.setenv("COIL_KUBERNETES", Release.OLDEST)
    assert locate([Program.KUBELET]) != newest
    assert folders(cache) == ["kubernetes-1.34.4", "kubernetes-1.37.2", "runc-1.5.2", "runtime-2.4.2"]


def test_programs_of_kubernetes_know_their_version(cache: Path) -> None:
    locate([Program.KUBELET])
    asked = (cache.parents[1] / "asked").read_text().splitlines()
    built = [line for line in asked if line.startswith("build ")]
    assert all("-X k8s.io/component-base/version.gitVersion=v1.37.2" in line for line in built if "k8s.io/" in line)
    assert not any("gitVersion" in line for line in built if "k8s.io/" not in line)
    assert len(built) == len(CLUSTER)


def test_only_the_container_runtime_has_parts_in_c(cache: Path) -> None:
    locate(CLUSTER)
    built = [line for line in (cache.parents[1] / "environments").read_text().splitlines() if line.startswith("build ")]
    [runc] = [line for line in built if "CGO_ENABLED=1" in line]
    assert "/runc CGO_ENABLED=1" in runc
    assert runc.endswith(" -tags=seccomp")
    assert all("CGO_ENABLED=0" in line and line.endswith(" -tags=") for line in built if line != runc)


def test_a_failed_build_tells_the_end_of_the_output_and_leaves_nothing(cache: Path) -> None:
    (cache.parents[1] / "broken").touch()

    with pytest.raises(BuildError, match=r"(?s)compiling kubelet.*exit code 7.*compiler out of ideas"):
        locate([Program.KUBELET])
    assert folders(cache) == []


def test_a_later_debian_has_no_kubernetes_to_take_its_place(cache: Path) -> None:
    (cache.parents[1] / "offline").touch()
    write_tool(cache.parents[1] / "bin", "apt-cache", 'echo "Version: 1.32.3+ds-2"')

    with pytest.raises(BuildError, match=r"Kubernetes here is 1\.32\.3.*Debian 12 has 1\.20\..*module proxy"):
        locate([Program.KUBELET])
    assert folders(cache) == []


def test_without_the_module_proxy_debians_takes_its_place(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offline = cache.parents[1] / "offline"
    offline.touch()

    found = locate([Program.KUBELET, Program.ETCD])

    assert found == {
        Program.KUBELET: cache / "kubernetes-debian-r3" / "kubelet",
        Program.ETCD: cache.parents[1] / "bin" / "etcd",
    }
    said = capsys.readouterr().out
    assert "no route to the module proxy" in said
    assert "Debian's Kubernetes 1.20 of 2020 takes its place" in said
    # Tests are not to try again each time that they start a cluster.
    offline.unlink()
    assert locate([Program.KUBELET, Program.ETCD]) == found


def test_what_a_killed_build_left_is_removed(cache: Path) -> None:
    (cache / "build.leftover.d" / "gopath").mkdir(parents=True)
    locate([Program.KUBELET])
    assert folders(cache) == ["kubernetes-1.37.2", "runc-1.5.2", "runtime-2.4.2"]


def test_an_entry_that_is_not_whole_is_made_again(cache: Path) -> None:
    kubelet = locate([Program.KUBELET])[Program.KUBELET]
    kubelet.unlink()
    assert locate([Program.KUBELET])[Program.KUBELET].is_file()


def test_an_unknown_release_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COIL_KUBERNETES", "1.12")
    with pytest.raises(BuildError, match=r"COIL_KUBERNETES=1\.12 is none of 1\.37, 1\.34, debian"):
        locate([Program.KUBELET])
    assert not cache.exists()


def test_a_missing_tool_of_the_fallback_is_named_with_its_package(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COIL_KUBERNETES", Release.DEBIAN)
    (cache.parents[1] / "bin" / "rsync").unlink()
    monkeypatch.setenv("PATH", str(cache.parents[1] / "bin"))
    with pytest.raises(BuildError, match=r"rsync \(package rsync\).*apt-get"):
        locate([Program.KUBELET])
    assert folders(cache) == []


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
