"""Where the programs of a cluster come from: ``KUBEBUILDER_ASSETS``, the cache, or a build.

First station of a cluster's start. ``locate`` answers with the path of each program asked for and, when one is neither
in the user's folder nor in the cache, builds its whole set once. A build happens in a folder beside the cache entry and
is renamed to it when it is whole, so an entry that exists is complete; a killed build leaves a folder that the next one
removes. One build at a time: a lock that the compiler's processes inherit, so not even an orphan of a killed build can
write into the next one.

``COIL_KUBERNETES`` chooses among the releases that the project is tested with.
"""

from __future__ import annotations

import enum
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from integration.cluster.build_steps import PROGRESS_INTERVAL, STEP_TIMEOUT, BuildError, BuildSteps
from integration.cluster.cache import cache_root
from integration.cluster.debian_build import MissingToolError, build_debian_kubernetes, check_debian_tools
from integration.cluster.go_build import (
    FREE_BYTES,
    GoProgram,
    Kind,
    ModuleList,
    ModuleProxyError,
    build_go_programs,
)

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
RELEASE_VARIABLE = "COIL_KUBERNETES"


class Program(enum.StrEnum):
    """The programs that a cluster runs and is tested with, by the names of their files."""

    ETCD = "etcd"
    APISERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KUBELET = "kubelet"
    PROXY = "kube-proxy"
    CONTAINERD = "containerd"
    SHIM = "containerd-shim-runc-v2"
    CTR = "ctr"
    RUNC = "runc"
    COREDNS = "coredns"
    AGNHOST = "agnhost"
    E2E_TEST = "e2e.test"
    COIL_V2_PLUGIN = "coil"
    COIL_V2_INSTALLER = "coil-installer"
    COIL_V2_IPAM_CONTROLLER = "coil-ipam-controller"
    COIL_V2_EGRESS_CONTROLLER = "coil-egress-controller"
    COIL_V2_COILD = "coild"
    COIL_V2_ROUTER = "coil-egress"


CONTROL_PLANE = (Program.ETCD, Program.APISERVER)
CONTROLLERS = (Program.CONTROLLER_MANAGER, Program.SCHEDULER)
NODE = (Program.KUBELET, Program.PROXY, Program.CONTAINERD, Program.SHIM, Program.CTR, Program.RUNC)
CLUSTER = (*CONTROL_PLANE, *CONTROLLERS, *NODE)
"""What each cluster needs."""
CONFORMANCE = (Program.COREDNS, Program.AGNHOST, Program.E2E_TEST)
"""Kubernetes' own tests, the program in the pods that they make, and what answers pods' DNS queries."""
COIL_V2 = (
    Program.COIL_V2_PLUGIN,
    Program.COIL_V2_INSTALLER,
    Program.COIL_V2_IPAM_CONTROLLER,
    Program.COIL_V2_EGRESS_CONTROLLER,
    Program.COIL_V2_COILD,
    Program.COIL_V2_ROUTER,
)
"""The Go programs of Coil v2 that a node is taken over from, and goes back to."""
KUBERNETES = (Program.APISERVER, *CONTROLLERS, Program.KUBELET, Program.PROXY)


class Release(enum.StrEnum):
    """What can be asked for: a version of Kubernetes with etcd and containerd of its time."""

    NEWEST = "1.37"
    OLDEST = "1.34"
    DEBIAN = "debian"


DEFAULT = Release.NEWEST

RECIPE = 3
"""Part of a cache entry's name; to be raised when the recipe changes, so that what an older one built is not used."""

_FOLDER = Path(__file__).parent / "releases"


def _kubernetes(release: Release) -> ModuleList:
    # The first compiles what the others share.
    costs = {
        Program.APISERVER: 850,
        Program.CONTROLLER_MANAGER: 250,
        Program.SCHEDULER: 20,
        Program.KUBELET: 65,
        Program.PROXY: 27,
    }
    return ModuleList(
        name="kubernetes",
        folder=_FOLDER / release,
        programs={program: GoProgram(f"k8s.io/kubernetes/cmd/{program}", cost) for program, cost in costs.items()},
        version_module="k8s.io/kubernetes",
        version_package="k8s.io/component-base/version",
    )


_CONTAINERD = "github.com/containerd/containerd/v2"
_RUNTIME = ModuleList(
    name="runtime",
    folder=_FOLDER / "runtime",
    programs={
        Program.CONTAINERD: GoProgram(f"{_CONTAINERD}/cmd/{Program.CONTAINERD}", 120),
        Program.SHIM: GoProgram(f"{_CONTAINERD}/cmd/{Program.SHIM}", 20),
        Program.CTR: GoProgram(f"{_CONTAINERD}/cmd/{Program.CTR}", 20),
        Program.ETCD: GoProgram("go.etcd.io/etcd/server/v3", 75),
    },
    version_module=_CONTAINERD,
)
_RUNC = ModuleList(
    name="runc",
    folder=_FOLDER / "runc",
    programs={Program.RUNC: GoProgram("github.com/opencontainers/runc", 60)},
    version_module="github.com/opencontainers/runc",
    # It enters namespaces in C, before Go's threads begin, and has seccomp filters made by their library.
    cgo=True,
    tags=("seccomp",),
)

_CONFORMANCE = ModuleList(
    name="conformance",
    folder=_FOLDER / "conformance",
    programs={
        Program.COREDNS: GoProgram("github.com/coredns/coredns", 385),
        Program.AGNHOST: GoProgram("k8s.io/kubernetes/test/images/agnhost", 260),
        Program.E2E_TEST: GoProgram("k8s.io/kubernetes/test/e2e", 450, Kind.TESTS),
    },
    version_module="k8s.io/kubernetes",
    version_package="k8s.io/component-base/version",
)

_COIL = "github.com/cybozu-go/coil/v2"
_COIL_V2 = ModuleList(
    name="coil",
    folder=_FOLDER / "coil-v2",
    programs={
        Program.COIL_V2_COILD: GoProgram(f"{_COIL}/cmd/{Program.COIL_V2_COILD}", 200),
        Program.COIL_V2_IPAM_CONTROLLER: GoProgram(f"{_COIL}/cmd/{Program.COIL_V2_IPAM_CONTROLLER}", 5),
        Program.COIL_V2_EGRESS_CONTROLLER: GoProgram(f"{_COIL}/cmd/{Program.COIL_V2_EGRESS_CONTROLLER}", 5),
        Program.COIL_V2_ROUTER: GoProgram(f"{_COIL}/cmd/{Program.COIL_V2_ROUTER}", 5),
        Program.COIL_V2_PLUGIN: GoProgram(f"{_COIL}/cmd/{Program.COIL_V2_PLUGIN}", 3),
        Program.COIL_V2_INSTALLER: GoProgram(f"{_COIL}/cmd/{Program.COIL_V2_INSTALLER}", 3),
    },
    version_module=_COIL,
    kept=("config", "kustomization.yaml", "netconf.json"),
)


@dataclass(frozen=True, slots=True)
class _OnDemand:
    """Programs that no cluster needs: they are built for the tests that ask for them. `what` they are, and `time`."""

    programs: Collection[Program]
    modules: ModuleList
    what: str
    time: str


_ON_DEMAND = (
    _OnDemand(
        CONFORMANCE, _CONFORMANCE, f"the tests of Kubernetes {_CONFORMANCE.version} and CoreDNS", "20 to 40 minutes"
    ),
    _OnDemand(COIL_V2, _COIL_V2, f"the Go programs of Coil {_COIL_V2.version}", "2 to 5 minutes"),
)


def _lists(release: Release) -> Sequence[ModuleList]:
    """What the nodes of a release run."""
    return _kubernetes(release), _RUNTIME, _RUNC


def chosen_release() -> Release:
    """What ``COIL_KUBERNETES`` says. Raises BuildError for an unknown one."""
    said = os.environ.get(RELEASE_VARIABLE) or DEFAULT
    try:
        return Release(said)
    except ValueError:
        known = ", ".join(Release)
        raise BuildError(f"{RELEASE_VARIABLE}={said} is none of {known}; unset it, or choose one of these") from None


def conformance_version() -> str:
    """The version of Kubernetes that its own tests are of, such as 1.37.2."""
    return _CONFORMANCE.version


def locate(programs: Collection[Program]) -> Mapping[Program, Path]:
    """The file of each of ``programs``; builds what is missing (minutes, with progress on standard output).

    Nothing is built that nobody asks for: a cluster does without the programs of CONFORMANCE and COIL_V2. Without the
    module proxy, what Debian has takes the place of the chosen release, if that is in the cache already or nothing is.
    Raises BuildError with what is missing and what to do. Idempotent; a build that is cut short changes nothing.
    """
    return _locate(programs, _cached(chosen_release()) or _cached(Release.DEBIAN))


def _locate(programs: Collection[Program], cached: Mapping[Program, Path] | None) -> Mapping[Program, Path]:
    assets = os.environ.get(ASSETS_VARIABLE)
    found: dict[Program, Path] = {}
    for program in programs:
        own = Path(assets).expanduser().resolve() / program if assets else None
        if own is not None and own.is_file():
            found[program] = own
        elif own is not None and program in CONTROL_PLANE:
            raise BuildError(f"{ASSETS_VARIABLE}={assets} has no {program}; unset it, or put {program} there")
    missing = [program for program in programs if program not in found]
    if wanted := [program for program in missing if program in CLUSTER]:
        built = cached or _build(chosen_release())
        found.update({program: built[program] for program in wanted})
    for each in _ON_DEMAND:
        if wanted := [program for program in missing if program in each.programs]:
            built = _cached_lists(each.modules) or _build_on_demand(each)
            found.update({program: built[program] for program in wanted})
    return found


def _entry(modules: ModuleList) -> Path:
    """The folder in the cache of what these pins give."""
    digest = hashlib.sha256(str(RECIPE).encode())
    for name in ("go.mod", "go.sum"):
        digest.update((modules.folder / name).read_bytes())
    return cache_root() / f"{modules.name}-{modules.version}-{digest.hexdigest()[:8]}"


def _debian_entry() -> Path:
    return cache_root() / f"kubernetes-debian-r{RECIPE}"


def _cached(release: Release) -> Mapping[Program, Path] | None:
    """Every program of a release, when all are in the cache."""
    if release is Release.DEBIAN:
        entry = _debian_entry()
        return _with_debian_runtime(entry) if entry.is_dir() else None
    return _cached_lists(*_lists(release))


def _cached_lists(*lists: ModuleList) -> Mapping[Program, Path] | None:
    """Every program of these lists, when all are in the cache."""
    if not all(map(_is_whole, lists)):
        return None
    return {Program(name): _entry(modules) / name for modules in lists for name in modules.programs}


def _is_whole(modules: ModuleList) -> bool:
    return all((_entry(modules) / name).exists() for name in (*modules.programs, *modules.kept))


def _with_debian_runtime(entry: Path) -> Mapping[Program, Path]:
    """Debian's Kubernetes, with the etcd and the container runtime that Debian installs."""
    found = {program: entry / program for program in KUBERNETES}
    for program in set(CLUSTER) - set(KUBERNETES):
        path = shutil.which(program)
        if path is None:
            raise BuildError(f"{program} is missing; install the Debian packages etcd-server, containerd and runc")
        found[program] = Path(path)
    return found


def _build(release: Release) -> Mapping[Program, Path]:
    with _building() as (root, lock):
        # Somebody else may have built it while we waited for the lock.
        if (cached := _cached(release)) is not None:
            return cached
        if release is not Release.DEBIAN:
            try:
                return _build_release(release, root, lock)
            except ModuleProxyError as error:
                print(f"{error}\n\nKubernetes {release} cannot be had: no Go modules, see above.", flush=True)
                print("Debian's Kubernetes 1.20 of 2020 takes its place, which Coil does not support:", flush=True)
                print("tests that need Helm or Egresses are skipped, and the demo does not run.", flush=True)
                check_debian_tools()
        if (cached := _cached(Release.DEBIAN)) is not None:
            return cached
        entry = _debian_entry()
        with _work_folder(root) as work:
            print("Kubernetes is built once from Debian's source package; 6 to 12 minutes on two cores.", flush=True)
            steps = BuildSteps(work / "log", lock=lock)
            build_debian_kubernetes(work, _whole(work), steps, programs=KUBERNETES)
            _keep(work, entry, steps)
        return _with_debian_runtime(entry)


def _build_release(release: Release, root: Path, lock: IO[str]) -> Mapping[Program, Path]:
    print(
        f"Kubernetes {release}, etcd and containerd are built once from Go modules; 7 to 20 minutes on two cores.",
        flush=True,
    )
    return _build_lists(*_lists(release), root=root, lock=lock)


def _build_on_demand(demand: _OnDemand) -> Mapping[Program, Path]:
    with _building() as (root, lock):
        if (cached := _cached_lists(demand.modules)) is not None:
            return cached
        print(f"Built once from Go modules: {demand.what}; {demand.time} on two cores.", flush=True)
        return _build_lists(demand.modules, root=root, lock=lock)


def _build_lists(*lists: ModuleList, root: Path, lock: IO[str]) -> Mapping[Program, Path]:
    """Build those of the lists that are not in the cache, one after the other."""
    for modules in lists:
        if _is_whole(modules):
            continue
        if (free := shutil.disk_usage(root).free) < FREE_BYTES:
            raise BuildError(
                f"a build needs {FREE_BYTES >> 30} GB in {root}, {free >> 20} MB are free; "
                "free some or set XDG_CACHE_HOME"
            )
        with _work_folder(root) as work:
            steps = BuildSteps(work / "log", lock=lock)
            build_go_programs(modules, work, _whole(work), steps)
            _keep(work, _entry(modules), steps)
    cached = _cached_lists(*lists)
    assert cached is not None
    return cached


@contextmanager
def _building() -> Iterator[tuple[Path, IO[str]]]:
    """The cache, for the only build that is under way; without what builds before it have left."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root / "build.lock") as lock:
        for leftover in root.glob("build.*.d"):
            print(f"removing {leftover}, left by a build that was cut short", flush=True)
            shutil.rmtree(leftover)
        yield root, lock


def _whole(work: Path) -> Path:
    folder = work / "whole"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def _work_folder(root: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="build.", suffix=".d", dir=root))
    try:
        yield work
    finally:
        shutil.rmtree(work)


def _keep(work: Path, entry: Path, steps: BuildSteps) -> None:
    if entry.exists():  # incomplete, or it would have been used
        shutil.rmtree(entry)
    _whole(work).rename(entry)
    steps.say(f"built: {entry}")


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


def main(arguments: Sequence[str]) -> int:
    """`python -m integration.cluster.programs [conformance | coil-v2]`: have programs at hand; the exit code.

    Every program of the chosen release, those of Kubernetes' own tests, or those of Coil v2. 3 when Debian's Kubernetes
    has to take the release's place, and lacks programs for its build.
    """
    wanted = {"conformance": CONFORMANCE, "coil-v2": COIL_V2}.get("".join(arguments), CLUSTER)
    try:
        # Unlike `locate`, it tries again what could not be fetched before.
        for program, path in _locate(wanted, _cached(chosen_release())).items():
            print(f"{program}: {path}")
    except MissingToolError as error:
        print(error, file=sys.stderr)
        return 3
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
