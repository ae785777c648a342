"""Programs of the image, started as a runtime would: read-only root, nothing writable, not as root where they can."""

import json
from pathlib import Path

import pytest

from coil_cni.invocation import NEWEST
from integration.image.programs import read_programs
from integration.image.rootfs import Container, Rootfs

PROGRAMS = read_programs()
USAGES = {
    "kubectl-coil": "Usage: kubectl coil ",
    "kubectl_complete-coil": "--help\tShow this message",
    # Its name in Coil v2.
    "coil-egress": "usage: coil-egress-agent ",
}
ROOT = "0:0"
CONFLIST = {"cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": [{"type": "coil"}]}

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.append("/usr/local/lib/kubectl-coil")
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print("done")
"""
LOAD_ALL = """
import ctypes, pathlib, sys
for pattern in (f"{sys.implementation.cache_tag}*", "abi3"):
    for path in pathlib.Path("/usr").glob(f"**/*.{pattern}.so"):
        ctypes.CDLL(str(path))
for name in ("libnftables.so.1", "libkmod.so.2"):
    ctypes.CDLL(name)
from google.protobuf.internal import api_implementation
print(api_implementation.Type())
"""
WRITE = """
import errno, pathlib, sys
for folder in sys.argv[1:]:
    try:
        pathlib.Path(folder, "file").touch()
    except OSError as error:
        print(folder, errno.errorcode[error.errno])
    else:
        print(folder, "written")
"""


def python(image: Rootfs, script: str, *arguments: str, user: str = "") -> str:
    done = image.run("python3", "-c", script, *arguments, container=Container(user=user))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_starts_without_root(image: Rootfs, program: str) -> None:
    done = image.run(program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(USAGES.get(program, f"usage: {program} "))


def test_kubectl_coil_asks_an_api_server_by_the_library(image: Rootfs) -> None:
    """Its client, the tables and a loaded kubeconfig need what was left out of none of them."""
    program = "import kubectl_coil.cluster, kubectl_coil.output, coil.kube.kubeconfig, rich.progress"
    path = 'import sys; sys.path.insert(0, "/usr/local/lib/kubectl-coil"); '
    assert python(image, path + program) == ""
    done = image.run("kubectl-coil", "status", container=Container(environment={"KUBECONFIG": "/none"}))
    assert (done.returncode, done.stdout) == (2, "")
    assert "/none: No such file" in done.stderr


def test_no_other_program_finds_the_libraries_of_kubectl_coil(image: Rootfs) -> None:
    """structlog would import rich in each of them."""
    program = "import importlib.util; print([importlib.util.find_spec(name) for name in ('rich', 'click')])"
    assert python(image, program) == "[None, None]\n"


def test_the_root_is_read_only_even_for_root(image: Rootfs) -> None:
    folders = sorted(f"/{path.name}" for path in image.root.iterdir() if path.is_dir())
    folders = [folder for folder in folders if folder not in ("/dev", "/proc")]
    said = python(image, WRITE, *folders, user=ROOT).splitlines()
    assert said == [f"{folder} EROFS" for folder in folders]


def test_every_module_of_ours_finds_what_it_imports(image: Rootfs) -> None:
    packages = {target.partition(".")[0] for target in PROGRAMS.values()}
    assert python(image, IMPORT_ALL, "coil", *sorted(packages)) == "done\n"


def test_every_extension_finds_its_libraries(image: Rootfs) -> None:
    """Some packages go on without theirs, only slower."""
    assert python(image, LOAD_ALL) == "upb\n"


def test_nftables_answers(image: Rootfs) -> None:
    script = "import nftables; print(nftables.Nftables().cmd('list tables')[0])"
    assert python(image, script, user=ROOT) == "0\n"


@pytest.mark.parametrize("program", ["iptables", "ip6tables"])
def test_the_rule_in_forward_has_its_program(image: Rootfs, program: str) -> None:
    done = image.run(program, "-t", "filter", "-S", "FORWARD", container=Container(user=ROOT))
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["-P", "FORWARD"])


def test_an_administrator_can_list_connections(image: Rootfs) -> None:
    """In a router pod, as `kubectl exec` starts it there."""
    done = image.run("conntrack", "-L", container=Container(user=ROOT))
    assert (done.returncode, done.stdout) == (0, "")
    assert "0 flow entries have been shown" in done.stderr


def test_the_plugin_answers(image: Rootfs) -> None:
    plugin = image.environment["COIL_PATH"]
    done = image.run(plugin, container=Container(environment={"CNI_COMMAND": "VERSION"}))
    assert (done.returncode, json.loads(done.stdout)["cniVersion"]) == (0, NEWEST)


def test_a_module_that_no_kernel_has_is_told_and_fails_nothing(image: Rootfs) -> None:
    done = image.run("coil-installer", "load-modules", "coil_of_no_kernel", container=Container(user=ROOT))
    assert done.returncode == 0
    assert done.stderr.startswith("coil-installer: the kernel module coil_of_no_kernel is not loaded")


def test_the_installer_needs_two_folders_and_no_flag(image: Rootfs, tmp_path: Path) -> None:
    programs, configurations = tmp_path / "bin", tmp_path / "net.d"
    for folder in (programs, configurations):
        folder.mkdir()
    container = Container(
        user=ROOT,
        environment={"CNI_NETCONF": json.dumps(CONFLIST)},
        mounts={programs: "/host/opt/cni/bin", configurations: "/host/etc/cni/net.d"},
    )
    done = image.run("coil-installer", container=container)
    assert (done.returncode, done.stderr) == (0, "")
    inside = image.root / image.environment["COIL_PATH"].lstrip("/")
    assert (programs / "coil").read_bytes() == inside.read_bytes()
    assert json.loads((configurations / "10-coil.conflist").read_text())["plugins"] == CONFLIST["plugins"]

    assert image.run("coil-installer", "uninstall", container=container).returncode == 0
    assert [*programs.iterdir(), *configurations.iterdir()] == []
