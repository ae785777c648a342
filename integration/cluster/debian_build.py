"""Kubernetes of Debian 12's source package: version 1.20, of 2020, where no Go module proxy is reached.

Coil does not support it (`integration.deployment.check_supported`); address management without Helm can be tested
on it. No code of the product is there for its sake alone.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from integration.cluster.apt_source import ETC_APT, SourceIndex, SourcePackageError
from integration.cluster.build_steps import BuildError, BuildSteps

COMMANDS = {
    "apt-get": "apt",
    "containerd": "containerd",
    "etcd": "etcd-server",
    "dpkg-source": "dpkg-dev",
    "go": "golang-go",
    "make": "make",
    "rsync": "rsync",
    "setpriv": "util-linux",
}
"""What a build and its use need, and the Debian package that has it."""

VERSION = "1.20."
"""Of the package that is built here: later ones have left their dependencies to other packages."""

REPLACED = {"golang-github-modern-go-reflect2": "vendor/github.com/modern-go/reflect2"}
"""Debian's source packages that take the place of a vendored one. reflect2 before 1.0.2 reads the compiler's map
iterator by offsets that Go 1.18 changed: a server built with it dies at random while it encodes custom resources."""


class MissingToolError(BuildError):
    """Commands are missing; the message names them with their packages."""


def check_debian_tools() -> None:
    """Raises MissingToolError unless Debian's Kubernetes can be built and run here."""
    missing = [f"{name} (package {package})" for name, package in COMMANDS.items() if not shutil.which(name)]
    if missing:
        raise MissingToolError(f"Debian's Kubernetes needs: {', '.join(missing)}; install it with apt-get")


def build_debian_kubernetes(work: Path, whole: Path, steps: BuildSteps, *, programs: Sequence[str]) -> None:
    """Put the programs into the folder ``whole``. Raises BuildError with what is missing and what to do."""
    check_debian_tools()
    try:
        _build(work, whole, steps, programs)
    except SourcePackageError as error:
        raise BuildError(str(error)) from error


def _build(work: Path, whole: Path, steps: BuildSteps, programs: Sequence[str]) -> None:
    index = SourceIndex(work / "apt", run=steps.run, etc=ETC_APT)
    version = index.version("kubernetes")
    # Debian's "1.20.5+really1.20.2-1.1" is upstream's 1.20.2.
    upstream = re.sub(r"-[^-]*$", "", version).rpartition("+really")[2].partition("+")[0]
    if not upstream.startswith(VERSION):
        raise BuildError(
            f"Debian's Kubernetes here is {upstream}, without what it depends on; Debian 12 has {VERSION}x. Make a Go "
            "module proxy reachable, or name a folder with the programs by KUBEBUILDER_ASSETS"
        )
    source = index.unpack("kubernetes", version, work)
    gopath = work / "gopath"
    tree = gopath / "src" / "k8s.io" / "kubernetes"
    tree.parent.mkdir(parents=True)
    source.rename(tree)
    for package, folder in REPLACED.items():
        shutil.rmtree(tree / folder)
        index.unpack(package, index.version(package), work).rename(tree / folder)
    # Outside a git checkout the build does not know its version, which clients ask a server for.
    major, minor, *_ = upstream.split(".")
    stamp = work / "version"
    stamp.write_text(
        "KUBE_GIT_COMMIT='debian'\nKUBE_GIT_TREE_STATE='archive'\n"
        f"KUBE_GIT_VERSION='v{upstream}'\nKUBE_GIT_MAJOR='{major}'\nKUBE_GIT_MINOR='{minor}'\n"
    )
    steps.run(
        "compiling (by far the longest step)",
        [
            *("make", "-C", str(tree), "all"),
            "WHAT=" + " ".join(f"cmd/{program}" for program in programs),
            "GOFLAGS=-trimpath",
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(work),
            "TMPDIR": str(work),
            "GOPATH": str(gopath),
            "GOCACHE": str(work / "gocache"),
            "GO111MODULE": "off",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
            "KUBE_GIT_VERSION_FILE": str(stamp),
        },
    )
    for program in programs:
        shutil.move(tree / "_output" / "bin" / program, whole / program)
