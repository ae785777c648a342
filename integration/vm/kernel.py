"""Debian's kernel in the cache: the package unpacked, never installed, so no machine's boot files are touched.

A cache entry is `kernel-<version>` with the kernel as `vmlinuz` and its modules below `root/usr/lib/modules/<version>`,
indexed. It is made in a folder beside it and renamed when it is whole; one maker at a time.

`python -m integration.vm.kernel` has it at hand where the running kernel lacks a feature, and does nothing elsewhere.
"""

import fcntl
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.cluster.cache import cache_root
from integration.vm.feature import missing_features

PACKAGE = "linux-image-amd64"
"""Depends on the newest kernel, which has the modules. The smaller cloud image lacks 9p."""

_MODULES = Path("usr") / "lib" / "modules"
_SECONDS = 1800


class KernelError(Exception):
    """The kernel cannot be had; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the cache."""

    version: str
    folder: Path

    @property
    def image(self) -> Path:
        """What a machine boots."""
        return self.folder / "vmlinuz"

    @property
    def root(self) -> Path:
        """A root directory with nothing but the modules."""
        return self.folder / "root"

    @property
    def modules(self) -> Path:
        """The folder that modprobe calls its own."""
        return self.root / _MODULES / self.version


def cached_kernel() -> Kernel | None:
    """The newest kernel in the cache."""
    kernels = [Kernel(path.name.removeprefix("kernel-"), path) for path in cache_root().glob("kernel-[0-9]*")]
    return max(kernels, key=lambda kernel: [int(n) for n in re.findall(r"\d+", kernel.version)], default=None)


def ensure_kernel() -> Kernel:
    """The kernel in the cache; downloads and unpacks Debian's where there is none. Idempotent. Raises KernelError."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with (root / "kernel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (kernel := cached_kernel()) is not None:
            return kernel
        for leftover in root.glob("kernel.[!l]*"):
            shutil.rmtree(leftover)
        work = Path(tempfile.mkdtemp(prefix="kernel.", dir=root))
        try:
            return _unpack(work, root)
        finally:
            shutil.rmtree(work)


def _unpack(work: Path, root: Path) -> Kernel:
    package = _newest_package(work)
    version = package.removeprefix("linux-image-")
    print(f"downloading {package}, whose kernel has what this one lacks", flush=True)
    # It would drop its privileges to a user that cannot write here.
    _run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download", package], work)
    [archive] = work.glob("*.deb")
    unpacked = work / "unpacked"
    _run(["dpkg", "--extract", str(archive), str(unpacked)], work)
    whole = work / "whole"
    (whole / "root" / _MODULES).mkdir(parents=True)
    [modules] = unpacked.glob(f"**/modules/{version}")
    modules.rename(whole / "root" / _MODULES / version)
    (unpacked / "boot" / f"vmlinuz-{version}").rename(whole / "vmlinuz")
    # depmod has the modules in /lib; the package's installation would have run it.
    (whole / "root" / "lib").symlink_to("usr/lib")
    _run(["depmod", "-b", str(whole / "root"), version], work)
    (whole / "root" / "lib").unlink()
    entry = root / f"kernel-{version}"
    whole.rename(entry)
    return Kernel(version, entry)


def _newest_package(folder: Path) -> str:
    question = ["apt-cache", "depends", "--important", PACKAGE]
    for refresh in (False, True):
        if refresh:
            _run(["apt-get", "-q", "update"], folder)
        said = subprocess.run(question, check=False, capture_output=True, text=True, timeout=_SECONDS).stdout
        if match := re.search(r"Depends: (linux-image-\S+)", said):
            return match.group(1)
    raise KernelError(f"the package {PACKAGE} is in none of this machine's package sources (it is in Debian 12)")


def _run(argv: Sequence[str], folder: Path) -> str:
    try:
        done = subprocess.run(argv, cwd=folder, check=False, capture_output=True, text=True, timeout=_SECONDS)
    except FileNotFoundError as error:
        raise KernelError(f"{argv[0]} is missing; install it (Debian 12: apt, dpkg, kmod)") from error
    if done.returncode:
        raise KernelError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def main() -> int:
    """Have a kernel with the features: the running one's, or the cache's. The exit code."""
    if not missing_features():
        print("this kernel has Foo-over-UDP and its tunnels")
        return 0
    try:
        print(f"for Foo-over-UDP in a virtual machine: {ensure_kernel().image}")
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
