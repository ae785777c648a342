"""`python -m coil_freezer FILE`: builds the plugin's executable. `--source` names another folder of the plugin."""

import argparse
import importlib.util
import sys
from pathlib import Path

from coil_freezer.error import FreezeError
from coil_freezer.executable import build_executable
from coil_freezer.frame import render_frame
from coil_freezer.program import PACKAGE, read_program


def main() -> None:
    """Exit status 0 when the file is built; otherwise 1 and the reason on standard error."""
    parser = argparse.ArgumentParser(prog="coil-freezer", description=__doc__)
    parser.add_argument("target", type=Path, metavar="FILE")
    parser.add_argument("--source", type=Path, help="the folder of the package coil_cni; by default the installed one")
    arguments = parser.parse_args()
    try:
        build_executable(render_frame(read_program(arguments.source or plugin_source())), arguments.target)
    except (FreezeError, OSError) as error:
        sys.exit(f"coil-freezer: {error}")


def plugin_source() -> Path:
    """The folder of the plugin's package as Python finds it, which is not imported for that."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FreezeError(f"the package {PACKAGE} is not installed; name its folder with --source")
    return Path(spec.origin).parent
