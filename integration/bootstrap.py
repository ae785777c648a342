"""Set-up for `make demo` and `make test` on bare Debian 12 or 13: packages, virtual environment, the Kubernetes build.

With the argument `test` also what `make test` needs beyond the demo: OpenStack's Neutron. With `test-all` also what
`make test-all` needs beyond that: Kubernetes' own tests and the images of their pods.

Runs before any dependency is there, so it uses the standard library alone. Every step is skipped
when its result is already there, and leaves nothing half-made when it fails: the virtual environment gets its stamp
last and is removed if it did not get it. What is missing is said in one sentence, with exit code 1.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from integration.cluster.requirement import (  # noqa: E402 - found through the line above
    RequirementError,
    check_namespaces,
    check_requirements,
)
from integration.vm.boot import check_folder  # noqa: E402 - the same
from integration.vm.feature import missing_features  # noqa: E402 - the same

VENV = ROOT / ".venv"
STAMP = VENV / "coil-stamp"
POLICY = Path("/usr/sbin/policy-rc.d")

DEBIAN = "Debian 12 or 13"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
BASE_PYTHON = Path(sys.base_prefix) / "bin" / PYTHON
"""The interpreter without a virtual environment: one that is activated may be the very one that is made anew."""
PACKAGES = {
    f"{PYTHON}-venv": "the virtual environment",
    "iproute2": "network namespaces, and the oracle of the kernel tests",
    "libnftables1": "nftables' library",
    "nftables": "the oracle of the nftables tests",
    "iptables": "kube-proxy",
    "ipset": "what to compare the EIP gateway's tables with",
    "conntrack": "kube-proxy",
    "bird2": "the routing daemon on each node",
    "openvswitch-switch": "what ports of Neutron are plugged into on many nodes",
    "systemd": "systemd-networkd, which nodes in AWS have beside coild",
    "busybox-static": "the image of the pods",
    "containernetworking-plugins": "the CNI plugins to compare with",
    "curl": "what an administrator looks into a node with",
    "chromium": "the browser that the inspection pages are tested in",
    "libatomic1": "the program that drives the browser",
    "fonts-dejavu-core": "the browser's letters",
    "gcc": "building the plugin",
    "libc6-dev": "building the plugin",
    f"lib{PYTHON}-dev": "building the plugin",
    "libseccomp-dev": "building the container runtime",
    "pkgconf": "building the container runtime",
    "debootstrap": "the root file system that the image is built in",
}
FALLBACK_PACKAGES = {
    "etcd-server": "the API server's store",
    "containerd": "the container runtime",
    "runc": "the container runtime",
    "golang-go": "building Kubernetes",
    "dpkg-dev": "fetching Kubernetes' source package",
    "rsync": "building Kubernetes",
    "make": "building Kubernetes",
}
"""Where no Go modules can be had, for Debian's Kubernetes in place of today's."""
NO_MODULES = 3
"""The build's exit code when they are missing for that."""
VM_PACKAGES = {
    "kmod": "the index of the virtual machine's modules",
    "qemu-system-x86": "the virtual machine, where this kernel lacks Foo-over-UDP",
}
# What Debian enables when it installs these; the project starts its own, in namespaces.
SERVICES = {
    "etcd-server": "etcd",
    "containerd": "containerd",
    "bird2": "bird",
    "openvswitch-switch": "openvswitch-switch",
}


def main() -> int:
    started = time.monotonic()
    try:
        check_machine()
        check_namespaces()
        install_packages(PACKAGES)
        check_requirements()
        make_environment()
        fetch_helm()
        build_kubernetes()
        prepare_kernel()
        if sys.argv[1:]:
            fetch_openstack()
        if sys.argv[1:] == ["test-all"]:
            prepare_conformance()
            build_coil_v2()
    except RequirementError as error:
        print(f"coil: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("coil: interrupted; run the command again to go on", file=sys.stderr)
        return 130
    say(f"set-up complete ({time.monotonic() - started:.0f} s)")
    return 0


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def check_machine() -> None:
    """Stop early where the rest cannot work."""
    if platform.system() != "Linux":
        raise RequirementError(f"this needs Linux, not {platform.system()}; use a machine or VM with {DEBIAN}.")
    if sys.version_info < (3, 11):  # noqa: UP036 - the machine's Python, before the project's own is chosen
        found = platform.python_version()
        raise RequirementError(f"Python {found} is too old; install Python 3.11 or later ({DEBIAN} has it).")
    if Path(sys.base_prefix) != Path("/usr"):
        raise RequirementError(
            f"{sys.executable} is not Debian's Python, whose packages this installs; run it with /usr/bin/python3."
        )
    if os.geteuid() != 0:
        raise RequirementError(
            "network namespaces and containers need root; run the same command as root (sudo make ...)."
        )
    if problem := check_folder(ROOT):
        raise RequirementError(f"this checkout cannot be tested where it is: {problem}.")


def quiet(*argv: str) -> bool:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def install_packages(packages: Collection[str]) -> None:
    present = installed(packages)
    missing = [package for package in packages if package not in present]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise RequirementError(
            f"apt-get is not there to install {', '.join(missing)}; use {DEBIAN}, or install their equivalents."
        )
    say(f"installing Debian packages: {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    step(["apt-get", "update", "-q"], "the package lists could not be read", env=environment)
    with services_not_started():
        step(
            ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing],
            f"apt-get could not install {', '.join(missing)}",
            env=environment,
        )
    if Path("/run/systemd/system").is_dir():
        for package in SERVICES.keys() & set(missing):
            quiet("systemctl", "disable", SERVICES[package])


def installed(packages: Collection[str]) -> set[str]:
    """Those of the packages that are installed. All are asked for at once, as this is done before every run."""
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n", *packages]
    try:
        # The exit code says whether it knows all of them, installed or not.
        said = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False).stdout
    except FileNotFoundError:
        return set()
    return {name for name, status in map(str.split, said.splitlines()) if status == "installed"}


@contextlib.contextmanager
def services_not_started() -> Iterator[None]:
    """Keep Debian from starting what it installs on the host (policy-rc.d), unless it is already told to."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def make_environment() -> None:
    """A `.venv` with exactly the versions of constraints.txt; made again when the pins or the project file change."""
    wanted = environment_stamp()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    say("making the virtual environment .venv")
    shutil.rmtree(VENV, ignore_errors=True)
    try:
        step([str(BASE_PYTHON), "-m", "venv", str(VENV)], "the virtual environment could not be made")
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off", "-q"]
        pinned = ["-c", str(ROOT / "constraints.txt")]
        step([*pip, *pinned, "hatchling"], "pip could not install hatchling")
        say("installing the pinned Python packages")
        step(
            [*pip, *pinned, "--no-build-isolation", "-e", f"{ROOT}[dev]"],
            "pip could not install the project's dependencies",
        )
        STAMP.write_text(wanted)
    finally:
        if not STAMP.exists():
            shutil.rmtree(VENV, ignore_errors=True)


def environment_stamp() -> str:
    digest = hashlib.sha256(f"{BASE_PYTHON} {platform.python_version()} {ROOT}".encode())
    for name in ("constraints.txt", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def fetch_helm() -> None:
    """Helm, into the cache: once."""
    step([str(VENV / "bin" / "python"), "-m", "integration.helm.program"], "Helm could not be fetched")


def build_kubernetes() -> None:
    build = [str(VENV / "bin" / "python"), "-m", "integration.cluster.programs"]
    if subprocess.run(build, stdin=subprocess.DEVNULL, cwd=ROOT, timeout=3600, check=False).returncode == NO_MODULES:
        install_packages(FALLBACK_PACKAGES)
    step(build, "Kubernetes could not be built")


def fetch_openstack() -> None:
    """Neutron, in a virtual environment of its own in the cache: once."""
    step([str(VENV / "bin" / "python"), "-m", "integration.neutron.environment"], "Neutron could not be fetched")


def prepare_conformance() -> None:
    """Here, so that they are not built while tests measure time. Without, the tests that need them say why."""
    build = [str(VENV / "bin" / "python"), "-m", "integration.conformance.images"]
    if subprocess.run(build, stdin=subprocess.DEVNULL, cwd=ROOT, timeout=3600, check=False).returncode:
        say("without the tests of Kubernetes; see the lines above")


def build_coil_v2() -> None:
    """Here, so that a test does not wait for it. Without, the test that needs it says why."""
    build = [str(VENV / "bin" / "python"), "-m", "integration.cluster.programs", "coil-v2"]
    if subprocess.run(build, stdin=subprocess.DEVNULL, cwd=ROOT, timeout=3600, check=False).returncode:
        say("without the Go programs of Coil v2; see the lines above")


def prepare_kernel() -> None:
    """Where this kernel lacks Foo-over-UDP, a virtual machine whose kernel has it: unpacked, never installed."""
    if missing_features():
        install_packages(VM_PACKAGES)
        step([sys.executable, "-m", "integration.vm.kernel"], "a kernel with Foo-over-UDP could not be had")


def step(argv: Sequence[str], failure: str, *, env: dict[str, str] | None = None) -> None:
    """Run one program with its output shown; bounded at half an hour."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, cwd=ROOT, env=env, timeout=1800, check=False)
    except subprocess.TimeoutExpired:
        raise RequirementError(f"{failure}: no end after 30 minutes; see the lines above.") from None
    if done.returncode != 0:
        raise RequirementError(f"{failure} (exit code {done.returncode}); see the lines above.")


if __name__ == "__main__":
    sys.exit(main())
