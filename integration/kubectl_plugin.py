"""kubectl-coil where kubectl finds it: a file of that name in a folder of the PATH."""

import sys
from pathlib import Path


def write_kubectl_plugin(folder: Path) -> None:
    """Put an executable into the folder that runs the checkout's own."""
    plugin = folder / "kubectl-coil"
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m kubectl_coil "$@"\n')
    plugin.chmod(0o755)
