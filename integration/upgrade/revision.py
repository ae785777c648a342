"""A former revision of the project: its files in a folder of their own, and what its own code makes of them.

revision = Revision.check_out("2563198", folder)
name, archive = revision.build_image()
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FORMER: Final = "256319826ec1e56a7bf6e18a81a5b36890cb6e0c"
"""The release before this one: the last revision before the manager and its caches were introduced."""

ROOT: Final = Path(__file__).resolve().parents[2]
_CHART = Path("charts") / "coil"
_GIT_SECONDS = 60
_HELP_SECONDS = 60
_BUILD_SECONDS = 1200
_CALL = "import sys; sys.argv = sys.argv[1:]; from {module} import {function}; sys.exit({function}())"


class RevisionError(Exception):
    """The revision cannot be had, or its code failed; the message is one sentence, or what was said."""


def check_revision(name: str, repository: Path = ROOT) -> None:
    """Raises RevisionError when the repository does not have the revision, or the revision nothing to install."""
    if _git(repository, "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}").returncode:
        raise RevisionError(
            f"the revision {name} is not in the history of this checkout: fetch it, with `git fetch --unshallow` if "
            "the clone is shallow, or name another one by --from."
        )
    # The first charts had roles and kinds only.
    if _git(repository, "cat-file", "-e", f"{name}:{_CHART}/values.yaml").returncode:
        raise RevisionError(f"the revision {name} has no Helm chart that can be installed: name a later one by --from.")


@dataclass(frozen=True, slots=True)
class Revision:
    """Made by `check_out`."""

    name: str
    folder: Path

    @classmethod
    def check_out(cls, name: str, folder: Path, repository: Path = ROOT) -> "Revision":
        """Write its files to an empty folder; the repository is only read. Raises RevisionError."""
        check_revision(name, repository)
        packed = folder / "files.tar"
        # What is written has the modes of a fresh checkout, whatever the repository's owner has set.
        done = _git(repository, "-c", "tar.umask=022", "archive", "--format=tar", f"--output={packed}", name)
        if done.returncode:
            raise RevisionError(f"the revision {name} cannot be read: {done.stderr.strip()}")
        # What Python's own would extract depends on its version.
        unpack = ["tar", "--extract", f"--file={packed}", f"--directory={folder}"]
        subprocess.run(unpack, check=True, timeout=_GIT_SECONDS)
        packed.unlink()
        return cls(name, folder)

    @property
    def chart(self) -> Path:
        return self.folder / _CHART

    def build_image(self) -> tuple[str, Path]:
        """Name and archive of its image, from the cache if it is there. Raises RevisionError."""
        printed = self._python(["-m", "integration.image"], seconds=_BUILD_SECONDS)
        # coil.test/coil:0.1.0 (66 MB, 0.1 s): /root/.cache/coil/image/coil-….tar
        *_, line = printed.splitlines()
        name, path = line.split(" ", 1)[0], line.rpartition(": ")[2]
        return name, Path(path)

    def program_help(self, program: str, *subcommands: str) -> str:
        """What `PROGRAM SUBCOMMANDS --help` prints. Raises RevisionError."""
        scripts = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]["scripts"]
        module, function = scripts[program].split(":")
        call = _CALL.format(module=module, function=function)
        return self._python(["-c", call, program, *subcommands, "--help"], seconds=_HELP_SECONDS)

    def _python(self, arguments: Sequence[str], *, seconds: float) -> str:
        # Before what this checkout has installed in the same environment.
        path = os.pathsep.join(str(self.folder / place) for place in ("", "services", "cni"))
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        if done.returncode:
            raise RevisionError(
                f"{' '.join(arguments)} of revision {self.name}: {(done.stderr or done.stdout).strip()}"
            )
        return done.stdout


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Under sudo the checkout is somebody else's, which git would refuse.
    command = ["git", "-c", "safe.directory=*", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
