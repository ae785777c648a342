"""Programs from Go modules: what a folder's `go.mod` and `go.sum` pin, each file by its hash, and nothing else.

Kubernetes' repository is a module whose staging modules are required as v0.0.0, which no proxy has; a `go.mod` of ours
replaces each by the release of its own repository. To follow a new release: change the versions, `go mod tidy`.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.cluster.build_steps import BuildError, BuildSteps
from integration.cluster.go_toolchain import obtain_go

FREE_BYTES = 12 << 30
"""Sources, 3.5 GB, and what the compiler keeps of them, 7 GB, while a build runs (measured, Kubernetes 1.37)."""


class ModuleProxyError(BuildError):
    """The modules could not be fetched; the message says what Go said."""


class Kind(enum.Enum):
    """What the compiler makes of a package, by the subcommand of `go` and its flags."""

    PROGRAM = ("build",)
    TESTS = ("test", "-c", "-vet=off")
    """The package's tests, as a program that runs them. `go vet` would take as long again, for all that they import."""


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A program of a module list: its package, and about how much processor time it takes to build, in seconds."""

    package: str
    cost: float
    kind: Kind = Kind.PROGRAM


@dataclass(frozen=True, slots=True)
class ModuleList:
    """A folder with `go.mod` and `go.sum`, and what is built from it, by the names of the files.

    The programs of one list share what is compiled for them; the first in it is built first.
    """

    name: str
    folder: Path
    programs: Mapping[str, GoProgram]
    version_module: str
    """The module whose version the programs report as theirs."""
    version_package: str = ""
    """The package with the variables `gitVersion`, `gitMajor` and `gitMinor`, which are set to it; empty for none."""
    cgo: bool = False
    """Whether the programs have parts in C, built with the machine's compiler and libraries."""
    tags: Sequence[str] = ()
    """Build constraints that are met besides those of the machine."""
    kept: Sequence[str] = ()
    """Files and folders at the top of `version_module` that are kept beside the programs, such as manifests."""

    @property
    def version(self) -> str:
        """Such as 1.37.2."""
        text = (self.folder / "go.mod").read_text()
        match = re.search(rf"^\s*(?:require )?{re.escape(self.version_module)} v([\d.]+)", text, re.MULTILINE)
        if match is None:
            raise BuildError(f"{self.folder / 'go.mod'} does not require {self.version_module}")
        return match[1]


def build_go_programs(modules: ModuleList, work: Path, whole: Path, steps: BuildSteps) -> None:
    """Put the programs into the folder ``whole``. All that is fetched and made besides is in ``work``.

    Raises ModuleProxyError when the modules cannot be had, BuildError when they cannot be built.
    """
    go = obtain_go(work, steps)
    source = work / "source"
    source.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copy(modules.folder / name, source)
    environment = {
        # What is configured on the machine for Go (its proxy, certificates), but no build setting of it.
        **{name: value for name, value in os.environ.items() if not name.startswith("GO")},
        **{name: os.environ[name] for name in ("GOPROXY", "GOSUMDB", "GONOSUMDB") if name in os.environ},
        "GOMODCACHE": str(work / "modules"),
        "GOCACHE": str(work / "cache"),
        "GOTMPDIR": str(work),
        "GOPATH": str(work / "gopath"),
        # Go makes its copies of modules read-only, so that they could not be removed.
        "GOFLAGS": f"-modcacherw -mod=readonly -tags={','.join(modules.tags)}",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": str(int(modules.cgo)),
    }
    try:
        for kind, listing in ((Kind.PROGRAM, ["list", "-deps"]), (Kind.TESTS, ["list", "-deps", "-test"])):
            if packages := [program.package for program in modules.programs.values() if program.kind is kind]:
                steps.run("fetching the modules", [str(go), *listing, *packages], environment, cwd=source)
    except BuildError as error:
        raise ModuleProxyError(str(error)) from error
    _keep_files(modules, work / "modules", whole)
    left = sum(program.cost for program in modules.programs.values())
    begun, done = steps.elapsed(), 0.0
    for number, (name, program) in enumerate(modules.programs.items(), start=1):
        # The first compiles what all share, so that there is nothing to reckon with before it is done.
        rate = (steps.elapsed() - begun) / done if done else 1 / (os.cpu_count() or 1)
        steps.run(
            f"compiling {name}, {number} of {len(modules.programs)}, about {_minutes(left * rate)} left",
            [
                str(go),
                *program.kind.value,
                "-trimpath",
                f"-ldflags={_linker_flags(modules)}",
                "-o",
                str(whole / name),
                program.package,
            ],
            environment,
            cwd=source,
        )
        done += program.cost
        left -= program.cost


def _keep_files(modules: ModuleList, module_cache: Path, whole: Path) -> None:
    # The module cache has an escape for capital letters, which no path here contains.
    source = module_cache / f"{modules.version_module}@v{modules.version}"
    for name in modules.kept:
        if (source / name).is_dir():
            shutil.copytree(source / name, whole / name)
        else:
            shutil.copy(source / name, whole)


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min"


def _linker_flags(modules: ModuleList) -> str:
    flags = ["-s", "-w"]
    if modules.version_package:
        major, minor, _ = modules.version.split(".")
        values = {"gitVersion": f"v{modules.version}", "gitMajor": major, "gitMinor": minor}
        flags += [f"-X {modules.version_package}.{name}={value}" for name, value in values.items()]
    return " ".join(flags)
