"""The plugin's executable for everything in this checkout that installs it: built when its sources have changed.

Each version has its own name below `build/`, by a digest of all that goes into it, so that programs which run at the
same time with different sources have nothing to agree on; and whoever comes second at the same version only replaces
a file by its like.
"""

import hashlib
import shutil
import sys
from pathlib import Path

import coil_freezer
from coil_freezer.executable import build_executable
from coil_freezer.frame import render_frame
from coil_freezer.main import plugin_source
from coil_freezer.program import read_program

FOLDER = Path(__file__).resolve().parent.parent.parent / "build" / "plugin"
_FREEZER = Path(coil_freezer.__file__).parent
_KEPT = 8  # versions of 5 MB


def plugin_executable(source: Path | None = None) -> Path:
    """The executable for the plugin's sources in that folder, by default the checkout's; a few seconds the first time.

    Raises FreezeError. May be called by many processes at once.
    """
    source = source or plugin_source()
    path = FOLDER / _digest(source) / "coil"
    if not path.is_file():
        build_executable(render_frame(read_program(source)), path)
        _prune()
    return path


def _digest(source: Path) -> str:
    # sys.version has the moment in it when the interpreter, and its library with it, was built.
    digest = hashlib.sha256(sys.version.encode())
    for folder in (source, _FREEZER):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _prune() -> None:
    """Remove all versions but the newest; one that is gone already was removed by somebody else."""
    for path in sorted(FOLDER.glob("*/coil"), key=_built)[:-_KEPT]:
        shutil.rmtree(path.parent, ignore_errors=True)


def _built(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
