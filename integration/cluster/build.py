"""Where the programs of Kubernetes come from: ``KUBEBUILDER_ASSETS``, the cache, or Debian's source package.

First station of a cluster's start. ``locate`` answers with the path of each program asked for and, when one is neither
in the user's folder nor in the cache, builds the whole set once. A build happens in a folder beside the cache entry and
is renamed to it when it is whole, so an entry that exists is complete; a killed build leaves a folder that the next one
removes. One build at a time: a lock that the compiler's processes inherit, so not even an orphan of a killed build can
write into the next one.
"""

from __future__ import annotations

import enum
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from integration.cluster.apt_source import ETC_APT, SourceIndex, SourcePackageError
from integration.cluster.cache import cache_root

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
PROGRESS_INTERVAL = 15.0  # seconds between two lines about a running step
STEP_TIMEOUT = 3600.0  # seconds after which a step is given up
TAIL_LINES = 30  # of a failed step's output


class Program(enum.StrEnum):
    """The programs that a cluster runs, by the names of their files."""

    ETCD = "etcd"
    APISERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KUBELET = "kubelet"
    PROXY = "kube-proxy"


CONTROL_PLANE = (Program.ETCD, Program.APISERVER)
CONTROLLERS = (Program.CONTROLLER_MANAGER, Program.SCHEDULER)
NODE = (Program.KUBELET, Program.PROXY)
BUILT = tuple(program for program in Program if program is not Program.ETCD)

BUILD_COMMANDS = {
    "apt-get": "apt",
    "dpkg-source": "dpkg-dev",
    "go": "golang-go",
    "make": "make",
    "rsync": "rsync",
    "setpriv": "util-linux",
}
"""What a build needs, and the Debian package that has it."""

REPLACED = {"golang-github-modern-go-reflect2": "vendor/github.com/modern-go/reflect2"}
"""Debian's source packages that take the place of a vendored one. reflect2 before 1.0.2 reads the compiler's map
iterator by offsets that Go 1.18 changed: a server built with it dies at random while it encodes custom resources."""

RECIPE = 2
"""Part of a cache entry's name; to be raised when the recipe changes, so that what an older one built is not used."""


class BuildError(Exception):
    """A program of Kubernetes could not be found or built; the message says why and what to do."""


def locate(programs: Collection[Program]) -> Mapping[Program, Path]:
    """The file of each of ``programs``; builds what is missing (minutes, with progress on standard output).

    Raises BuildError with what is missing and what to do. Idempotent; a build that is cut short changes nothing.
    """
    assets = os.environ.get(ASSETS_VARIABLE)
    found: dict[Program, Path] = {}
    for program in programs:
        own = Path(assets).expanduser().resolve() / program if assets else None
        if own is not None and own.is_file():
            found[program] = own
        elif own is not None and program in CONTROL_PLANE:
            raise BuildError(f"{ASSETS_VARIABLE}={assets} has no {program}; unset it, or put {program} there")
    if Program.ETCD in programs and Program.ETCD not in found:
        etcd = shutil.which(Program.ETCD)
        if etcd is None:
            raise BuildError("etcd is missing; install the Debian package etcd-server")
        found[Program.ETCD] = Path(etcd)
    missing = [program for program in programs if program not in found]
    if missing:
        entry = _cached() or _build()
        found.update({program: entry / program for program in missing})
    return found


def _cached() -> Path | None:
    """The newest complete cache entry."""
    entries = [path for path in cache_root().glob(f"kubernetes-[0-9]*-r{RECIPE}") if path.is_dir()]
    entries = [path for path in entries if all((path / program).is_file() for program in BUILT)]
    return max(entries, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)], default=None)


def _build() -> Path:
    commands = [f"{name} (package {package})" for name, package in BUILD_COMMANDS.items() if not shutil.which(name)]
    if commands:
        raise BuildError(
            f"Kubernetes must be built once, for which this is missing: {', '.join(commands)}; "
            f"install it with apt-get, or name a folder with the programs in {ASSETS_VARIABLE}"
        )
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root / "kubernetes.lock") as lock:
        # Somebody else may have built it while we waited for the lock.
        if (entry := _cached()) is not None:
            return entry
        for leftover in root.glob("build.*"):
            print(f"removing {leftover}, left by a build that was cut short", flush=True)
            shutil.rmtree(leftover)
        if (free := shutil.disk_usage(root).free) < 6 << 30:
            raise BuildError(f"a build needs 6 GB in {root}, {free >> 20} MB are free; free some or set XDG_CACHE_HOME")
        work = Path(tempfile.mkdtemp(prefix="build.", dir=root))
        try:
            return _build_in(work, root, lock=lock)
        except SourcePackageError as error:
            raise BuildError(str(error)) from error
        finally:
            shutil.rmtree(work)


def _build_in(work: Path, root: Path, *, lock: IO[str]) -> Path:
    print("Kubernetes is built once from Debian's source package; 6 to 12 minutes on two cores.", flush=True)
    steps = _Steps(work / "log", lock=lock)
    index = SourceIndex(work / "apt", run=steps.run, etc=ETC_APT)
    version = index.version("kubernetes")
    source = index.unpack("kubernetes", version, work)
    # Debian's "1.20.5+really1.20.2-1.1" is upstream's 1.20.2.
    upstream = re.sub(r"-[^-]*$", "", version).rpartition("+really")[2].partition("+")[0]
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
            "WHAT=" + " ".join(f"cmd/{program}" for program in BUILT),
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
    whole = work / "whole"
    whole.mkdir()
    for program in BUILT:
        shutil.move(tree / "_output" / "bin" / program, whole / program)
    entry = root / f"kubernetes-{upstream}-r{RECIPE}"
    if entry.exists():  # incomplete, or _cached would have answered with it
        shutil.rmtree(entry)
    whole.rename(entry)
    print(f"built in {steps.elapsed():.0f} s: {entry}", flush=True)
    return entry


@contextmanager
def _lock(path: Path) -> Iterator[IO[str]]:
    """An exclusive lock on ``path``, waited for with progress lines; open file description, so children share it."""
    with path.open("w") as handle:
        deadline = time.monotonic() + STEP_TIMEOUT
        said = 0.0
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                now = time.monotonic()
                if now > deadline:
                    raise BuildError(f"another build has held {path} for an hour; end it and try again") from None
                if now - said >= PROGRESS_INTERVAL:
                    print("waiting for another build of Kubernetes on this machine…", flush=True)
                    said = now
                time.sleep(0.2)
            else:
                break
        yield handle


class _Steps:
    """Runs the steps of a build one after the other, output to a file, and says how it goes."""

    def __init__(self, log: Path, *, lock: IO[str]) -> None:
        self._log = log
        self._lock = lock
        self._start = time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the build began."""
        return time.monotonic() - self._start

    def run(self, what: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Run one program to its end. Raises BuildError with the end of its output when it fails."""
        print(f"[{self.elapsed():4.0f} s] {what}", flush=True)
        begun = time.monotonic()
        with self._log.open("w") as log:
            process = subprocess.Popen(
                # The program must not outlive a killed build; make hands the signal on to what it runs.
                ["setpriv", "--pdeathsig", "TERM", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                pass_fds=[self._lock.fileno()],
                start_new_session=True,
            )
            try:
                while (code := self._wait(process)) is None:
                    if time.monotonic() - begun > STEP_TIMEOUT:
                        raise BuildError(f"{what}: given up after {STEP_TIMEOUT:.0f} s\n{self._tail()}")
                    print(f"[{self.elapsed():4.0f} s] still {what}", flush=True)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.wait()
        if code:
            raise BuildError(f"{what} failed with exit code {code}; the end of its output:\n{self._tail()}")

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(PROGRESS_INTERVAL)
        except subprocess.TimeoutExpired:
            return None

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def main() -> int:
    """`python -m integration.cluster.build`: have every program at hand; the exit code."""
    try:
        for program, path in locate(tuple(Program)).items():
            print(f"{program}: {path}")
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
