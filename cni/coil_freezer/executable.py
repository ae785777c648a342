"""The C compiler's part: one statically linked executable, of the frame's source and the interpreter's library."""

import shutil
import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

from coil_freezer.error import FreezeError
from coil_freezer.frame import WRAPPED

PACKAGES = ("gcc", "libc6-dev", f"libpython{sysconfig.get_python_version()}-dev")
"""Debian's packages that a build with the running interpreter needs."""
FLAGS = (
    "-O2",
    # Neither a loader nor relocations at the start: both would cost more than the plugin's own work.
    *("-static", "-no-pie"),
    *("-Wl,--gc-sections", "-s"),
    *(f"-Wl,--wrap={name}" for name in WRAPPED),
)
_BUILD_SECONDS = 300
_SAID_LINES = 20


def library() -> Path:
    """The static library of the running interpreter. Raises FreezeError where there is none."""
    path = Path(sysconfig.get_config_var("LIBPL") or "/", sysconfig.get_config_var("LIBRARY") or "libpython.a")
    if not path.is_file() or not Path(sysconfig.get_config_var("INCLUDEPY") or "/", "Python.h").is_file():
        raise FreezeError(f"Python's static library or its headers are missing; install {' '.join(PACKAGES)}")
    return path


def build_executable(frame: str, target: Path) -> None:
    """Compile the source text `frame` to the file `target`, which is replaced when the new one is whole.

    Raises FreezeError with the end of what the compiler said. Idempotent; a build that is killed leaves at most a
    folder beside the target.
    """
    archive = library()
    compiler = shutil.which("gcc")
    if compiler is None:
        raise FreezeError(f"the C compiler is missing; install {' '.join(PACKAGES)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        source, built = Path(folder, "coil.c"), Path(folder, "coil")
        source.write_text(frame)
        include = sysconfig.get_config_var("INCLUDEPY")
        command = [compiler, *FLAGS, f"-I{include}", str(source), str(archive), "-lm", "-o", str(built)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_BUILD_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FreezeError(f"the compiler did not end as it should: {error}") from error
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-_SAID_LINES:])
            raise FreezeError(f"the compiler failed (is {' '.join(PACKAGES)} installed?):\n{said}")
        built.replace(target)
