"""Programs of the image, emulated, with a read-only root; what they need of this machine's kernel is not emulated."""

import json
from pathlib import Path

import pytest

from integration.image.rootfs import Container, Rootfs
from integration.image.test_start import CONFLIST, IMPORT_ALL, LOAD_ALL, PROGRAMS, ROOT, USAGES

SECONDS = 300
"""An emulated program computes some ten times as long, and the machine may have more to do."""


def python(image: Rootfs, script: str, *arguments: str) -> str:
    done = image.run("python3", "-c", script, *arguments, seconds=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_interpreter_is_an_emulated_one(image: Rootfs) -> None:
    said = python(image, "import platform, sysconfig; print(platform.machine(), sysconfig.get_config_var('MULTIARCH'))")
    assert said == "aarch64 aarch64-linux-gnu\n"


def test_every_module_of_ours_finds_what_it_imports(image: Rootfs) -> None:
    packages = {target.partition(".")[0] for target in PROGRAMS.values()}
    assert python(image, IMPORT_ALL, "coil", *sorted(packages)) == "done\n"


def test_every_extension_finds_its_libraries(image: Rootfs) -> None:
    assert python(image, LOAD_ALL) == "upb\n"


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_starts(image: Rootfs, program: str) -> None:
    done = image.run(program, "--help", seconds=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(USAGES.get(program, f"usage: {program} "))


def test_the_installer_tries_the_plugin_out_and_installs_it(image: Rootfs, plugin: Path, tmp_path: Path) -> None:
    programs, configurations = tmp_path / "bin", tmp_path / "net.d"
    for folder in (programs, configurations):
        folder.mkdir()
    container = Container(
        user=ROOT,
        environment={"CNI_NETCONF": json.dumps(CONFLIST)},
        mounts={programs: "/host/opt/cni/bin", configurations: "/host/etc/cni/net.d"},
    )
    done = image.run("coil-installer", container=container, seconds=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert (programs / "coil").read_bytes() == plugin.read_bytes()
    assert json.loads((configurations / "10-coil.conflist").read_text())["plugins"] == CONFLIST["plugins"]
